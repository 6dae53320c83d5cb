"""Many images to features, in batches."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from fedgen.data.lazy_examples import CHUNK, LazyInputs
from fedgen.data.text import encode_all
from fedgen.embeddings.base import Embedding
from fedgen.images import SeenRange, refuse_grey_levels, to_uint8
from fedgen.io.files import atomic_write, require_writable
from fedgen.io.tensor_files import hash_chunks, hash_tensors, read_safetensors
from fedgen.own_code import warn
from fedgen.progress import track
from fedgen.ranks import agreed, spread


class FeatureCache:
    """A folder of features, one safetensors file per images and embedding.

    The key hashes the images' bytes, shape and dtype and the embedding's fingerprint, so other images, weights, resize
    or layer never find each other's features. Entries are written atomically and carry a checksum; a damaged one is
    reported and computed again. Several processes may share a folder.

    Raises:
        PermissionError: if the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = require_writable(folder)

    def key(self, images: Tensor | LazyInputs | str, embedding: Embedding, computation: str = "") -> str:
        """A hash (32 hex digits) of images, or a hash over them, embedding and computation (batch size, device).

        Images on disk are known by the identity that their data set gives them, else by their bytes, which are read.
        """
        text = f"{embedding.fingerprint()} {computation}"
        if isinstance(images, LazyInputs):
            if (known := images.identity()) is None:
                chunks = track(images.split(CHUNK), f"hashing {images.reader.name}", len(images), "images", step=len)
                return hash_chunks("images", images.dtype, images.shape, chunks, text)
            images = known
        if isinstance(images, str):
            return hash_tensors((), f"{text} of {images}")
        return hash_tensors([("images", images)], text)

    def path(self, key: str) -> Path:
        """The file that holds, or would hold, the features of a key."""
        return self.folder / f"{key}.safetensors"

    def load(self, key: str) -> Tensor | None:
        """The features [N, dim] stored under a key; None if there are none, or, with a warning, if they are damaged."""
        path = self.path(key)
        try:
            tensors, metadata = read_safetensors(path)
            written = {"key": key, "checksum": hash_tensors(tensors.items())}
            if written.items() <= metadata.items():
                return tensors["features"]
            reason = "its checksum does not match"
        except FileNotFoundError:
            return None
        except ValueError as error:
            reason = str(error)
        warn(f"{path} is damaged ({reason}) and is computed again")
        return None

    def store(self, key: str, features: Tensor) -> None:
        """Writes features under a key; a full disk causes only a warning."""
        features = features.detach().cpu().contiguous()
        data = save({"features": features}, {"key": key, "checksum": hash_tensors([("features", features)])})
        try:
            with atomic_write(self.path(key)) as file:
                file.write(data)
        except OSError as error:
            warn(f"cannot store features in {self.folder}: {error.strerror}; going on without")


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
    images: Tensor | LazyInputs | list[str],
    batch_size: int = 64,
    device: torch.device | str | None = None,
    description: str | None = None,
    cache: FeatureCache | None = None,
) -> Tensor:
    """Features [N, dim], float32 on the CPU, of samples in memory, or read in batches; no gradient.

    Args:
        embedding: what maps images to features.
        images: uint8 [N, C, H, W]; or floats [N, C, H, W] in [-1, 1], quantised first; or floats of another rank
            [N, ...] for an embedding of these; or strings, or their tokens int64 [N, T]; or `LazyInputs` of these.
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
    if isinstance(images, list):
        images = encode_all(images)
    embedding.check(tuple(images.shape))
    if len(images) == 0:
        raise ValueError(f"no images to embed with {embedding.name}: got shape {list(images.shape)}")
    if isinstance(images, Tensor) and images.dtype != torch.uint8:
        images = _prepared(embedding, images)
    if device is not None:
        embedding.to(device)
    description = description or f"embedding with {embedding.name}"
    if cache is None:
        return embed_batches(embedding, images.split(batch_size), len(images), description)
    key = cache.key(images, embedding, f"batch {batch_size} on {embedding.device.type}")
    stored = cache.load(key)
    if agreed(stored is not None):  # ranks of machines that share no folder may differ
        assert stored is not None
        return embedding.checked(stored, len(images))
    features = embed_batches(embedding, images.split(batch_size), len(images), description)
    cache.store(key, features)
    return features


@torch.no_grad()
def embed_batches(embedding: Embedding, batches: Iterable[Tensor], count: int, description: str) -> Tensor:
    """Features [N, dim], float32 on the CPU, of images that come in batches and need not fit into memory together."""
    features = torch.empty(0)
    done = 0
    unit = embedding.kind

    def embedded(batch: Tensor) -> Tensor:
        return embedding(batch.to(embedding.device)).cpu()

    parts = spread(embedded, batches) if isinstance(batches, Sequence) else map(embedded, batches)
    for part in track(parts, description, total=count, unit=unit, step=len):
        if (bad := _not_finite(part)) is not None:
            text = f"embedding {embedding.name} gives NaN or infinity for image {done + bad}"
            raise NotFiniteError(f"{text}; check its weights and dtype", done + bad)
        if done == 0:
            features = torch.empty(count, part.shape[1])
        features[done : done + len(part)] = part
        done += len(part)
    if done == 0:
        raise ValueError(f"no images to embed with {embedding.name}")
    return features[:done]


def _prepared(embedding: Embedding, images: Tensor) -> Tensor:
    """Float images as uint8, all others as they are."""
    if embedding.kind == "texts":
        return images
    if not embedding.takes_floats and not images.is_floating_point():
        raise ValueError(f"embed takes uint8 or float images, got {images.dtype}")
    if (bad := _not_finite(images)) is not None:
        text = f"{'sample' if embedding.takes_floats else 'image'} {bad} holds NaN or infinity"
        raise NotFiniteError(f"{text} and embedding {embedding.name} has no feature for it", bad)
    if embedding.takes_floats:
        return images
    refuse_grey_levels(images)
    seen = SeenRange(f"images to embed with {embedding.name}")
    seen.see(images)
    seen.refuse()
    return to_uint8(images)


def _not_finite(rows: Tensor) -> int | None:
    found = (~torch.isfinite(rows).flatten(1).all(1)).nonzero()
    return int(found[0]) if len(found) else None
