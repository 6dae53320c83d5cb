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
from fedgen.models.stylegan2.official.official_settings import discriminator_settings, generator_settings


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
