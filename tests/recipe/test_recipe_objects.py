"""An error of a recipe's class is told as it was raised, with the user's line."""

import re
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import pytest
import yaml

from fedgen.__main__ import main
from fedgen.recipe.recipe_objects import _refuses_none
from tests.recipe.test_recipe_errors import QUICKSTART

KIT = """\
from typing import Callable

import fedgen
from torch.utils.data import Dataset

class Scans(Dataset):
    def __init__(self, transform: Callable | None = None, error: str = "KeyError"):
        if error:
            raise __builtins__[error]("no scans here")

class Blur:
    def __init__(self, width: float = 0.5):
        self.width = width.nothing

    def __call__(self, image):
        return image

class Net(fedgen.WGANGP):
    def __init__(self, width: int = 3):
        raise RuntimeError(f"width {width} is odd")

def make_scans(error: str = "KeyError") -> Dataset:
    raise __builtins__[error]("no scans made")

def make_data() -> fedgen.FederatedDataModule:
    raise ValueError("no data made")
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the quickstart with another part, beside a module of one's own; returns its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_kit", raising=False)
    (tmp_path / "own_kit.py").write_text(KIT)

    def change(part, value):
        recipe = yaml.safe_load(QUICKSTART.read_text())
        (recipe["data"]["init_args"] if part == "data" else recipe)[part.split()[-1]] = value
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
        return "own.yaml"

    return change


def scans(**arguments):
    return {"class_path": "own_kit.Scans", "init_args": arguments}


BLUR = {"class_path": "own_kit.Blur"}


@pytest.mark.parametrize(
    ("command", "part", "value", "line", "said"),
    [
        ("fit", "data", scans(), 9, "KeyError: 'no scans here'"),
        ("fit", "data", scans(error="ValueError"), 9, "ValueError: no scans here"),
        ("fit", "data", scans(transform=BLUR), 13, "AttributeError: 'float' object has no attribute 'nothing'"),
        ("fit", "model", {"class_path": "own_kit.Net"}, 20, "RuntimeError: width 3 is odd"),
        ("clients", "data", scans(), 9, "KeyError: 'no scans here'"),
    ],
)
def test_an_error_of_ones_own_constructor_is_told_with_its_line(write, capsys, command, part, value, line, said):
    assert main([command, write(part, value)]) == 1
    error = capsys.readouterr().err
    assert "Traceback (from your code on):\n" in error
    assert f'own_kit.py", line {line}, in __init__' in error
    assert said in error
    assert "Union" not in error


def made_by(name, **arguments):
    return {"class_path": f"own_kit.{name}", "init_args": arguments}


@pytest.mark.parametrize("command", ["fit", "clients", "evaluate"])
@pytest.mark.parametrize(
    ("part", "value", "line", "said"),
    [
        ("data", made_by("make_scans"), "23, in make_scans", "KeyError: 'no scans made'"),
        ("data", made_by("make_scans", error="ValueError"), "23, in make_scans", "ValueError: no scans made"),
        ("data", made_by("make_scans", error="AttributeError"), "23, in make_scans", "AttributeError: no scans made"),
        ("data", scans(error="ValueError"), "9, in __init__", "ValueError: no scans here"),
        ("whole data", made_by("make_data"), "26, in make_data", "ValueError: no data made"),
    ],
)
def test_an_error_of_ones_own_function_is_told_with_its_line(write, tmp_path, capsys, command, part, value, line, said):
    recipe = write(part, value)
    if command == "evaluate":
        (tmp_path / "run").mkdir()
        (tmp_path / recipe).rename(tmp_path / "run" / "recipe.yaml")
    given = ["run", "pixels"] if command == "evaluate" else [recipe]
    assert main([command, *given]) == 1
    error = capsys.readouterr().err
    assert "Traceback (from your code on):\n" in error
    assert f'own_kit.py", line {line}\n' in error
    assert said in error
    assert "Union" not in error


@pytest.mark.parametrize("command", [["clients"], ["evaluate", "--model=own_kit:Net"]])
def test_an_error_of_a_function_that_makes_a_python_runs_data_is_told_with_its_line(write, tmp_path, capsys, command):
    write("data", scans())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scores.jsonl").touch()
    embedding = ["pixels"] if command[0] == "evaluate" else []
    assert main([*command, "run", *embedding, "--data=own_kit:make_data"]) == 1
    assert 'own_kit.py", line 26, in make_data\n' in capsys.readouterr().err


def test_an_error_of_a_librarys_constructor_names_the_class(write, capsys):
    affine = {"class_path": "torchvision.transforms.v2.RandomAffine", "init_args": {"degrees": 5, "scale": [2, 1, 3]}}
    assert main(["fit", write("data", scans(transform=affine))]) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"^fedgen: error: torchvision\..*RandomAffine: scale should be a sequence of length 2.$", said, re.M
    )


def test_an_error_of_the_kits_own_constructor_is_one_line(write, capsys):
    assert main(["fit", write("data", {"class_path": "fedgen.data.Digits"}), "--data.batch_size", "0"]) == 2
    assert "fedgen: error: batch_size=0: a batch has at least one example\n" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "status"), [("fit", 2), ("clients", 2)])
def test_a_key_with_nothing_behind_it_is_named(write, tmp_path, capsys, command, status):
    recipe = write("data", {"class_path": "fedgen.data.Digits"})
    text = (tmp_path / recipe).read_text()
    assert "batch_size: 32\n" in text
    (tmp_path / recipe).write_text(text.replace("batch_size: 32\n", "batch_size:\n"))
    assert main([command, recipe]) == status
    assert "batch_size of FederatedDataModule is empty (null); give it a value (int)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hint", "refused"),
    [
        (int, True),
        (list[int], True),
        (int | str, True),
        (Literal["a"], True),
        (Callable[[int], int], True),
        (Literal["a", None], False),
        (int | None, False),
        (object, False),
        (Any, False),
        (None, False),
        (TypeVar("T"), False),
    ],
)
def test_a_null_is_refused_where_a_type_surely_has_none(hint, refused):
    assert _refuses_none(hint) == refused


@pytest.mark.parametrize("command", ["fit", "clients", "evaluate"])
def test_a_value_that_an_earlier_release_lost_is_named_with_its_file_and_key(write, tmp_path, capsys, command):
    lost = scans(transform="Unable to serialize instance <own_kit.Blur object at 0x7f>")
    (tmp_path / "run").mkdir()
    (tmp_path / write("data", lost)).rename(tmp_path / "run" / "recipe.yaml")
    given = ["run", "pixels"] if command == "evaluate" else ["run/recipe.yaml"]
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([command, *given]))
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    key = "data.init_args.data.init_args.transform"
    assert f"run/recipe.yaml: {key} is 'Unable to serialize instance <own_kit.Blur object at 0x7f>'" in said
    assert "replace it by its class_path and init_args" in said


def test_a_run_whose_class_fails_by_now_says_so_too(write, tmp_path, capsys):
    write("data", scans())
    (tmp_path / "run").mkdir()
    (tmp_path / "own.yaml").rename(tmp_path / "run" / "recipe.yaml")
    assert main(["evaluate", "run", "pixels"]) == 1
    assert 'own_kit.py", line 9, in __init__' in capsys.readouterr().err
