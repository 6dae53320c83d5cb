"""The files of a run folder from which its model and its clients are made again."""

from pathlib import Path
from typing import Any

from fedgen.evaluation.runs.checkpoint_names import list_checkpoints
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.io.files import read_yaml
from fedgen.recipe.recipe_keys import check_lost

RECIPE, PARTITION, ROLES = "recipe.yaml", "partition.npz", "split.json"
MEMBERSHIP, NEAREST = "membership.json", "nearest.png"  # of `fedgen audit`
MATRIX, MATRIX_PICTURE = "client_matrix.json", "client_matrix.png"  # of `fedgen evaluate --matrix`


def read_recipe(path: Path) -> Any:
    """Read the recipe that a run's folder keeps.

    Raises:
        FileNotFoundError: if there is none, saying what can be done about the folder.
        ValueError: naming the key of a value that an earlier release had no text for.
    """
    if not path.exists():
        raise FileNotFoundError(_without_recipe(path))
    recipe = read_yaml(path)
    check_lost(path, recipe)
    return recipe


def is_python_run(folder: Path) -> bool:
    """Whether a folder is of a run that was trained in Python: it has a partition, checkpoints or scores, no recipe."""
    known = (folder / PARTITION).exists() or (folder / SCORES_FILE).exists() or bool(list_checkpoints(folder))
    return known and not (folder / RECIPE).exists()


def _without_recipe(path: Path) -> str:
    """Return what can be done about a folder without a recipe."""
    folder = path.parent
    if not folder.is_dir() or not is_python_run(folder):
        return f"{path} does not exist; give the folder of a run made by `fedgen fit`"
    return (
        f"{folder} is of a run trained in Python, which keeps no recipe: say what its model and data are with --model"
        " my_module:make_model --data my_module:make_data (objects, or functions without arguments; train.py:make_model"
        f" for a file), or call evaluate_run({str(folder)!r}, model, Evaluator(data, ['pixels'])) of fedgen.evaluation."
        f" Its stored scores need neither: fedgen select {folder}"
    )
