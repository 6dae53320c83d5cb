"""The clients of a recipe or of a run folder, without its model and its trainer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser

from fedgen.class_paths import load_classes
from fedgen.evaluation.runs.run_files import PARTITION, RECIPE, is_python_run
from fedgen.io.files import read_yaml
from fedgen.recipe.recipe_errors import explain
from fedgen.recipe.recipe_keys import check_arguments, check_parts
from fedgen.recipe.recipe_objects import instantiate

if TYPE_CHECKING:  # a file that is no recipe is refused without Lightning
    from fedgen.clients import FederatedDataModule

OF_DATA = ("clients", "clients.partitions", "data", "embeddings")
"""The folders of fedgen that have classes for a recipe's data."""


def load_federation(source: str | Path, overrides: Sequence[str] = ()) -> "FederatedDataModule":
    """The data module of a recipe, whose clients are those that `fedgen fit` would train with its seed.

    Only the recipe's `data` and `seed_everything` are read, so that a file with nothing else in it will do.

    Args:
        source: a recipe; or a run folder, whose clients are those of its partition file.
        overrides: as for `fedgen fit`, "--data.SETTING=VALUE" and "--seed_everything=N"; of a run that was trained in
            Python "--data=my_module:make_data", a FederatedDataModule or a function without arguments that makes one.

    Raises:
        FileNotFoundError: if there is no such recipe.
        ValueError: if it cannot be read, has unknown keys, or has no clients; or for overrides of a run, which is over;
            for a run that was trained in Python without its data, with what its folder keeps.
    """
    source = Path(source)
    if is_python_run(source):
        return _of_python_run(source, overrides)
    path = source / RECIPE if source.is_dir() else source
    recipe = _read(path)
    if overrides and (source / PARTITION).exists():
        raise ValueError(f"{source} is a run, whose clients are dealt; leave {overrides[0]} out, or give its recipe")
    from fedgen.clients import FederatedDataModule
    from fedgen.evaluation.runs.rebuild import restore_clients
    from fedgen.seeds import isolated

    settings = _parse(path, recipe, overrides)
    own = settings.data.get("init_args", {})
    if "seed" in own and own["seed"] is None:
        # Lightning takes true and false too, and seeds with 0 or not at all; clients are then dealt by 0
        own["seed"] = 0 if isinstance(settings.seed_everything, bool) else settings.seed_everything
    with isolated():
        data = instantiate(_parser(), settings, path).data
    if not isinstance(data, FederatedDataModule):
        raise ValueError(f"the data of {path} is a {type(data).__name__}, which has no clients")
    restore_clients(data, source)
    return data


def _of_python_run(folder: Path, overrides: Sequence[str]) -> "FederatedDataModule":
    """The clients of a run that was trained in Python.

    Raises:
        ValueError: unless its data are named, and nothing else.
    """
    from fedgen.clients.partitions import load_partition
    from fedgen.evaluation.runs.rebuild import clients_given

    named = [text.removeprefix("--data=") for text in overrides if text.startswith("--data=")]
    if len(named) == 1 == len(overrides):
        return clients_given(folder, named[0])
    if others := [text for text in overrides if not text.startswith("--data=")]:
        raise ValueError(f"{folder} is a run trained in Python, which is over; leave {others[0]} out")
    saved = folder / PARTITION
    if saved.exists():
        kept = load_partition(saved)
        own = (
            f"its {PARTITION} says which of the {kept.num_examples} examples of {kept.data} each of its"
            f" {len(kept.names)} clients has (seed {kept.seed}), and not what they are"
        )
    else:
        own = f"it has no {PARTITION} either, which FederatedEvaluation writes, so its clients would be dealt again"
    raise ValueError(
        f"{folder} is of a run trained in Python, which keeps no recipe; {own}. Say what makes its data:"
        f" fedgen clients {folder} --data my_module:make_data (a FederatedDataModule, or a function without arguments;"
        " train.py:make_data for a file)"
    )


def _parser() -> ArgumentParser:
    from lightning.pytorch import LightningDataModule

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed_everything", type=bool | int, default=0)
    parser.add_subclass_arguments(LightningDataModule, "data", required=True, fail_untyped=False)
    return parser


def _parse(path: Path, recipe: dict[str, Any], overrides: Sequence[str]) -> Any:
    load_classes(OF_DATA)
    found = {key: recipe[key] for key in ("data", "seed_everything") if key in recipe}
    try:
        return _parser().parse_args([f"--config={json.dumps(found)}", *overrides])
    except (ArgumentError, TypeError) as error:
        raise ValueError(f"{path}: {explain(str(error))}") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a recipe, or the folder of a run made by `fedgen fit`")
    recipe = read_yaml(path)
    if not isinstance(recipe, dict) or not isinstance(recipe.get("data"), dict):
        raise ValueError(f"{path} is no recipe with clients: it has no 'data' with a class_path")
    check_parts(path, recipe)
    check_arguments(path, recipe)
    return recipe
