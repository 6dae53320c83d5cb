"""Options of the experiment on truncation, and its clients, generators and public images, made by a network."""

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
from fedgen.experiments.engine.choice import Choice, at_least, rising
from fedgen.experiments.engine.feature_federation import FeatureFederation
from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.ranking.truncation.truncated_styles import BATCH, TruncatedStyles
from fedgen.statistics import Projection

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

    Raises:
        ValueError: for numbers out of range, or a device that is not there.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "taus": lambda taus: (*(taus[:-1:2] if len(taus) > 5 else taus[:-1]), taus[-1]),
        "num_images": 400, "clients": 20, "client_images": 30, "components": 16, "controls": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)

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
        at_least(0, client_truncation=self.client_truncation)
        at_least(2, clients=self.clients, client_images=self.client_images)
        at_least(1, controls=self.controls)
        if not 1 <= self.components < self.num_images:
            raise ValueError(
                f"components={self.components}: at least 1, of {self.num_images} public images, which must be more"
            )
        require_device(self.device)

    @property
    def pooled_truncation(self) -> float:
        """The truncation t at which one generator's styles vary as those of all clients together.

        A client's style is (1 - c) centre + c w, of two independent latents' styles: t^2 = (1 - c)^2 + c^2. For images
        linear in styles FD-all is least there and FD-avg at c.
        """
        return float(math.hypot(1 - self.client_truncation, self.client_truncation))

    def resolved(self) -> dict[str, Any]:
        """Return what stands for the network beside its weights."""
        return {"data": self.network.stem}


class StyleFederation:
    """The clients, generators and public images that a network makes of a choice, as features.

    Features are kept on disk by network, embedding and draws; images are not kept, nor all in memory at once.

    Args:
        styles: the network.
        embedding: makes the features, where it lies.
        choice: numbers, truncations and seed.
        cache: folder of the features.
    """

    def __init__(
        self,
        styles: TruncatedStyles,
        embedding: Embedding,
        choice: TruncationChoice,
        cache: Path = CACHE,
    ) -> None:
        self.styles, self.embedding, self.choice = styles, embedding, choice
        self._cache, self._network = FeatureCache(cache), styles.fingerprint()

    @cached_property
    def centres(self) -> list[Tensor]:
        """The centres of the clients, [style_dim] each."""
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
        """The principal components of images that the network makes without truncation, nobody's else.

        Raises:
            ValueError: for more components than directions in which they vary.
        """
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
