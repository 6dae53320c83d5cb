"""The mapping network: latents to styles (Karras et al. 2019, arXiv 1812.04948), also that of a conditional critic."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedgen.models.stylegan2.operations.convolution import normalize_2nd_moment
from fedgen.models.stylegan2.operations.layers import Dense


class Mapping(nn.Module):
    """Styles [N, outputs] from latents [N, latent_dim] and conditions [N, condition_dim], either of them absent if 0.

    Args:
        latent_dim: features of a latent.
        condition_dim: features of a condition.
        outputs: features of a style.
        layers: dense layers, each with an activation, the last too.
        embed_features: of the embedded condition; `outputs` by default.
        layer_features: between layers; `outputs` by default.
        activation: "lrelu", "relu" or "linear".
        lr_multiplier: of the layers' learning rate.
        average: decay of `w_avg`, the running mean of styles that truncation pulls to; None keeps none.
    """

    w_avg: Tensor

    def __init__(
        self,
        latent_dim: int,
        condition_dim: int,
        outputs: int,
        layers: int = 8,
        embed_features: int | None = None,
        layer_features: int | None = None,
        activation: str = "lrelu",
        lr_multiplier: float = 0.01,
        average: float | None = 0.995,
    ) -> None:
        super().__init__()
        if layers < 0 or latent_dim + condition_dim < 1:
            raise ValueError(f"a mapping of {layers} layers from {latent_dim} + {condition_dim} features cannot be")
        embedded = (outputs if embed_features is None else embed_features) if condition_dim else 0
        hidden = outputs if layer_features is None else layer_features
        self.latent_dim, self.condition_dim, self.outputs = latent_dim, condition_dim, outputs
        self.layers, self.average = layers, average
        if condition_dim:
            self.embed = Dense(condition_dim, embedded)
        widths = [latent_dim + embedded, *[hidden] * (layers - 1), *[outputs] * min(layers, 1)]
        for i, (inputs, width) in enumerate(pairwise(widths)):
            self.add_module(f"fc{i}", Dense(inputs, width, activation=activation, lr_multiplier=lr_multiplier))
        if average is not None:
            self.register_buffer("w_avg", torch.zeros(outputs))

    def forward(self, latents: Tensor | None, condition: Tensor | None = None, update_average: bool = True) -> Tensor:
        """Styles [N, outputs]; in training the running mean moves, unless told not to."""
        parts = []
        if self.latent_dim:
            assert latents is not None
            parts.append(normalize_2nd_moment(latents.to(self._dtype)))
        if self.condition_dim:
            assert condition is not None
            parts.append(normalize_2nd_moment(self.embed(condition.to(self._dtype))))
        x = torch.cat(parts, dim=1)
        for i in range(self.layers):
            x = self.get_submodule(f"fc{i}")(x)
        if self.training and update_average and self.average is not None:
            self.w_avg.copy_(x.detach().mean(dim=0).lerp(self.w_avg, self.average))
        return x

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype
