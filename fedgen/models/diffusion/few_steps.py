"""A diffusion model as a generator to be trained on its images: few deterministic steps, differentiated through."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.models.checkpoint_file import rebuild_model
from fedgen.models.diffusion.ddpm import DDPM
from fedgen.models.diffusion.diffusion_sampling import Sampler, make_scheduler, predictor
from fedgen.models.networks.network import Network, build, describe
from fedgen.models.require import require


class FewStepGenerator(Network):
    """Images [N, C, H, W] in [-1, 1] from latents [N, C H W] by steps of DDIM (Song et al. 2021, arXiv 2010.02502).

    They are those of `DDPM.sample(solver="ddim", steps=steps)`, of the model's moving average. Gradients go through all
    steps, and straight through the bounds at -1 and 1, where many pixels lie and would else have none. An image takes
    the memory of `steps` passes of the network: train it with `chunk` (`FineTuning`, or an `EmbeddedLoss` with a second
    pass) where that is too much.

    Args:
        ddpm: the model, whose network is copied; the path of its checkpoint; or its description, as checkpoints of
            this generator hold it.
        steps: of DDIM; a number that divides the model's timesteps.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: for steps that do not divide the timesteps, a model of latents, or a file that is no checkpoint of a
            DDPM, or damaged.
    """

    def __init__(self, ddpm: DDPM | str, steps: int = 4) -> None:
        model = _read(ddpm)
        require(model.latent_space is None, "a few-step generator gives images, and this DDPM an autoencoder's latents")
        described = {"class_path": describe(model)["class_path"], "init_args": {**model.hparams, "ema_decay": None}}
        super().__init__(ddpm=described, steps=steps)
        self.network = copy.deepcopy(model.network)  # with what of it trains
        self.network.load_state_dict(model.averaged.state_dict())
        self.diffusion = model.diffusion
        self.image_shape, self.num_classes = model.image_shape, model.num_classes
        self.latent_dim, self.steps = int(torch.Size(self.image_shape).numel()), steps
        schedule = self.diffusion.schedule
        scheduler = make_scheduler(Sampler("ddim", steps), schedule, self.diffusion.prediction)
        self._timesteps: list[int] = scheduler.timesteps.tolist()

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images.

        Args:
            latents: standard normal.
            labels: int64 [N] for a conditional model.
        """
        predict = predictor(self.network, labels, 1.0, None)
        noisy = latents.float().unflatten(1, self.image_shape)
        signal, noise, clip = self.diffusion.signal, self.diffusion.noise, self.diffusion.schedule.clip
        for now, after in zip(self._timesteps, [*self._timesteps[1:], None]):
            timesteps = torch.full((len(noisy),), now, device=noisy.device)
            predicted = predict(noisy, timesteps[0], slice(None))
            epsilon = self.diffusion.epsilon(predicted, noisy, timesteps)
            images = (noisy - noise[now] * epsilon) / signal[now]
            images = _bounded(images) if clip else images
            noisy = images if after is None else signal[after] * images + noise[after] * epsilon
        return _bounded(noisy).to(latents.dtype)


def _read(ddpm: Any) -> DDPM:
    if isinstance(ddpm, str | Path):
        return rebuild_model(DDPM, ddpm)
    return build(ddpm, "ddpm", DDPM, "model") if isinstance(ddpm, Mapping) else ddpm


def _bounded(images: Tensor) -> Tensor:
    """Images cut to [-1, 1], with the gradient as if they were not."""
    return images + (images.clamp(-1, 1) - images).detach()
