"""The clients of a recipe or of a run folder, without its model; a file that is not a recipe is refused quickly."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser

from fedgen.class_paths import load_classes
from fedgen.evaluation.runs.scores_file import PARTITION, RECIPE, is_python_run
from fedgen.recipe.recipe_files import read_given
from fedgen.recipe.recipe_objects import explain

if TYPE_CHECKING:  # Lightning is imported once the recipe has been read
    from fedgen.clients import FederatedDataModule

OF_DATA = ("clients", "clients.partitions", "data", "embeddings")
"""The folders of fedgen that have classes for a recipe's data."""


def load_federation(source: str | Path, overrides: Sequence[str] = ()) -> "FederatedDataModule":
    """The data module of a recipe, whose clients are those that `fedgen fit` would train with its seed."""
    source = Path(source)
    if is_python_run(source):
        return _of_python_run(source, overrides)
    path = source / RECIPE if source.is_dir() else source
    recipe = _read(path)
    if overrides and (source / PARTITION).exists():
        raise ValueError(f"{source} is a run, whose clients are known; leave {overrides[0]} out, or give its recipe")
    from lightning.pytorch import LightningDataModule

    from fedgen.evaluation.runs.rebuild import made

    load_classes(OF_DATA)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed_everything", type=bool | int, default=0)
    parser.add_subclass_arguments(LightningDataModule, "data", required=True, fail_untyped=False)
    found = {key: recipe[key] for key in ("data", "seed_everything") if key in recipe}
    try:
        settings = parser.parse_args([f"--config={json.dumps(found)}", *overrides])
    except (ArgumentError, TypeError) as error:
        raise ValueError(f"{path}: {explain(str(error))}") from error
    # Lightning takes true and false too, and seeds with 0 or not at all; partitions are then made with seed 0
    seed = 0 if isinstance(settings.seed_everything, bool) else settings.seed_everything
    return made(parser, settings, path, seed, source).data


def _of_python_run(folder: Path, overrides: Sequence[str]) -> "FederatedDataModule":
    from fedgen.clients.partitions import load_partition
    from fedgen.evaluation.runs.rebuild import clients_given

    if len(overrides) == 1 and overrides[0].startswith("--data="):
        return clients_given(folder, overrides[0].removeprefix("--data="))
    if others := [text for text in overrides if not text.startswith("--data=")]:
        raise ValueError(f"{folder} is a run trained in Python, which is over; leave {others[0]} out")
    if (saved := folder / PARTITION).exists():
        kept = load_partition(saved)
        own = (
            f"its {PARTITION} says which of the {kept.num_examples} examples of {kept.data} each of its"
            f" {len(kept.names)} clients has (seed {kept.seed}), and not what they are"
        )
    else:
        own = f"it has no {PARTITION} either, which FederatedEvaluation writes, so its partition would be another"
    raise ValueError(
        f"{folder} is of a run trained in Python, which keeps no recipe; {own}. Say what makes its data:"
        f" fedgen clients {folder} --data my_module:make_data (a FederatedDataModule, or a function without arguments;"
        " train.py:make_data for a file)"
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a recipe, or the folder of a run made by `fedgen fit`")
    recipe: dict[str, Any] = read_given(str(path))
    if not isinstance(recipe.get("data"), dict):
        raise ValueError(f"{path} is not a recipe with clients: it has no 'data' with a class_path")
    return recipe
