"""Recipes that experiments train: what they say, refused before any training; and what is put in place of parts."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.io.files import read_yaml


def read_recipe(path: Path) -> Any:
    """Read what a recipe says, as plain types.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no YAML.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; run from the folder that holds recipes/, or say where by --recipe or --recipes"
        )
    return read_yaml(path)


def rounds_of(path: Path) -> int:
    """For how many rounds a recipe trains.

    Raises:
        FileNotFoundError: if there is no such recipe.
        ValueError: if it does not say.
    """
    return _number(path, "max_epochs, the rounds that it trains for", "trainer", "max_epochs")


def local_iterations(path: Path) -> int:
    """Rounds x communication interval of a recipe: what a client that is in every cohort trains.

    Raises:
        FileNotFoundError: if there is no such recipe.
        ValueError: if it does not train with FedAvgStrategy for a number of rounds.
    """
    return rounds_of(path) * interval_of(path)


def interval_of(path: Path) -> int:
    """The communication interval of a recipe.

    Raises:
        FileNotFoundError: if there is no such recipe.
        ValueError: if it does not train with FedAvgStrategy.
    """
    keys = ("trainer", "strategy", "init_args", "communication_interval")
    return _number(path, "the communication_interval of a FedAvgStrategy", *keys)


def cohort_of(path: Path) -> int:
    """The clients of a round of a recipe.

    Raises:
        FileNotFoundError: if there is no such recipe.
        ValueError: if its FedAvgStrategy does not say.
    """
    return _number(path, "the cohort_size of a FedAvgStrategy", "trainer", "strategy", "init_args", "cohort_size")


def _number(path: Path, what: str, *keys: str) -> int:
    found = read_recipe(path)
    try:
        for key in keys:
            found = found[key]
        return int(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must say {what} ({error!r})") from error


def fingerprints(recipes: Iterable[Path]) -> dict[str, str]:
    """Return by file name a hash of what each recipe says. Numbers depend on it, and not on comments or folders.

    Raises:
        FileNotFoundError: if one is not there.
        ValueError: if one is no YAML.
    """
    return {path.name: fingerprint(read_recipe(path)) for path in recipes}


def fingerprint(settings: Any) -> str:
    """A hash of settings, whatever their keys' order."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def start_of(recipe: Path) -> str:
    """Eight digits of a recipe's fingerprint, for the names of runs that go on from its own.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is no YAML.
    """
    return fingerprints([recipe])[recipe.name][:8]


def component(class_path: str, **options: Any) -> dict[str, Any]:
    """An object as recipes have it: its class path, and arguments where there are any."""
    return {"class_path": class_path, **({"init_args": options} if options else {})}


def embedded_loss(loss: Mapping[str, Any], embeddings: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """`generator_losses` as recipes have it: one loss in some embeddings, with more arguments of `EmbeddedLoss`."""
    return [component("fedgen.losses.EmbeddedLoss", loss=loss, embeddings=list(embeddings), **options)]
