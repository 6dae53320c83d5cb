"""Embeddings by name."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedgen import seeds
from fedgen.class_paths import gives, import_by_path, is_class_path
from fedgen.embeddings.backbones import load_timm, load_transformers
from fedgen.embeddings.base import Embedding, Identity, ModuleEmbedding, Pixels
from fedgen.embeddings.chemnet import ChemNet
from fedgen.embeddings.classifiers import MNISTClassifier
from fedgen.embeddings.efficientnet_lite0 import EfficientNetLite0
from fedgen.embeddings.fidelity import load_clip, load_dinov2, load_inception, load_vgg16
from fedgen.embeddings.names import (
    CLIP_NAMES,
    DINOV2_DIMS,
    INCEPTION,
    MNIST_CLASSIFIER,
    TIMM,
    TRANSFORMERS,
    split_options,
    with_suffix,
)
from fedgen.embeddings.text_bytes import TextBytes

WITHOUT_WEIGHTS: dict[str, Callable[..., Embedding]] = {"pixels": Pixels, "identity": Identity, "bytes": TextBytes}

WITH_WEIGHTS: dict[str, Callable[..., Embedding]] = {
    "efficientnet-lite0": EfficientNetLite0,
    "chemnet": ChemNet,
    MNIST_CLASSIFIER: MNISTClassifier,
    INCEPTION: load_inception,
    "vgg16": load_vgg16,
    **{name: partial(load_clip, name) for name in CLIP_NAMES},
    **{name: partial(load_dinov2, name) for name in DINOV2_DIMS},
}

# what a name begins with -> how the rest of it is loaded
PACKAGES: dict[str, Callable[..., Embedding]] = {TIMM: load_timm, TRANSFORMERS: load_transformers}


def embedding_names() -> list[str]:
    """The names `load_embedding` knows, in alphabetical order."""
    return sorted([*WITH_WEIGHTS, *WITHOUT_WEIGHTS])


def load_embedding(
    name_or_module: str | Mapping[str, Any] | nn.Module, weights: str | Path | None = None, **options: Any
) -> Embedding:
    """The frozen embedding of a name, or of any module.

    Args:
        name_or_module: one of
            - a name (`embedding_names()`), optionally with what stored scores write behind it
              (`efficientnet-lite0-224`, `inception-v3-compat-192`, `inception-v3-compat-clean-fid`);
            - "timm/NAME" or "transformers/NAME", a network of those packages;
            - the class path of a torch module, "my_package.MyEmbedding", or of a function annotated as returning one,
              "torchvision.models.resnet18". It is made with the global generators at one seed, so that weights that
              nothing is loaded into are the same in every process;
            - a module, wrapped by `ModuleEmbedding`; an `Embedding` is returned as it is;
            - as recipes give them, all arguments under their names: {"name": ..., options}, or
              {"class_path": ..., "init_args": {...}, options of `ModuleEmbedding`}.
        weights: a local file of weights; by default those that come with fedgen, downloaded, or, for
            classifier-mnist5k, trained on first use.
        options: arguments of the embedding: `size` (efficientnet-lite0), `layer` (classifier-mnist5k,
            inception-v3-compat, vgg16), `seed` (classifier-mnist5k), `resize` (inception-v3-compat, clip-*, dinov2-*),
            `unit_length` (clip-*), `dtype` (inception-v3-compat, vgg16, clip-*, dinov2-*), `repo` (dinov2-*), those of
            `ModuleEmbedding` for a module, `size` (timm/..., transformers/...), `unit_length` (transformers/...).

    Raises:
        ValueError: for an unknown name or option, or a class path of nothing, or of no module.

    Examples:
        >>> import torch
        >>> from fedgen import load_embedding
        >>> embedding = load_embedding(torch.nn.Flatten())
        >>> embedding(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2, 64])
    """
    if isinstance(name_or_module, Mapping):
        given = {**name_or_module, **options}
        if "class_path" in given:
            return _of_class(given.pop("class_path"), given.pop("init_args", None), {"weights": weights, **given})
        if "name" not in given:
            raise ValueError(f"an embedding given by options needs its name or class_path, got {sorted(given)}")
        return load_embedding(given.pop("name"), weights=given.pop("weights", weights), **given)
    if isinstance(name_or_module, Embedding):
        if weights is not None or options:
            raise ValueError(f"{name_or_module.name} is an embedding already; pass weights and options when it is made")
        return name_or_module
    if isinstance(name_or_module, nn.Module):
        return _made("the module", ModuleEmbedding, name_or_module, weights=weights, **options)
    for prefix, load in PACKAGES.items():
        if str(name_or_module).startswith(prefix):
            base, found = split_options(str(name_or_module).removeprefix(prefix))
            return _made(str(name_or_module), partial(load, base), **{**found, "weights": weights, **options})
    if is_class_path(str(name_or_module)):
        return _of_class(str(name_or_module), None, {"weights": weights, **options})
    name, options = with_suffix(str(name_or_module), options)
    if name in WITHOUT_WEIGHTS:
        if weights is not None:
            raise ValueError(f"embedding {name} has no weights; leave weights={str(weights)!r} out")
        return _made(name, WITHOUT_WEIGHTS[name], **options)
    if name not in WITH_WEIGHTS:
        raise ValueError(_unknown(name))
    return _made(name, WITH_WEIGHTS[name], weights=weights, **options)


def _of_class(path: str, init_args: Mapping[str, Any] | None, options: dict[str, Any]) -> Embedding:
    """The embedding of a class path; options are those of `ModuleEmbedding`, unless it is an embedding already."""
    found = import_by_path(path)
    if not gives(found, nn.Module):
        kinds = "a torch.nn.Module, or a function annotated as returning one"
        raise ValueError(f"an embedding's class path must be {kinds}; {path} is {found!r}")
    own = {"weights": options["weights"]} if options["weights"] is not None else {}
    arguments = dict(init_args or {})
    if gives(found, Embedding):
        arguments |= own
        options = {key: value for key, value in options.items() if key != "weights"}
    else:
        options = {"name": path.rsplit(".", 1)[1]} | options
    signature = inspect.signature(found)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(f"embedding {path}: {error}; its init_args: {known}") from error
    with seeds.isolated():
        seeds.seed_all(0, "embedding", path)
        made = found(**arguments)
    return load_embedding(made, **options)


def _made(title: str, factory: Callable[..., Embedding], /, *args: Any, **options: Any) -> Embedding:
    allowed = [key for key in inspect.signature(factory).parameters if key not in ("name", "module")]
    if isinstance(factory, type) and issubclass(factory, ModuleEmbedding):
        allowed.append("name")
    for option in options:
        if option not in allowed:
            known = ", ".join(key for key in allowed if key != "weights") or "none"
            raise ValueError(f"embedding {title} has no option {option!r}; its options: {known}")
    return factory(*args, **options)


def _unknown(name: str) -> str:
    names = embedding_names()
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    rest = ", ".join([*close, *(other for other in names if other not in close)])
    more = "timm/NAME, transformers/NAME, and the class path of any torch module, my_package.MyEmbedding"
    return f"unknown embedding {name!r}; {hint}known: {rest}; {more}"
