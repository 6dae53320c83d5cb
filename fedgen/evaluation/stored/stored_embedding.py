"""The embedding of stored sets: one for all that takes their images, or an error that names what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedgen.embeddings import Embedding, Pixels, load_embedding
from fedgen.evaluation.device import require_device
from fedgen.evaluation.stored.stored_sets import UNKNOWN, StoredSet, say_sizes

DEFAULT = "efficientnet-lite0"  # its weights install with the kit
FITTED = "images fitted to"
Named = str | nn.Module


@dataclass(frozen=True)
class StoredNetwork:
    """The embedding that is asked for.

    Args:
        embedding: a name, or an embedding; None for that of the files.
        weights: a local file of its weights.
        default: the name where images must be embedded and none is asked for.
        device: where it embeds.
    """

    embedding: Named | None
    weights: str | Path | None
    default: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The name that is asked for; "unknown" for none."""
        if isinstance(self.embedding, nn.Module):
            # embeddings have a name, anybody's module may
            return str(getattr(self.embedding, "name", type(self.embedding).__name__))
        return self.embedding or UNKNOWN

    def load(self) -> Embedding:
        """The embedding itself; ConnectionError if its weights cannot be downloaded, ValueError for no such device."""
        loaded = load_embedding(self.default if self.embedding is None else self.embedding, self.weights)
        return loaded.to(require_device(self.device))


@dataclass(frozen=True)
class EmbeddingIdentity:
    """The facts of an embedding; "unknown" where files do not say.

    Args:
        name: its name.
        fingerprint: hash of its weights and settings.
        resize: how images are brought to the network's size.
        source: who says so, for errors.
        settings: everything that decides the features.
    """

    name: str = UNKNOWN
    fingerprint: str = UNKNOWN
    resize: str = UNKNOWN
    source: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def settle_embedding(
    sets: Sequence[StoredSet], network: StoredNetwork, resize: int | None
) -> tuple[EmbeddingIdentity, Embedding | None]:
    """The embedding that all sets share, and the network where a set has images, which is loaded only then.

    Raises:
        ValueError: if two sets, or a set and the embedding, differ, or weights are given and nothing is to be embedded.
        ConnectionError: if weights cannot be downloaded.
    """
    loaded = None
    if any(stored.kind == "images" for stored in sets):
        loaded = network.load()
        before = f"; {FITTED} {resize}" if resize else ""
        how = f"{loaded.settings.get('resize', 'none')}{before}"
        identity = EmbeddingIdentity(
            loaded.name, loaded.fingerprint(), how, "the embedding asked for", dict(loaded.settings)
        )
    elif network.weights is not None:
        raise ValueError(f"weights={str(network.weights)!r} are of no use: no set has images that must be embedded")
    else:
        identity = EmbeddingIdentity(
            network.name, source="" if network.embedding is None else "the embedding asked for"
        )
    for stored in sets:
        identity = _agreed(identity, stored)
    return identity, loaded


def check_images(embedding: Embedding, sets: Sequence[StoredSet]) -> int:
    """The channels with which images are read; ValueError if the embedding does not take all images."""
    images = [stored.images for stored in sets if stored.images]
    channels = embedding.channels or (1 if all(part.grey for part in images) else 3)
    sizes = {size: example for part in images for size, example in part.sizes.items()}
    for size in sizes:
        embedding.check((2, channels, *size))
    if len(sizes) > 1 and isinstance(embedding, Pixels):
        raise ValueError(f"embedding pixels does not resize, so all images must have one size, got {say_sizes(sizes)}")
    return channels


def check_dims(dims: Mapping[Path, int]) -> None:
    """Raise ValueError unless the features of all paths have one length."""
    if len(set(dims.values())) > 1:
        first, *others = dims.items()
        path, dim = next(other for other in others if other[1] != first[1])
        raise ValueError(
            f"{path} has features of length {dim}, {first[0]} of length {first[1]}; use one embedding for all"
        )


def _agreed(identity: EmbeddingIdentity, stored: StoredSet) -> EmbeddingIdentity:
    """The identity with what a set adds to it."""
    said = stored.provenance
    found = {"name": said.embedding, "fingerprint": said.weights, "resize": said.resize}
    merged: dict[str, str] = {}
    for key, theirs in found.items():
        ours = getattr(identity, key)
        if UNKNOWN not in (ours, theirs) and ours != theirs:
            what = {"name": "embedding", "fingerprint": "weights (hash)", "resize": "resize"}[key]
            raise ValueError(
                f"{stored.path} was made with {what} {theirs!r}, but {identity.source} has {ours!r}; features compare"
                " within one embedding: make them again, or choose the embedding that the file names"
            )
        merged[key] = theirs if ours == UNKNOWN else ours
    known = identity.source or (str(stored.path) if said.embedding != UNKNOWN else "")
    return EmbeddingIdentity(**merged, source=known, settings=identity.settings)
