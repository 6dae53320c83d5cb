"""From an official pickle of StyleGAN2-ADA, or a run's checkpoint, to a file of networks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedgen.models.checkpoint_file import read_checkpoint, rebuild_model
from fedgen.models.require import require
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile, build_network
from fedgen.models.stylegan2.official.official_pickle import OfficialNetwork, read_official_pickle

_MAPPING = {
    "num_layers": "mapping_layers",
    "embed_features": "embed_features",
    "layer_features": "layer_features",
    "activation": "activation",
    "lr_multiplier": "mapping_lr",
}
_GENERATOR = {
    "z_dim": "latent_dim",
    "c_dim": "num_classes",
    "w_dim": "style_dim",
    "img_resolution": "image_size",
    "img_channels": "channels",
    "mapping_kwargs": {**_MAPPING, "w_avg_beta": "style_decay"},
    "synthesis_kwargs": {
        "channel_base": "channel_base",
        "channel_max": "channel_max",
        "num_fp16_res": "half_resolutions",
        "conv_clamp": "clamp",
        "architecture": "architecture",
        "resample_filter": "taps",
        "use_noise": "use_noise",
        "activation": "activation",
    },
}
_DISCRIMINATOR = {
    "c_dim": "num_classes",
    "img_resolution": "image_size",
    "img_channels": "channels",
    "architecture": "architecture",
    "channel_base": "channel_base",
    "channel_max": "channel_max",
    "num_fp16_res": "half_resolutions",
    "conv_clamp": "clamp",
    "cmap_dim": "condition_dim",
    "block_kwargs": {"activation": "activation", "resample_filter": "taps", "freeze_layers": "frozen_layers"},
    "mapping_kwargs": _MAPPING,
    "epilogue_kwargs": {
        "mbstd_group_size": "group_size",
        "mbstd_num_channels": "group_channels",
        "activation": "activation",
    },
}
_OFFICIAL_DEFAULTS = {"channel_base": 32768, "mapping_layers": 8}  # where they are not ours


def generator_settings(official: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `StyleGAN2Generator` from those of the official Generator.

    Raises:
        ValueError: for an argument that is not known, is missing, or contradicts another.
    """
    return _translate(official, _GENERATOR, "Generator")


def discriminator_settings(official: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `StyleGAN2Discriminator` from those of the official Discriminator.

    Raises:
        ValueError: for an argument that is not known, is missing, or contradicts another.
    """
    return _translate(official, _DISCRIMINATOR, "Discriminator")


def _translate(official: Mapping[str, Any], names: Mapping[str, Any], owner: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _collect(official, names, owner, found)
    missing = [name for name in ("img_resolution", "img_channels", "c_dim") if name not in official]
    require(not missing, f"the official {owner} has no {', '.join(missing)} among its arguments")
    found["num_classes"] = found["num_classes"] or None
    return _OFFICIAL_DEFAULTS | found


def _collect(official: Mapping[str, Any], names: Mapping[str, Any], where: str, found: dict[str, Any]) -> None:
    for key, value in official.items():
        require(key in names, f"the official {where} has an argument {key}={value!r}, which StyleGAN2 does not have")
        name = names[key]
        if isinstance(name, Mapping):
            require(isinstance(value, Mapping), f"the official {where} has {key}={value!r} where arguments belong")
            _collect(value, name, f"{where}'s {key}", found)
            continue
        require(
            found.get(name, value) == value,
            f"the official {where} has {key}={value!r}, and {found.get(name)!r} elsewhere; ours has one for all",
        )
        found[name] = value


def read_official_networks(path: str | Path) -> NetworkFile:
    """Generator, average and critic of an official pickle, in eval mode; nothing in the file can run.

    Its record says where they come from: the file's name, the augmentation's p, the training set's arguments.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another kind of file, damaged, or holds networks that ours do not cover.
    """
    found = read_official_pickle(path)
    record = {"source": Path(path).name, "augment_p": found.augment_p, "training_set": _described(found.training_set)}
    return NetworkFile(
        generator=_rebuild(found.generator, "Generator", StyleGAN2Generator, generator_settings, path),
        generator_ema=_rebuild(found.generator_ema, "Generator", StyleGAN2Generator, generator_settings, path),
        critic=_rebuild(found.discriminator, "Discriminator", StyleGAN2Discriminator, discriminator_settings, path),
        record=record,
    )


def read_trained_networks(path: str | Path) -> NetworkFile:
    """Generator, average and critic of a run's checkpoint, with the settings they were trained with.

    Its record says how far: rounds, and thousands of real images that a client was shown.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no checkpoint of a StyleGAN2, or damaged.
    """
    checkpoint = read_checkpoint(path)
    description = checkpoint.get("hyper_parameters", {}).get("generator")
    require(
        isinstance(description, Mapping) and str(description.get("class_path")).endswith(".StyleGAN2Generator"),
        f"{path} is no checkpoint of a StyleGAN2: it describes no generator of it",
    )
    require("epoch" in checkpoint, f"{path} is damaged: it does not say how many rounds it has behind it")
    from fedgen.models.stylegan2.stylegan2 import StyleGAN2  # a LightningModule, which official networks do not need

    model = rebuild_model(StyleGAN2, path)
    return model.as_file({"source": Path(path).name, "rounds": checkpoint["epoch"] + 1, "kimg": model.clock.kimg})


def _rebuild(
    network: OfficialNetwork | None,
    class_name: str,
    kind: type[nn.Module],
    translate: Callable[[Mapping[str, Any]], dict[str, Any]],
    path: str | Path,
) -> Any:
    if network is None:
        return None
    require(
        network.class_name == class_name,
        f"{path}: its network is a {network.class_name}, not a {class_name}: other code made it; convert it there",
    )
    try:
        settings = translate(network.settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    state: Mapping[str, Tensor] = network.state
    return build_network(kind, settings, state, f"{path}: its {class_name}").eval()


def _described(training_set: dict[str, Any] | None) -> dict[str, Any] | None:
    """The data set's arguments without its path, which is of somebody's machine."""
    return None if training_set is None else {k: v for k, v in training_set.items() if k != "path"}
