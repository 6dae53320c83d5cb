"""Arguments of the official StyleGAN2-ADA networks as arguments of ours."""

from collections.abc import Mapping
from typing import Any

from fedgen.models.require import require

_GENERATOR = {
    "z_dim": "latent_dim",
    "c_dim": "num_classes",
    "w_dim": "style_dim",
    "img_resolution": "image_size",
    "img_channels": "channels",
    "mapping_kwargs": {
        "num_layers": "mapping_layers",
        "embed_features": "embed_features",
        "layer_features": "layer_features",
        "activation": "activation",
        "lr_multiplier": "mapping_lr",
        "w_avg_beta": "style_decay",
    },
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
    "mapping_kwargs": {
        "num_layers": "mapping_layers",
        "embed_features": "embed_features",
        "layer_features": "layer_features",
        "activation": "activation",
        "lr_multiplier": "mapping_lr",
    },
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
