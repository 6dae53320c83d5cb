"""Embeddings by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedgen.embeddings.base import Embedding
from fedgen.embeddings.efficientnet_lite0 import EfficientNetLite0
from fedgen.embeddings.fidelity import (
    CLEAN,
    CLIP_NAMES,
    CMMD,
    DGM_EVAL,
    DINOV2_DIMS,
    INCEPTION,
    UNIT,
    load_clip,
    load_dinov2,
    load_inception,
    load_vgg16,
)
from fedgen.embeddings.mnist_classifier import NAME as MNIST_CLASSIFIER
from fedgen.embeddings.mnist_classifier import MNISTClassifier, options_in
from fedgen.embeddings.module import ModuleEmbedding
from fedgen.embeddings.pixels import Identity, Pixels

WITHOUT_WEIGHTS: dict[str, Callable[[], Embedding]] = {"pixels": Pixels, "identity": Identity}

WITH_WEIGHTS: dict[str, Callable[..., Embedding]] = {
    "efficientnet-lite0": EfficientNetLite0,
    MNIST_CLASSIFIER: MNISTClassifier,
    INCEPTION: load_inception,
    "vgg16": load_vgg16,
    **{name: partial(load_clip, name) for name in CLIP_NAMES},
    **{name: partial(load_dinov2, name) for name in DINOV2_DIMS},
}


def _inception_options(suffix: str) -> dict[str, Any]:
    layer = suffix.removesuffix(CLEAN).removesuffix("-") if suffix.endswith(CLEAN) else suffix
    return ({"layer": layer} if layer else {}) | ({"resize": CLEAN} if suffix.endswith(CLEAN) else {})


def _clip_options(suffix: str) -> dict[str, Any]:
    resized, unit = suffix.startswith(CMMD), suffix.endswith(UNIT)
    options = ({"resize": CMMD} if resized else {}) | ({"unit_length": True} if unit else {})
    return options if suffix == "-".join([*([CMMD] if resized else []), *([UNIT] if unit else [])]) else {}


# Names of stored scores load again: `efficientnet-lite0-224` is efficientnet-lite0 with size=224.
SUFFIXES: dict[str, Callable[[str], dict[str, Any]]] = {
    "efficientnet-lite0": lambda suffix: {"size": int(suffix)} if suffix.isdigit() else {},
    MNIST_CLASSIFIER: options_in,
    INCEPTION: _inception_options,
    "vgg16": lambda suffix: {"layer": suffix},
    **dict.fromkeys(CLIP_NAMES, _clip_options),
    **dict.fromkeys(DINOV2_DIMS, lambda suffix: {"resize": DGM_EVAL} if suffix == DGM_EVAL else {}),
}


def embedding_names() -> list[str]:
    """The names `load_embedding` knows, in alphabetical order."""
    return sorted([*WITH_WEIGHTS, *WITHOUT_WEIGHTS])


def load_embedding(
    name_or_module: str | Mapping[str, Any] | nn.Module, weights: str | Path | None = None, **options: Any
) -> Embedding:
    """The frozen embedding of a name, or of any module.

    Args:
        name_or_module: a name (`embedding_names()`), optionally with what stored scores write behind it
            (`efficientnet-lite0-224`, `inception-v3-compat-192`, `inception-v3-compat-clean-fid`); or a module, wrapped
            by `ModuleEmbedding`; an `Embedding` is returned as it is; or, as recipes give it, all arguments under their
            names, the name's being "name".
        weights: a local file of weights; by default those installed with a package, downloaded, or, for
            classifier-mnist5k, trained on first use.
        options: arguments of the embedding: `size` (efficientnet-lite0), `layer` (classifier-mnist5k,
            inception-v3-compat, vgg16), `seed` (classifier-mnist5k), `resize` (inception-v3-compat, clip-*, dinov2-*),
            `unit_length` (clip-*), `dtype` (inception-v3-compat, vgg16, clip-*, dinov2-*), `repo` (dinov2-*), those of
            `ModuleEmbedding` for a module.

    Raises:
        ValueError: for an unknown name or option.
    """
    if isinstance(name_or_module, Mapping):
        given = {**name_or_module, **options}
        if "name" not in given:
            raise ValueError(f"an embedding given by options needs its name, got {sorted(given)}")
        return load_embedding(given.pop("name"), weights=given.pop("weights", weights), **given)
    if isinstance(name_or_module, Embedding):
        if weights is not None or options:
            raise ValueError(f"{name_or_module.name} is an embedding already; pass weights and options when it is made")
        return name_or_module
    if isinstance(name_or_module, nn.Module):
        return _made("the module", ModuleEmbedding, name_or_module, weights=weights, **options)
    name, options = _with_suffix(str(name_or_module), options)
    if name in WITHOUT_WEIGHTS:
        if weights is not None:
            raise ValueError(f"embedding {name} has no weights; leave weights={str(weights)!r} out")
        return _made(name, WITHOUT_WEIGHTS[name], **options)
    if name not in WITH_WEIGHTS:
        raise ValueError(_unknown(name))
    return _made(name, WITH_WEIGHTS[name], weights=weights, **options)


def network_of(name: str) -> str:
    """The network that a stored name stands for, whatever its size, layer or seed: "inception-v3-compat" for
    "inception-v3-compat-192"; a name that is nobody's here is its own."""
    return _with_suffix(name, {})[0]


def _made(title: str, factory: Callable[..., Embedding], /, *args: Any, **options: Any) -> Embedding:
    allowed = [key for key in inspect.signature(factory).parameters if key not in ("name", "module")]
    if isinstance(factory, type) and issubclass(factory, ModuleEmbedding):
        allowed.append("name")
    for option in options:
        if option not in allowed:
            known = ", ".join(key for key in allowed if key != "weights") or "none"
            raise ValueError(f"embedding {title} has no option {option!r}; its options: {known}")
    return factory(*args, **options)


def _with_suffix(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for base, options_of in SUFFIXES.items():
        suffix = name.removeprefix(f"{base}-")
        found = options_of(suffix) if suffix != name else {}
        if found and not found.keys() & options.keys():
            return base, {**options, **found}
    return name, options


def _unknown(name: str) -> str:
    names = embedding_names()
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    rest = ", ".join([*close, *(other for other in names if other not in close)])
    return f"unknown embedding {name!r}; {hint}known: {rest}"
