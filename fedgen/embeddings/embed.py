"""Many images to features, in batches."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs
from fedgen.embeddings.base import Embedding
from fedgen.embeddings.cache import FeatureCache
from fedgen.images import SeenRange, refuse_grey_levels, to_uint8
from fedgen.progress import track
from fedgen.ranks import agreed, spread


class NotFiniteError(ValueError):
    """An image, or its features, hold NaN or infinity.

    Args:
        text: the message.
        place: of the image among those that were embedded, from 0.
    """

    def __init__(self, text: str, place: int) -> None:
        super().__init__(text, place)  # both, so that it can be sent to another process
        self.place = place

    def __str__(self) -> str:
        return str(self.args[0])


def embed(
    embedding: Embedding,
    images: Tensor | LazyInputs,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    description: str | None = None,
    cache: FeatureCache | None = None,
) -> Tensor:
    """Features [N, dim], float32 on the CPU, of images or points in memory, or read in batches; no gradient.

    Args:
        embedding: what maps images to features.
        images: uint8 [N, C, H, W]; or floats [N, C, H, W] in [-1, 1], quantised first; or points [N, D] for `identity`;
            or `LazyInputs` of these.
        batch_size: images at a time; changes the features by rounding only.
        device: where to compute; the embedding moves there and stays. Where it lies by default.
        description: text of the progress bar.
        cache: keeps features on disk, and gives them back where the same images were embedded before.

    Raises:
        ValueError: for images the embedding cannot take, and floats that look like grey levels or, where they are many
            (`fedgen.images.SURE`; of fewer there is a warning), like [0, 1].
        NotFiniteError: for NaN or infinity in images or features, naming the first such image.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    embedding.check(tuple(images.shape))
    if len(images) == 0:
        raise ValueError(f"no images to embed with {embedding.name}: got shape {list(images.shape)}")
    if isinstance(images, Tensor) and images.dtype != torch.uint8:
        images = _points(embedding, images) if embedding.takes_points else _quantised(embedding, images)
    if device is not None:
        embedding.to(device)
    key = None
    if cache is not None:
        key = cache.key(images, embedding, f"batch {batch_size} on {embedding.device.type}")
        stored = cache.load(key)
        if agreed(stored is not None):  # ranks of machines that share no folder may differ
            assert stored is not None
            return embedding.checked(stored, len(images))
    batches = images.split(batch_size)
    features = embed_batches(embedding, batches, len(images), description or f"embedding with {embedding.name}")
    if cache is not None and key is not None:
        cache.store(key, features)
    return features


@torch.no_grad()
def embed_batches(embedding: Embedding, batches: Iterable[Tensor], count: int, description: str) -> Tensor:
    """Features [N, dim], float32 on the CPU, of images that come in batches and need not fit into memory together.

    Args:
        embedding: what maps images to features, on its device.
        batches: uint8 [n, C, H, W], or points; of differing sizes n, H, W if need be. Ranks that are `together` share
            those of a sequence.
        count: images in all; fewer may come.
        description: text of the progress bar.

    Raises:
        NotFiniteError: for NaN or infinity in features, naming the image.
        ValueError: if no image comes.
    """
    features = torch.empty(0)
    done = 0
    unit = "points" if embedding.takes_points else "images"

    def embedded(batch: Tensor) -> Tensor:
        return embedding(batch.to(embedding.device)).cpu()

    parts = spread(embedded, batches) if isinstance(batches, Sequence) else map(embedded, batches)
    for part in track(parts, description, total=count, unit=unit, step=len):
        bad = next(_not_finite(part), None)
        if bad is not None:
            text = f"embedding {embedding.name} gives NaN or infinity for image {done + bad}"
            raise NotFiniteError(f"{text}; check its weights and dtype", done + bad)
        if done == 0:
            features = torch.empty(count, part.shape[1])
        features[done : done + len(part)] = part
        done += len(part)
    if done == 0:
        raise ValueError(f"no images to embed with {embedding.name}")
    return features[:done]


def _quantised(embedding: Embedding, images: Tensor) -> Tensor:
    if not images.is_floating_point():
        raise ValueError(f"embed takes uint8 or float images, got {images.dtype}")
    bad = next(_not_finite(images), None)
    if bad is not None:
        text = f"image {bad} holds NaN or infinity and embedding {embedding.name} has no feature for it"
        raise NotFiniteError(text, bad)
    refuse_grey_levels(images)
    seen = SeenRange(f"images to embed with {embedding.name}")
    seen.see(images)
    seen.refuse()
    return to_uint8(images)


def _points(embedding: Embedding, points: Tensor) -> Tensor:
    bad = next(_not_finite(points), None)
    if bad is not None:
        text = f"point {bad} holds NaN or infinity and embedding {embedding.name} has no feature for it"
        raise NotFiniteError(text, bad)
    return points


def _not_finite(rows: Tensor) -> Iterator[int]:
    """Indices of the rows that hold NaN or infinity."""
    finite = torch.isfinite(rows).flatten(1).all(1)
    yield from (~finite).nonzero().flatten().tolist()
