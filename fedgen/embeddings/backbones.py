"""Image backbones of timm and of transformers by name, where those packages are installed."""

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedgen import seeds
from fedgen.data.optional_attributes import optional
from fedgen.embeddings.base import ANTIALIASED, Embedding, fitted, load_into, read_state
from fedgen.embeddings.names import SIZE, TIMM, TRANSFORMERS, UNIT
from fedgen.io.tensor_files import copied_settings, load_transformer

PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # its numbers for ways to resample
PROJECTED = "VisionModelWithProjection"  # ends the names of transformers' image towers that CLIP's features come out of


class Backbone(Embedding):
    """Features of an image network, of images that are resized and normalised as it expects.

    Whole images are resized to `size` x `size` (antialiased, nothing is cut off), clipped to the grey levels 0..255,
    divided by 255, and normalised by colour.

    Args:
        network: normalised images float [N, 3, size, size] to features [N, dim].
        name: what stored scores call it, without the size.
        size: pixels a side.
        own_size: the network's own; another becomes part of the name.
        mean: of the colours, three numbers in [0, 1].
        std: likewise.
        resample: "bilinear", "bicubic" or "nearest".
        layer: what of the network the features are.
        unit_length: whether features are divided by their length; then the name ends in "@unit".
        texts: texts to their features [N, dim], of a model of images and texts.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        size: int,
        own_size: int,
        mean: list[float],
        std: list[float],
        resample: str,
        layer: str,
        unit_length: bool = False,
        texts: Callable[[Sequence[str]], Tensor] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        if len(mean) != 3 or len(std) != 3 or not all(value > 0 for value in std):
            raise ValueError(f"{name} normalises by mean {mean} and std {std}; three colours are known here")
        antialias = " antialiased" if resample in ANTIALIASED else ""
        settings = {"resize": f"{resample}{antialias}", "size": size, "mean": mean, "std": std, "layer": layer}
        settings |= {"unit_length": True} if unit_length else {}
        full_name = SIZE.join([name, *([str(size)] if size != own_size else []), *([UNIT] if unit_length else [])])
        super().__init__(full_name, None, network, 3, settings)
        self.size, self.mean, self.std, self.resample, self.unit_length = size, mean, std, resample, unit_length
        self._texts, self.takes_texts = texts, texts is not None
        with torch.no_grad():  # the dim, and whether the network takes this size
            self(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=self.device))

    def text_features(self, texts: Sequence[str]) -> Tensor:
        if self._texts is None:
            return super().text_features(texts)
        with torch.no_grad():
            found = self._texts(texts).to(self.device)
        return found / found.norm(dim=1, keepdim=True) if self.unit_length else found

    def features(self, levels: Tensor) -> Tensor:
        levels = fitted(levels, self.size, self.resample).clamp(0, 255)
        mean, std = (levels.new_tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.std))
        found: Tensor = self.network((levels / 255 - mean) / std)
        return found / found.norm(dim=1, keepdim=True) if self.unit_length else found


def load_timm(name: str, weights: str | Path | None = None, size: int | None = None) -> Backbone:
    """The pooled features of a timm network, `timm/resnet18` or `timm/resnet18.a1_in1k`, under its eval settings."""
    timm = _package("timm", f"{TIMM}{name}")
    if weights is None and ":" in name:
        raise ValueError(f"embedding {TIMM}{name}: timm may unpickle its weights; pass weights=PATH of a .safetensors")
    try:
        with seeds.isolated():
            network = timm.create_model(name, pretrained=weights is None, num_classes=0)
    except RuntimeError as error:
        raise ValueError(f"embedding {TIMM}{name}: {error}; timm.list_models() has the names") from error
    if weights is not None:
        heads = network.pretrained_cfg.get("classifier") or ()
        heads = (heads,) if isinstance(heads, str) else heads
        state = {key: value for key, value in read_state(weights).items() if key.rsplit(".", 1)[0] not in heads}
        load_into(network, state, str(weights))
    config = timm.data.resolve_model_data_config(network)
    own = int(config["input_size"][-1])
    mean, std = list(config["mean"]), list(config["std"])
    return Backbone(network, f"{TIMM}{name}", size or own, own, mean, std, config["interpolation"], "pooled")


def load_transformers(
    name: str, weights: str | Path | None = None, size: int | None = None, unit_length: bool = False
) -> Backbone:
    """The pooled image features of a transformers model, `transformers/facebook/dinov2-small`, or of a local folder."""
    transformers = _package("transformers", f"{TRANSFORMERS}{name}")
    source = str(weights or name)
    try:
        processor, network = _load(transformers, source)
    except Exception as error:  # settings from files may fail in any way
        reason = " ".join(str(error).split())
        needed = "needs config.json, model.safetensors and preprocessor_config.json"
        raise ValueError(f"embedding {TRANSFORMERS}{name} {needed} in {source}: {reason}") from error
    own, mean, std, resample = _processing(processor, name)
    features = _ImageFeatures(network.float())
    form = f"{TRANSFORMERS}{name}", size or own, own, mean, std, resample, features.layer, unit_length
    return Backbone(features, *form, _texts_of(transformers, network, source))


def _load(transformers: Any, source: str) -> tuple[Any, Any]:
    """The image processor and the network of a folder, or of a name on the hub."""
    with copied_settings(source) as place:
        processor = transformers.AutoImageProcessor.from_pretrained(place, trust_remote_code=False)
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    towers = [name for name in config.architectures or () if name.endswith(PROJECTED)]
    # AutoModel's class would leave an image tower's projection out
    kind = getattr(transformers, towers[0]) if towers else transformers.AutoModel
    return processor, load_transformer(kind, config, source, exact=False)


class _ImageFeatures(nn.Module):
    """The features of a transformers model of images [N, 3, H, W], as [N, dim]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.is_tower = type(model).__name__.endswith(PROJECTED)
        self.layer = "image features" if self.is_tower or hasattr(model, "get_image_features") else "pooled"

    def forward(self, images: Tensor) -> Tensor:
        if self.is_tower:
            return self.model(pixel_values=images).image_embeds
        compute = self.model.get_image_features if self.layer == "image features" else self.model
        return _pooled(compute(pixel_values=images))


def _pooled(found: Any) -> Tensor:
    """The features [N, dim] of a model's output: a tensor, its pooler's output, or its first token."""
    if isinstance(found, Tensor):
        return found.flatten(1)
    pooled: Tensor | None = getattr(found, "pooler_output", None)  # where the model has a pooler
    return found.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


def _texts_of(transformers: Any, model: Any, source: str) -> Callable[[Sequence[str]], Tensor] | None:
    """Texts to features, of a model that has them beside those of images; their tokenizer is read when it is needed."""
    if not hasattr(model, "get_text_features"):
        return None

    def features(texts: Sequence[str]) -> Tensor:
        try:
            with copied_settings(source) as place:
                tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers' default where its files are missing
                raise ValueError("it has no words")
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"embedding {TRANSFORMERS}{source}: its tokenizer cannot be loaded: {reason}") from error
        length = model.config.text_config.max_position_embeddings  # as SigLIP was trained; CLIP's are the same shorter
        padded = {"padding": "max_length", "max_length": length, "truncation": True, "return_tensors": "pt"}
        return _pooled(model.get_text_features(**tokenizer(list(texts), **padded).to(model.device)))

    return features


class ImageProcessor:
    """An image processor of transformers; each of its classes has some of these attributes.

    Attributes:
        crop_size: the side in pixels that is cut out, by "height" or "shortest_edge"; None if nothing is.
        size: the side that is resized to, likewise.
        rescale_factor: what grey levels are multiplied by.
        resample: Pillow's number for the way to resize.
        do_normalize: whether colours are normalised.
        do_rescale: whether `rescale_factor` is used.
    """

    crop_size: Any = None
    size: Any = None
    rescale_factor: float | None = None
    resample: int | None = None
    do_normalize: bool | None = False
    do_rescale: bool | None = False


def _processing(processor: Any, name: str) -> tuple[int, list[float], list[float], str]:
    """Size, mean, std and resampling of an image processor; ValueError for one that does something else."""
    own = {name: optional(processor, ImageProcessor, name) for name in ImageProcessor.__annotations__}
    found = [side for size in (own["crop_size"], own["size"]) for side in _sides(size)]
    factor, resample, normalises = own["rescale_factor"], own["resample"], own["do_normalize"] and own["do_rescale"]
    way = PILLOW.get(int(resample)) if resample is not None else None
    if not found or not normalises or way is None or abs((factor or 0) * 255 - 1) > 1e-6:
        has = {"size": str(own["size"]), "rescale_factor": factor, "do_normalize": bool(normalises), "resample": way}
        wrong = "its image processor must resize, divide by 255 and normalise"
        raise ValueError(
            f"embedding {TRANSFORMERS}{name}: {wrong}, and has {json.dumps(has)}; wrap the model in a module"
        )
    return found[0], list(processor.image_mean), list(processor.image_std), way


def _sides(size: Any) -> list[int]:
    """The side in pixels of a processor's size, if it says one."""
    keys = ("height", "shortest_edge")
    # a dictionary, or transformers' own SizeDict
    values = [size.get(key) if isinstance(size, dict) else getattr(size, key, None) for key in keys]
    return [int(value) for value in values if value]


def _package(package: str, embedding: str) -> ModuleType | Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ValueError(f"embedding {embedding} needs the package {package}: pip install {package}") from error
