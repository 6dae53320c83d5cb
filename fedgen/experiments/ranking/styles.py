"""Images of a StyleGAN2 whose styles are pulled to a centre: to the mean, as truncation does, or to a client's own."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.embeddings import Embedding, FeatureCache
from fedgen.embeddings.embed import embed_batches
from fedgen.evaluation.panels import require_device
from fedgen.experiments.engine.features import CACHE, FeatureFederation
from fedgen.experiments.engine.study import Choice, rising
from fedgen.images import to_uint8
from fedgen.io.hashing import hash_tensors
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile
from fedgen.models.stylegan2.training_steps import draw_noise
from fedgen.seeds import generator
from fedgen.statistics import Projection

BATCH = 64  # images made and embedded at once
RECIPE = "recipes/stylegan2_fashion_mnist.yaml"  # that trains the kit's own network
MEAN_STYLES = 10_000  # from which the mean is estimated where the network has none


class TruncatedStyles:
    """A network and its images around any centre: of styles centre + truncation * (w - centre), in every layer."""

    def __init__(self, network: StyleGAN2Generator, device: str = "cpu") -> None:
        if network.num_classes is not None:
            raise ValueError(f"the network has {network.num_classes} classes; truncation is of one without labels")
        self.network, self.device = network.to(device).eval(), device
        kept = getattr(network.mapping, "w_avg", None)
        self.mean_estimated = kept is None or not bool(kept.any())
        if kept is None or self.mean_estimated:
            kept = self.styles(self.latents(MEAN_STYLES, generator(0, "mean of styles"))).mean(dim=0)
        self.mean: Tensor = kept

    @property
    def image_size(self) -> int:
        return self.network.synthesis.image_size

    @torch.no_grad()
    def styles(self, latents: Tensor) -> Tensor:
        """Styles [N, style_dim] of latents [N, latent_dim], not truncated; each is that of all layers."""
        return self.network.styles(latents.to(self.device))[:, 0]

    def centre(self, seed: int, client: int) -> Tensor:
        """A client's centre [style_dim]: the style of a latent of its own, drawn at (seed, "centre", client)."""
        return self.styles(self.latents(1, generator(seed, "centre", client)))[0]

    def latents(self, count: int, draws: torch.Generator) -> Tensor:
        return torch.randn(count, self.network.latent_dim, generator=draws)

    @torch.no_grad()
    def make(self, centre: Tensor, truncation: float, latents: Tensor, draws: torch.Generator) -> Tensor:
        """Images uint8 [N, C, H, W] on the CPU, or points [N, D] of a network that gives points."""
        styles = centre.lerp(self.styles(latents), truncation)
        noise = draw_noise(self.network, len(latents), draws).to(self.device)
        images = self.network.synthesize(styles[:, None].expand(-1, self.network.num_styles, -1), noise).float().cpu()
        return images if images.ndim == 2 else to_uint8(images)

    def batches(self, centre: Tensor, truncation: float, count: int, seed: int, *path: str | int) -> Iterator[Tensor]:
        """So many images of fresh latents as `make` gives them, at most 64 at once."""
        for start in range(0, count, BATCH):
            draws = generator(seed, *path, start)
            latents = self.latents(min(BATCH, count - start), draws)
            yield self.make(centre, truncation, latents, draws)

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of the network's settings and weights: other images, other fingerprint."""
        return hash_tensors(self.network.state_dict().items(), json.dumps(self.network.settings))


def read_styles(path: Path, device: str) -> TruncatedStyles:
    """The generator of a file of networks, the average of its weights if there is one."""
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


NETWORK = Path("checkpoints/stylegan2_fashion_mnist.safetensors")
TAUS = (0.01, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class TruncationChoice(Choice):
    """Options of the experiment; its fields are options of its command.

    Args:
        network: file of a StyleGAN2, .safetensors; `fedgen convert` makes one of a published pickle.
        embedding: in whose features scores are measured.
        weights: a local file of its weights.
        taus: truncations of the generators, rising.
        num_images: of each generator, and about as many for the real floor and for the components.
        clients: how many, each around a centre of its own.
        client_images: of each client.
        client_truncation: of their images' styles, to their own centre.
        components: principal components of public images, for a second FID.
        controls: IID dealings of the clients' images.
        device: where images are made and embedded, e.g. cuda.
        quick: every second truncation, 20 clients of 30 images, 400 images of each generator, 16 components.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "taus": lambda taus: (*(taus[:-1:2] if len(taus) > 5 else taus[:-1]), taus[-1]),
        "num_images": 400, "clients": 20, "client_images": 30, "components": 16, "controls": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)
    LEAST: ClassVar[Mapping[str, float]] = {"client_truncation": 0, "clients": 2, "client_images": 2, "controls": 1}

    network: Path = NETWORK
    embedding: str = "efficientnet-lite0"
    weights: Path | None = None
    taus: tuple[float, ...] = TAUS
    num_images: int = 5000
    clients: int = 100
    client_images: int = 100
    client_truncation: float = 0.25
    components: int = 64
    controls: int = 3
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising(0, count=3, taus=self.taus)
        if not 1 <= self.components < self.num_images:
            raise ValueError(
                f"components={self.components}: at least 1, of {self.num_images} public images, which must be more"
            )
        require_device(self.device)

    @property
    def pooled_truncation(self) -> float:
        """The truncation t at which one generator's styles vary as those of all clients together."""
        # a client's style is (1 - c) centre + c w, of two independent latents' styles: t^2 = (1 - c)^2 + c^2
        return float(math.hypot(1 - self.client_truncation, self.client_truncation))

    def resolved(self) -> dict[str, Any]:
        return {"data": self.network.stem}


class StyleFederation:
    """The clients, generators and public images that a network makes of a choice, as features, kept on disk."""

    def __init__(
        self, styles: TruncatedStyles, embedding: Embedding, choice: TruncationChoice, cache: Path = CACHE
    ) -> None:
        self.styles, self.embedding, self.choice = styles, embedding, choice
        self._cache, self._network = FeatureCache(cache), styles.fingerprint()

    @cached_property
    def centres(self) -> list[Tensor]:
        return [self.styles.centre(self.choice.seed, client) for client in range(self.choice.clients)]

    def federation(self) -> FeatureFederation:
        """The clients: images of fresh latents around their centres."""
        features = self._around(self.centres, self.choice.client_truncation, self.choice.client_images, "client")
        positions = torch.arange(len(features)).split(self.choice.client_images)
        return FeatureFederation(features, positions, tuple(f"client {client}" for client in range(len(positions))))

    def floor(self) -> Tensor:
        """Features of further images of the clients, equally many of each, as many as a generator's or a few more."""
        each = -(-self.choice.num_images // self.choice.clients)
        return self._around(self.centres, self.choice.client_truncation, each, "floor")

    def generated(self, tau: float) -> Tensor:
        """Features [num_images, D] of the generator with a truncation to the mean."""
        return self._around([self.styles.mean], tau, self.choice.num_images, f"generator {tau:g}")

    def projection(self) -> Projection:
        """The principal components of images that the network makes without truncation, nobody's else."""
        count = self.choice.num_images
        features = self._around([self.styles.mean], 1.0, count, "public")
        name = f"{self.choice.network.stem}, {count} images of no client and no generator"
        return Projection.fit(features, self.choice.components, self.embedding.name, name)

    def _around(self, centres: list[Tensor], truncation: float, each: int, stream: str) -> Tensor:
        """Features of `each` images around every centre, centre by centre."""
        choice = self.choice
        recipe = ["styles", 1, self._network, stream, truncation, len(centres), each, choice.seed]
        key = self._cache.key(json.dumps(recipe), self.embedding, f"batch {BATCH} on {self.embedding.device.type}")
        stored = self._cache.load(key)
        if stored is not None:
            return self.embedding.checked(stored, len(centres) * each)

        def batches() -> Iterator[Tensor]:
            for number, centre in enumerate(centres):
                yield from self.styles.batches(centre, truncation, each, choice.seed, "styles", stream, number)

        features = embed_batches(self.embedding, batches(), len(centres) * each, f"making and embedding: {stream}")
        self._cache.store(key, features)
        return features
