"""A mistake in a recipe is one line: the key, the nearest accepted one, and all of them."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch.utils.data import Dataset

from fedgen.__main__ import main
from fedgen.recipe.recipe_files import find_recipe
from fedgen.recipe.recipe_objects import explain

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def fails(capsys, *arguments):
    """What `fedgen fit` says of a recipe that it cannot read."""
    with pytest.raises(SystemExit) as caught:
        main(["fit", *map(str, arguments)])
    assert caught.value.code == 2
    line, rest = capsys.readouterr().err.split("\n", 1)
    assert rest == "(fedgen fit --help lists the usual options, --help-all every one)\n"
    return line


def changed(folder, place, value):
    """The quickstart with another value, or another name for a key, at a place."""
    recipe = yaml.safe_load(QUICKSTART.read_text())
    *parents, key = place
    part = recipe
    for parent in parents:
        part = part[parent]
    if isinstance(value, tuple):
        part[value[0]] = part.pop(key)
    else:
        part[key] = value
    (folder / "changed.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "changed.yaml"


@pytest.mark.slow
def test_of_many_keys_the_nearest_of_the_class_itself_are_listed_and_its_parents_counted(tmp_path, capsys):
    line = fails(capsys, changed(tmp_path, ("trainer", "strategy", "init_args", "cohort_size"), ("cohort_sizes",)))
    listed, counted = line.split("; accepted: ")[1].split(" and ", 1)
    assert "did you mean 'cohort_size'?" in line
    assert listed.startswith("cohort_size, ")
    assert len(listed.split(", ")) == 10
    assert re.fullmatch(r"\d more and \d\d of DDPStrategy", counted)
    assert "bucket_cap_mb" not in line


def test_few_keys_are_all_listed_and_those_of_parents_counted(tmp_path, capsys):
    line = fails(capsys, changed(tmp_path, ("model", "init_args", "lr"), ("learning_rate",)))
    assert "did you mean 'lr'?; accepted: critic, generator, n_critic, penalty and 9 of GAN" in line


EVALUATION = ("trainer", "callbacks", 0, "init_args")


@pytest.mark.parametrize(
    ("place", "value", "parts"),
    [
        (
            ("model", "init_args", "lr"),
            ("learning_rate",),
            ["model: Option 'learning_rate' is not accepted by fedgen.models.WGANGP; did you mean 'lr'?", " n_critic,"],
        ),
        (
            (*EVALUATION, "num_images"),
            ("num_image",),
            ["trainer.callbacks: Option 'num_image' is not accepted by", "mean 'num_images'?; accepted: num_images, "],
        ),
        (
            ("data", "init_args", "partition"),
            {"class_path": "fedgen.clients.partitions.Dirichlett"},
            ["data.partition: module 'fedgen.clients.partitions' has no 'Dirichlett'; did you mean 'Dirichlet'?"],
        ),
        (
            ("data", "init_args", "partition"),
            "Dirichlett",
            ["data.partition: there is no class 'Dirichlett'; did you mean fedgen.clients.partitions.Dirichlet?"],
        ),
        (
            ("model",),
            {"class_path": "my_kit.Net"},
            ["model: there is no module 'my_kit' for my_kit.Net; looked in ", "PYTHONPATH"],
        ),
        (
            ("trainer", "strategy", "init_args", "cohort_size"),
            "five",
            ["trainer.strategy.cohort_size: expected int or None, got 'five'"],
        ),
        (
            ("trainer", "max_epochs"),
            ("max_epoch",),
            ["trainer: Option 'max_epoch' is not accepted; did you mean 'max_epochs'?; accepted: max_epochs, "],
        ),
        (
            ("model",),
            ("modell",),
            ["Option 'modell' is not accepted; did you mean 'model'?; a recipe has trainer, model, "],
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, place, value, parts):
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, "--config", changed(tmp_path, place, value))
    assert line.startswith("fedgen: error: ")
    for part in parts:
        assert part in line


def test_a_wrong_key_of_a_recipes_text_is_one_line(capsys):
    line = fails(capsys, "--config", '{"modell": {"class_path": "fedgen.models.WGANGP"}}')
    assert line.startswith("fedgen: error: Option 'modell.")
    assert "is not accepted; did you mean 'model'?; accepted: " in line


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (("data", "init_args"), "data.init_args"),
        (("data", "init_args", "data", "init_args"), "data.init_args.data.init_args"),
        (("model", "init_args", "generator", "init_args"), "model.init_args.generator.init_args"),
        (EVALUATION, "trainer.callbacks.0.init_args"),
    ],
)
def test_arguments_that_are_empty_are_named_by_their_key(tmp_path, capsys, place, key):
    path = changed(tmp_path, place, None)
    said = f"{path}: {key} is empty; give the class's arguments below it, or remove the line"
    assert fails(capsys, path) == f"fedgen: error: {said}"
    if place[0] == "data":
        assert main(["clients", str(path)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [b", "is no YAML"), ("- a", "it has no settings such as trainer"), ("", "no settings")],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path, capsys, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    line = fails(capsys, tmp_path / "bad.yaml")
    assert line.startswith(f"fedgen: error: {tmp_path / 'bad.yaml'}")
    assert said in line


class Sized(Dataset):
    def __init__(self, size: np.int64):
        self.size = size


class ByArray(Dataset):
    def __init__(self, array=np.array([1.0, 2.0])):  # noqa: B008
        self.array = array


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("Sized", {"size": 3}, "data.data.size: expected the class_path and init_args of int64, got 3"),
        ("ByArray", {"array": 3}, "data.data: The truth value of an array with more than one element is ambiguous"),
    ],
)
def test_of_several_types_that_of_the_given_class_is_told(tmp_path, capsys, kind, arguments, said):
    value = {"class_path": f"{__name__}.{kind}", "init_args": arguments}
    assert fails(capsys, changed(tmp_path, ("data", "init_args", "data"), value)).startswith(f"fedgen: error: {said}")


def test_recipes_are_found_by_name_and_others_suggested(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == find_recipe("quickstart.yaml") == QUICKSTART
    own = tmp_path / "recipes" / "mine.yaml"
    own.parent.mkdir()
    own.write_text(QUICKSTART.read_text())
    assert find_recipe("mine").resolve() == own
    assert find_recipe("nothing_like_it") is None
    assert "there is no recipe quickstrat; did you mean" in fails(capsys, "--config", "quickstrat")
    assert "did you mean 'quickstart'?" in fails(capsys, "--config=quickstrat.yaml")
    line = fails(capsys, "--config", "quickstart", "--trainer.max_epoks", "3")  # it is found
    assert "option --trainer.max_epoks is not accepted; did you mean '--trainer.max_epochs'?" in line


def test_a_null_that_an_option_reads_as_a_word_is_told_with_what_works_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, "--config", "flow_digits", "--model.init_args.network.init_args.num_classes", "null")
    assert line.startswith("fedgen: error: model.network.num_classes: an option this deep reads null as a word")
    (instead,) = re.findall("append --config '(.*)'", line)
    assert yaml.safe_load(instead) == {"model": {"init_args": {"network": {"init_args": {"num_classes": None}}}}}


def test_what_no_rule_knows_stays_as_it_is():
    assert explain("something else entirely") == "something else entirely"
