"""StyleGAN2's networks in a safetensors file, their settings in its metadata: the kit's format for weights."""

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

FORMAT, VERSION = "fedgen-stylegan2", 1
_FREE = ("half_resolutions", "half", "channels_last", "frozen_layers")  # how to compute and train, not what
_KINDS: dict[str, type[nn.Module]] = {
    "generator": StyleGAN2Generator,
    "generator_ema": StyleGAN2Generator,
    "critic": StyleGAN2Discriminator,
}


@dataclass
class NetworkFile:
    """Networks and what is known of them.

    Attributes:
        generator: as trained.
        generator_ema: its moving average, which images are drawn from.
        critic: the discriminator.
        training: arguments of `StyleGAN2` beside the networks, plain types.
        record: where the weights come from, in words and numbers, plain types.
    """

    generator: StyleGAN2Generator | None = None
    generator_ema: StyleGAN2Generator | None = None
    critic: StyleGAN2Discriminator | None = None
    training: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Those that there are, by name."""
        found = {name: getattr(self, name) for name in _KINDS}
        return {name: network for name, network in found.items() if network is not None}

    def write(self, path: str | Path, half: bool = False) -> None:
        """Writes the file, atomically.

        Args:
            path: .safetensors.
            half: whether weights are rounded to float16, for half the size.

        Raises:
            ValueError: without a network, or with weights that are not finite, or too large for float16.
        """
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
        """The networks of a file, in eval mode and float32.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is none of this format, damaged, or its tensors do not fit its settings.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}; `fedgen convert ffhq.pkl {path.stem}.safetensors` makes one")
        tensors, metadata = read_safetensors(path)
        _check_format(path, metadata)
        try:
            parts = {name: parse_json(metadata[name]) for name in ("settings", "training", "record")}
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} has damaged metadata ({error!r})") from error
        found = cls(training=_dictionary(parts["training"], path), record=_dictionary(parts["record"], path))
        settings = _dictionary(parts["settings"], path)
        require(set(settings) <= set(_KINDS), f"{path} names other networks than {', '.join(_KINDS)}")
        for name, arguments in settings.items():
            own = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}
            network = build_network(_KINDS[name], arguments, own, f"{path}: its {name}")
            setattr(found, name, network.eval())
        known = sum(len(network.state_dict()) for network in found.networks.values())
        require(len(tensors) == known, f"{path} holds {len(tensors)} tensors, of which its networks use {known}")
        return found


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """In words, where two networks' settings differ in what their weights mean; "" where nowhere."""
    keys = [key for key in ours if key not in _FREE and theirs.get(key) != ours[key]]
    return "; ".join(f"{key} is {theirs.get(key)} there and {ours[key]} here" for key in keys)


def take_weights(
    path: str | Path, generator: StyleGAN2Generator | None, critic: StyleGAN2Discriminator | None
) -> tuple[StyleGAN2Generator, StyleGAN2Discriminator, StyleGAN2Generator | None]:
    """Generator, critic and the generator's average (if there is one) with the weights of a file, ready to train.

    Args:
        path: the file.
        generator: the network that takes them, whose settings must be the file's; the file's own by default.
        critic: likewise; needed if the file has none, and then as it is.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, has no generator or no critic, or a network has other settings.
    """
    file = NetworkFile.read(path)
    source = file.generator or file.generator_ema
    if source is None:
        raise ValueError(f"{path} has no generator")
    if generator is None:
        generator = source
    else:
        _fill(generator, source, path, "generator")
    if critic is None:
        require(file.critic is not None, f"{path} has no critic, which training needs: give one beside it")
        critic = file.critic
    elif file.critic is not None:
        _fill(critic, file.critic, path, "critic")
    assert critic is not None
    return generator.train(), critic.train(), file.generator_ema


def _fill(network: Network, source: Network, path: str | Path, name: str) -> None:
    differs = difference(source.settings, network.settings)
    require(not differs, f"{path}: its {name} has other settings than the one that is to take its weights: {differs}")
    network.load_state_dict(source.state_dict())


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    require(
        metadata.get("format") == FORMAT,
        f"{path} is a safetensors file, but not of StyleGAN2 networks: its metadata name no {FORMAT}",
    )
    require(
        metadata.get("version") == str(VERSION),
        f"{path} has version {metadata.get('version')} of {FORMAT}; this fedgen reads {VERSION}",
    )


def _dictionary(value: Any, path: Path) -> dict[str, Any]:
    require(isinstance(value, dict), f"{path} has metadata that are no dictionary")
    return value


def build_network(kind: type[nn.Module], arguments: Any, state: Mapping[str, Tensor], owner: str) -> nn.Module:
    """A network with its weights; memory is taken only once names and shapes are known to fit.

    Args:
        kind: its class.
        arguments: of its constructor.
        state: parameters and buffers, all of them and no others.
        owner: what it is called in messages.

    Raises:
        ValueError: if arguments or tensors do not fit.
    """
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
