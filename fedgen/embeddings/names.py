"""Names of embeddings, known without loading what they stand for: stored scores carry them."""

from collections.abc import Callable
from typing import Any

from fedgen.foreign_text import is_number

TIMM, TRANSFORMERS = "timm/", "transformers/"
SIZE = "@"  # between a name and a size that is not the network's own, or UNIT
MNIST_CLASSIFIER, SEED, LOGITS = "classifier-mnist5k", "seed", "logits"
INCEPTION = "inception-v3-compat"
CLIP_NAMES = tuple(
    f"clip-{model}"
    for model in ("rn50", "rn101", "rn50x4", "rn50x16", "rn50x64", "vit-b-32", "vit-b-16", "vit-l-14", "vit-l-14-336px")
)
DINOV2_DIMS = {"dinov2-vit-s-14": 384, "dinov2-vit-b-14": 768, "dinov2-vit-l-14": 1024, "dinov2-vit-g-14": 1536}
CLEAN = "clean-fid"
CMMD, DGM_EVAL = "cmmd", "dgm-eval"
UNIT = "unit"  # behind the name of features that are scaled to length 1


def network_of(name: str) -> str:
    """The network that a stored name stands for, whatever its size, layer or seed: "inception-v3-compat" for
    "inception-v3-compat-192"; an unknown name is returned as it is."""
    return split_options(name)[0] if name.startswith((TIMM, TRANSFORMERS)) else with_suffix(name, {})[0]


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """The name of a network, and the size and scaling to length 1 that a stored name carries behind it."""
    options: dict[str, Any] = {}
    base, _, last = name.rpartition(SIZE)
    if base and last == UNIT:
        name, options = base, {"unit_length": True}
        base, _, last = name.rpartition(SIZE)
    return (base, {"size": int(last)} | options) if base and is_number(last) else (name, options)


def with_suffix(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name without its suffix in stored scores, and the options with those that the suffix stands for."""
    for base, options_of in SUFFIXES.items():
        suffix = name.removeprefix(f"{base}-")
        found = options_of(suffix) if suffix != name else {}
        if found and not found.keys() & options.keys():
            return base, {**options, **found}
    return name, options


def _classifier_options(suffix: str) -> dict[str, Any]:
    """For "seed1-logits" {"seed": 1, "layer": "logits"}."""
    found: dict[str, Any] = {}
    for part in suffix.split("-"):
        if part == LOGITS:
            found["layer"] = LOGITS
        elif is_number(part.removeprefix(SEED)) and part.startswith(SEED):
            found["seed"] = int(part.removeprefix(SEED))
        else:
            return {}
    return found


def _inception_options(suffix: str) -> dict[str, Any]:
    layer = suffix.removesuffix(CLEAN).removesuffix("-") if suffix.endswith(CLEAN) else suffix
    return ({"layer": layer} if layer else {}) | ({"resize": CLEAN} if suffix.endswith(CLEAN) else {})


CLIP_OPTIONS: dict[str, dict[str, Any]] = {
    CMMD: {"resize": CMMD},
    UNIT: {"unit_length": True},
    f"{CMMD}-{UNIT}": {"resize": CMMD, "unit_length": True},
}

# Names of stored scores load again: `efficientnet-lite0-224` is efficientnet-lite0 with size=224.
SUFFIXES: dict[str, Callable[[str], dict[str, Any]]] = {
    "efficientnet-lite0": lambda suffix: {"size": int(suffix)} if is_number(suffix) else {},
    MNIST_CLASSIFIER: _classifier_options,
    INCEPTION: _inception_options,
    "vgg16": lambda suffix: {"layer": suffix},
    **dict.fromkeys(CLIP_NAMES, lambda suffix: CLIP_OPTIONS.get(suffix, {})),
    **dict.fromkeys(DINOV2_DIMS, lambda suffix: {"resize": DGM_EVAL} if suffix == DGM_EVAL else {}),
}
