"""Every experiment on clients that never train, as short as it goes: real trainings from the command line."""

import json
from pathlib import Path

import pytest

from fedgen.evaluation.runs.recipe_data import load_federation
from fedgen.experiments.command import reproduce
from fedgen.experiments.engine import gaps, trainings
from fedgen.experiments.engine.trainings import evaluated
from fedgen.experiments.participation import gaps_by_setting
from fedgen.experiments.participation.participation_gap import PartitionChoice
from tests.experiments.participation.tiny_recipes import classifier_recipe, digits_recipe, text_recipe
from tests.experiments.tiny_runs import draw_unwritten, train_in_forks

PARTITIONS = ["natural", "semantic", "Dirichlet", "random"]
CENTRAL = "natural, centralised"
DEAL = ("--partition_embedding", "classifier-mnist5k")
PIXELS = ("--embedding", "pixels", "--num_images", "10")
ONCE, TWICE = ("--checks", "1"), ("--checks", "2")


def check_numbers(numbers):
    assert numbers["clients"] == {"4 clients": [4, 4], "8 clients": [8, 4]}
    curve = numbers["curves"]["4 clients"]["0"]["loss avg"]
    assert curve["rounds"] == [0, 1]
    assert set(curve["values"]) == {"part_train", "part_val", "unpart", "gap/out_of_sample", "gap/participation"}


def check_partitions(numbers):
    assert set(numbers["detectable"]) == set(PARTITIONS[::2])
    assert set(numbers["detectable"]["natural"][0]) == {"floor", "participants", "memoriser"}
    assert len(numbers["curves"]) == 4


def check_percentiles(numbers):
    assert set(numbers["spread"]) == set(PARTITIONS)


def check_servers(numbers):
    assert list(numbers["curves"]) == ["FedAvg", "FedAvgM", "FedYogi", "FedProx", "SCAFFOLD"]
    assert set(map(tuple, numbers["reached"].values())) == {(2,)}
    sizes = numbers["bytes"]
    assert sizes["SCAFFOLD"]["control variates"] == sizes["FedAvg"]["weights"]
    # Adam's two moments, and a count of steps for each parameter
    assert 2 < sizes["FedAvg"]["optimizer states"] / sizes["FedAvg"]["weights"] < 2.5


def check_classifier(numbers):
    assert list(numbers["curves"]) == list(numbers["spread"]) == [*PARTITIONS, "natural, FedAvg", CENTRAL]
    for seeds in numbers["curves"].values():
        assert all(0 <= error <= 1 for error in seeds["0"]["loss avg"]["values"]["unpart"])


def check_text(numbers):
    assert set(numbers["curves"]) == {"natural", "Dirichlet", "random", CENTRAL}
    assert numbers["clients"]["natural"] == [3, 3]
    assert len(numbers["curves"]["natural"]["0"]["loss avg"]["rounds"]) == 2
    assert set(numbers["spread"]["natural"]["0"]["loss"]["unpart"]) == {"pct95", "pct75", "pct50", "pct25", "pct5"}


def nothing_more(numbers):
    assert "curves" in numbers


RUNS = [
    (
        "number-of-clients", digits_recipe, (*PIXELS, *TWICE, "--participating", "[0.5, 1.0]"), check_numbers,
        (
            "the 4 unseen clients that all arms score",
            "cannot be told from one seed: loss avg on the same unseen clients falls from 4 clients to 8 clients",
        ),
    ),
    (
        "client-diversity", digits_recipe, (*PIXELS, *ONCE, "--participating", "[0.5, 1.0]", "--images", "[10, 5]"),
        nothing_more, ("8 clients x 5: loss avg on the same unseen clients",),
    ),
    (
        "participation-gap", digits_recipe, (*PIXELS, *ONCE, *DEAL), check_partitions,
        ("before training: participation gaps", "clients that never train: loss avg", "natural, centralised"),
    ),
    (
        "client-percentiles", digits_recipe, (*PIXELS, *ONCE, *DEAL), check_percentiles,
        ("the 95th percentile of loss is larger over unseen clients",),
    ),
    (
        "local-epochs", digits_recipe, (*PIXELS, *ONCE, "--lengths", "[1, 2]"), nothing_more,
        ("2 iterations: participation gap in loss avg beside 1 iterations",),
    ),
    (
        "learning-rates", digits_recipe, (*PIXELS, *ONCE, "--client", "[0.001, 0.002]", "--server", "[0.1]"),
        nothing_more,
        ("rates by loss avg on part_val + unpart",),
    ),
    (
        "server-optimizers", digits_recipe, (*PIXELS, *ONCE, "--kid", "100", "--adaptive_lr", "[0.005]"), check_servers,
        ("to kid all on unseen clients of 100",),
    ),
    (
        "classifier-control", classifier_recipe, (*ONCE, "--clients", "12"), check_classifier,
        (
            "a larger participation gap of natural clients than of Dirichlet ones",
            "FedAvgM: the participation gap beside FedAvg cannot be told apart",
            "the median of the clients' errors is larger over unseen clients",
        ),
    ),
    (
        "text-gap", text_recipe, TWICE, check_text,
        (
            "a larger participation gap of natural clients than of random ones",
            "natural: the 95th percentile of the clients' losses is larger over unseen clients",
        ),
    ),
]  # fmt: skip


# of the figures, which take as long as the trainings, one of each kind is written
WRITTEN = {"text-gap": ("text_gap.png", "percentiles.png")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all experiments' runs, some of which they share."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def federations():
    """Data modules by recipe and settings: experiments ask for each again and again, and share some."""
    return {}


def without_pages(rounds, **evaluation):
    """Runs' pages and tables, which take as long as the training here, are tested elsewhere."""
    return evaluated(rounds, **evaluation, page=False, report=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe", "options", "check", "said"), RUNS)
def test_a_short_run_is_whole_and_prints_again_without_training(
    name, recipe, options, check, said, runs, federations, tmp_path, monkeypatch, capsys
):
    def load_once(path, given):
        key = (path.read_text(), *given)
        return federations.get(key) or federations.setdefault(key, load_federation(path, given))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gaps, "load_federation", load_once)
    monkeypatch.setattr(gaps_by_setting, "ADAPTIVE", ("FedYogi",))
    monkeypatch.setattr(trainings, "evaluated", without_pages)
    if name == "participation-gap":  # each partition with a control; client-percentiles has the others
        arms = PartitionChoice.arms.func
        monkeypatch.setattr(PartitionChoice, "arms", property(lambda choice: arms(choice)[::2]))
    drawn = [] if name in WRITTEN else draw_unwritten(monkeypatch)
    Path("checkpoints").mkdir()
    Path("checkpoints/runs").symlink_to(runs)
    monkeypatch.setenv("COLUMNS", "200")
    train_in_forks(monkeypatch)
    command = [name, "--recipe", str(recipe()), "--seeds", "1", *options]
    assert reproduce(command) == 0
    first = capsys.readouterr().out
    (folder,) = Path("checkpoints").glob(f"{name}*")
    check(json.loads((folder / "results.json").read_text())["numbers"])
    shown = " ".join(first.split())
    places = [shown.index(text) for text in said]
    assert places == sorted(places)
    figures = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    assert set(figures) == set(WRITTEN.get(name, ()))
    assert f"{name.replace('-', '_')}.png" in {*figures, *(path.name for path in drawn)}
    assert all(size > 10_000 for size in figures.values())
    draw_unwritten(monkeypatch)
    kept = {path: path.stat().st_mtime_ns for path in Path("checkpoints/runs").rglob("*.ckpt")}
    assert reproduce(command) == 0
    assert capsys.readouterr().out == first
    assert kept == {path: path.stat().st_mtime_ns for path in Path("checkpoints/runs").rglob("*.ckpt")}
