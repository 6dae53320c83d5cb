"""Images of a StyleGAN2 whose styles are pulled to a centre: to the mean, as truncation does, or to a client's own."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedgen.images import to_uint8
from fedgen.io.hashing import hash_tensors
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile
from fedgen.models.stylegan2.training_steps import draw_noise
from fedgen.seeds import generator

BATCH = 64  # images made and embedded at once
RECIPE = "recipes/stylegan2_fashion_mnist.yaml"  # that trains the kit's own network
MEAN_STYLES = 10_000  # from which the mean is estimated where the network has none


class TruncatedStyles:
    """A network of styles and the images it makes around any centre.

    The style of a latent, w, becomes centre + truncation * (w - centre), in every layer; noise is drawn image by image.

    Args:
        network: an unconditional one.
        device: where it makes images; latents and noise are drawn on the CPU, the same for every device.

    Attributes:
        mean: of styles [style_dim], on the device: what the network kept in training.
        mean_estimated: whether it kept none, or zeros, so that the mean is that of 10,000 styles.

    Raises:
        ValueError: for a conditional network, or one that gives NaN or infinity (when images are made).
    """

    def __init__(self, network: StyleGAN2Generator, device: str = "cpu") -> None:
        if network.num_classes is not None:
            raise ValueError(f"the network has {network.num_classes} classes; truncation is of one without labels")
        self.network, self.device = network.to(device).eval(), device
        kept = getattr(network.mapping, "w_avg", None)
        self.mean_estimated = kept is None or not bool(kept.any())
        self.mean = self._estimated_mean() if kept is None or self.mean_estimated else kept

    @property
    def image_size(self) -> int:
        """Pixels of a side."""
        return self.network.synthesis.image_size

    @torch.no_grad()
    def styles(self, latents: Tensor) -> Tensor:
        """Styles [N, style_dim] of latents [N, latent_dim], not truncated; each is that of all layers."""
        return self.network.styles(latents.to(self.device))[:, 0]

    def centre(self, seed: int, client: int) -> Tensor:
        """A client's centre [style_dim]: the style of a latent of its own, drawn at (seed, "centre", client)."""
        return self.styles(self.latents(1, generator(seed, "centre", client)))[0]

    def latents(self, count: int, draws: torch.Generator) -> Tensor:
        """Latents [count, latent_dim] on the CPU."""
        return torch.randn(count, self.network.latent_dim, generator=draws)

    @torch.no_grad()
    def make(self, centre: Tensor, truncation: float, latents: Tensor, draws: torch.Generator) -> Tensor:
        """Images uint8 [N, C, H, W] on the CPU, or points [N, D] of a network that gives points.

        Args:
            centre: [style_dim]; at a truncation of 0 all images have its style.
            truncation: how far styles are from it, as a share of how far they were.
            latents: [N, latent_dim].
            draws: of the noise, image by image.
        """
        styles = centre.lerp(self.styles(latents), truncation)
        noise = draw_noise(self.network, len(latents), draws).to(self.device)
        images = self.network.synthesize(styles[:, None].expand(-1, self.network.num_styles, -1), noise).float().cpu()
        return images if images.ndim == 2 else to_uint8(images)

    def batches(self, centre: Tensor, truncation: float, count: int, seed: int, *path: str | int) -> Iterator[Tensor]:
        """So many images of fresh latents as `make` gives them, at most 64 at once.

        Args:
            centre: [style_dim].
            truncation: as in `make`.
            count: images in all.
            seed: base seed.
            path: names the draws; those of a batch come from (seed, path, its first image).
        """
        for start in range(0, count, BATCH):
            draws = generator(seed, *path, start)
            latents = self.latents(min(BATCH, count - start), draws)
            yield self.make(centre, truncation, latents, draws)

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of the network's settings and weights: other images, other fingerprint."""
        return hash_tensors(self.network.state_dict().items(), json.dumps(self.network.settings))

    def _estimated_mean(self) -> Tensor:
        return self.styles(self.latents(MEAN_STYLES, generator(0, "mean of styles"))).mean(dim=0)


def read_styles(path: Path, device: str) -> TruncatedStyles:
    """The generator of a file of networks, the average of its weights if there is one.

    Raises:
        FileNotFoundError: if there is no such file, with what makes one.
        ValueError: if it is damaged, or has no generator, or a conditional one.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no file {path}; to make one, run `fedgen fit --config {RECIPE}` and then `fedgen convert"
            f" checkpoints/{Path(RECIPE).stem}/last.ckpt {path}`; or give another by --network,"
            " e.g. a published one: `fedgen convert ffhq.pkl ffhq.safetensors`"
        )
    file = NetworkFile.read(path)
    network = file.generator_ema or file.generator
    if network is None:
        raise ValueError(f"{path} has no generator")
    return TruncatedStyles(network, device)
