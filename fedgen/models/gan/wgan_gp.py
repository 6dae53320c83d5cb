"""The Wasserstein GAN with gradient penalty, one configuration of `GAN`."""

from typing import Any

from torch import nn

from fedgen.models.gan.adversarial import WassersteinGP
from fedgen.models.gan.gan import GAN


class WGANGP(GAN):
    """The Wasserstein GAN with gradient penalty of Gulrajani et al. 2017 (arXiv 1704.00028), with the paper's values.

    Args:
        generator: images in [-1, 1] from latents [N, generator.latent_dim]; the pairs are in `fedgen.models.networks`.
        critic: scores [N] of images; without BatchNorm, as the penalty is per image.
        penalty: the weight of the gradient penalty.
        n_critic: critic steps for one generator step, counted over the client's own iterations.
        options: as for `GAN`.

    Raises:
        ValueError: as for `GAN`.

    Examples:
        >>> import torch
        >>> from fedgen import WGANGP
        >>> from fedgen.models.networks import SmallCritic, SmallGenerator
        >>> model = WGANGP(SmallGenerator(), SmallCritic(), n_critic=2)
        >>> model.sample(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 8, 8])
    """

    def __init__(
        self, generator: nn.Module, critic: nn.Module, penalty: float = 10.0, n_critic: int = 5, **options: Any
    ) -> None:
        super().__init__(generator, critic, WassersteinGP(penalty), n_critic=n_critic, **options)

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        return settings | {"penalty": settings.pop("loss")["init_args"]["penalty"]}
