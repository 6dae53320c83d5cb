"""Embeddings of partitions that look at images, as recipes name them and as partition files describe them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.data.examples import Examples
from fedgen.embeddings import Embedding, FeatureCache, NotFiniteError, embed, load_embedding

EmbeddingLike = str | Mapping[str, Any] | Embedding
"""A name, options of `load_embedding` with the key "name", or an embedding."""


def features_of(examples: Examples, embedding: EmbeddingLike, cache: str | None, purpose: str) -> Tensor:
    """Features [N, D] of all examples.

    Raises:
        ValueError: for images or features that hold NaN or that the embedding cannot take, or features that are all
            alike; the message names the data, and the image where it is one, with its label and owner if it has any.
    """
    network = load_embedding(embedding)
    text = f"embedding {examples.name} with {network.name} to find {purpose}"
    try:
        features = embed(network, examples.inputs, description=text, cache=FeatureCache(cache) if cache else None)
    except NotFiniteError as error:
        raise ValueError(f"{examples.name}: {error}{whose(examples, error.place)}") from error
    except ValueError as error:
        raise ValueError(f"{examples.name}: {error}") from error
    if len(features) > 1 and bool((features == features[0]).all()):
        raise ValueError(
            f"{examples.name}: embedding {network.name} gives all {len(features)} examples the same features, which "
            f"leaves no {purpose} to find; use another embedding"
        )
    return features


def whose(examples: Examples, place: int) -> str:
    """An example's label and owner in brackets, " (of class '3', of owner 'writer 7')"; "" where it has neither."""
    known = [f"of class {examples.classes[int(examples.labels[place])]!r}"] if examples.is_labelled else []
    if examples.owners is not None:
        known.append(f"of owner {examples.owner_names[int(examples.owners[place])]!r}")
    return f" ({', '.join(known)})" if known else ""


def described(embedding: EmbeddingLike) -> Any:
    """The embedding for JSON: as it was given, one that is made by its name and fingerprint."""
    if isinstance(embedding, Embedding):
        return {"name": embedding.name, "fingerprint": embedding.fingerprint()}
    if isinstance(embedding, Mapping):
        return {key: str(value) if isinstance(value, Path) else value for key, value in embedding.items()}
    return embedding
