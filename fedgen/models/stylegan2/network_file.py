"""StyleGAN2's networks in a safetensors file, their settings in its metadata, and in official pickles.

The kit's format for weights, and what turns NVIDIA's networks into it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.io.files import parse_json
from fedgen.io.tensor_files import no_larger_than, read_safetensors, write_safetensors
from fedgen.models.networks.network import Network, construct
from fedgen.models.require import require
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.official_pickle import OfficialNetwork, read_official_pickle

FORMAT, VERSION = "fedgen-stylegan2", 1
_FREE = ("half_resolutions", "half", "channels_last", "frozen_layers")  # how to compute and train, not what
_KINDS: dict[str, type[Network]] = {
    "generator": StyleGAN2Generator,
    "generator_ema": StyleGAN2Generator,
    "critic": StyleGAN2Discriminator,
}


@dataclass
class NetworkFile:
    """Networks and what is known of them, in plain types."""

    generator: StyleGAN2Generator | None = None
    generator_ema: StyleGAN2Generator | None = None
    critic: StyleGAN2Discriminator | None = None
    training: dict[str, Any] = field(default_factory=dict)  # arguments of `StyleGAN2` beside the networks
    record: dict[str, Any] = field(default_factory=dict)  # where the weights come from

    @property
    def networks(self) -> dict[str, Network]:
        """Those that there are, by name."""
        found = {name: getattr(self, name) for name in _KINDS}
        return {name: network for name, network in found.items() if network is not None}

    def write(self, path: str | Path, half: bool = False) -> None:
        """Writes the file, atomically; weights rounded to float16 if `half`."""
        require(bool(self.networks), "there is no network to write")
        tensors, settings = {}, {}
        for name, network in self.networks.items():
            settings[name] = network.settings
            for key, value in network.state_dict().items():
                stored = value.detach().cpu().half() if half else value.detach().cpu()
                require(bool(stored.isfinite().all()), f"{name}.{key} is not finite{' in float16' if half else ''}")
                tensors[f"{name}.{key}"] = stored
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "settings": json.dumps(settings),
            "training": json.dumps(self.training),
            "record": json.dumps(self.record),
        }
        write_safetensors(path, tensors, metadata)

    @classmethod
    def read(cls, path: str | Path) -> "NetworkFile":
        """The networks of a file, in eval mode and float32."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}; `fedgen convert ffhq.pkl {path.stem}.safetensors` makes one")
        tensors, metadata = read_safetensors(path)
        require(
            metadata.get("format") == FORMAT,
            f"{path} is a safetensors file, but not of StyleGAN2 networks: its metadata name no {FORMAT}",
        )
        require(
            metadata.get("version") == str(VERSION),
            f"{path} has version {metadata.get('version')} of {FORMAT}; this fedgen reads {VERSION}",
        )
        try:
            parts = {name: parse_json(metadata[name]) for name in ("settings", "training", "record")}
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} has damaged metadata ({error!r})") from error
        require(all(isinstance(part, dict) for part in parts.values()), f"{path} has metadata that are no dictionary")
        found, settings = cls(training=parts["training"], record=parts["record"]), parts["settings"]
        require(set(settings) <= set(_KINDS), f"{path} names other networks than {', '.join(_KINDS)}")
        for name, arguments in settings.items():
            own = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}
            network = build_network(_KINDS[name], arguments, own, f"{path}: its {name}")
            setattr(found, name, network.eval())
        known = sum(len(network.state_dict()) for network in found.networks.values())
        require(len(tensors) == known, f"{path} holds {len(tensors)} tensors, of which its networks use {known}")
        return found


def take_weights(
    path: str | Path, generator: StyleGAN2Generator | None, critic: StyleGAN2Discriminator | None
) -> tuple[StyleGAN2Generator, StyleGAN2Discriminator, StyleGAN2Generator | None]:
    """Generator, critic and average (or None) of a file, ready to train; given ones must have its settings."""
    file = NetworkFile.read(path)
    source = file.generator or file.generator_ema
    if source is None:
        raise ValueError(f"{path} has no generator")
    if generator is None:
        generator = source
    else:
        _fill(generator, source, path, "generator")
    if critic is None:
        if file.critic is None:
            raise ValueError(f"{path} has no critic, which training needs: give one beside it")
        critic = file.critic
    elif file.critic is not None:
        _fill(critic, file.critic, path, "critic")
    return generator.train(), critic.train(), file.generator_ema


def _fill(network: Network, source: Network, path: str | Path, name: str) -> None:
    theirs, ours = source.settings, network.settings
    keys = [key for key in ours if key not in _FREE and theirs.get(key) != ours[key]]
    differs = "; ".join(f"{key} is {theirs.get(key)} there and {ours[key]} here" for key in keys)
    require(not keys, f"{path}: its {name} has other settings than the one that is to take its weights: {differs}")
    network.load_state_dict(source.state_dict())


def build_network(kind: type[nn.Module], arguments: Any, state: Mapping[str, Tensor], owner: str) -> nn.Module:
    """A network with its weights; memory is taken only once names and shapes are known to fit."""
    with torch.device("meta"), no_larger_than(state):
        planned = construct(kind, arguments, owner)
    _check_fit(planned, state, owner)
    network = construct(kind, arguments, owner)
    network.load_state_dict(state)
    return network


def _check_fit(network: nn.Module, state: Mapping[str, Tensor], owner: str) -> None:
    own = network.state_dict()
    missing, extra = [key for key in own if key not in state], [key for key in state if key not in own]
    require(not missing, f"{owner} lacks {len(missing)} tensors, the first: {missing[:1]}")
    require(not extra, f"{owner} has {len(extra)} tensors too many, the first: {extra[:1]}")
    for key, value in state.items():
        shapes = f"{list(value.shape)}, and its settings ask for {list(own[key].shape)}"
        require(value.shape == own[key].shape, f"{owner} has {key} of shape {shapes}")
        require(value.is_floating_point() and bool(value.isfinite().all()), f"{owner} has {key} that is not finite")


_MAPPING = {
    "num_layers": "mapping_layers",
    "embed_features": "embed_features",
    "layer_features": "layer_features",
    "activation": "activation",
    "lr_multiplier": "mapping_lr",
}
_GENERATOR: dict[str, Any] = {
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
_DISCRIMINATOR: dict[str, Any] = {
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


_OFFICIAL: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "Generator": (StyleGAN2Generator, _GENERATOR),
    "Discriminator": (StyleGAN2Discriminator, _DISCRIMINATOR),
}


def settings_of_official(official: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Arguments of our network from those of the official "Generator" or "Discriminator"."""
    found: dict[str, Any] = {}
    _collect(official, _OFFICIAL[name][1], name, found)
    missing = [key for key in ("img_resolution", "img_channels", "c_dim") if key not in official]
    require(not missing, f"the official {name} has no {', '.join(missing)} among its arguments")
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
    """Generator, average and critic of an official pickle, in eval mode; nothing in the file can run."""
    found, data = read_official_pickle(path), None
    if found.training_set is not None:  # whose path is of somebody's machine
        data = {key: value for key, value in found.training_set.items() if key != "path"}
    return NetworkFile(
        generator=_rebuild(found.generator, "Generator", path),
        generator_ema=_rebuild(found.generator_ema, "Generator", path),
        critic=_rebuild(found.discriminator, "Discriminator", path),
        record={"source": Path(path).name, "augment_p": found.augment_p, "training_set": data},
    )


def _rebuild(network: OfficialNetwork | None, name: str, path: str | Path) -> Any:
    if network is None:
        return None
    require(
        network.class_name == name,
        f"{path}: its network is a {network.class_name}, not a {name}: other code made it; convert it there",
    )
    try:
        settings = settings_of_official(network.settings, name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return build_network(_OFFICIAL[name][0], settings, network.state, f"{path}: its {name}").eval()
