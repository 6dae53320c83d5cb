"""Experiments on clients that never train, on a tiny DDPM of 8 x 8 digits of ten writers."""

import json
from pathlib import Path

import pytest
import yaml

from fedgen.__main__ import main
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import named_by_clients
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.paired.algorithms_compared import arms_of, reach_table, reached, reached_after
from fedgen.experiments.participation.classifier_control import ClassifierChoice
from fedgen.experiments.participation.learning_rates import chosen_by
from fedgen.experiments.participation.participation_gap import PartitionChoice

ROOT = Path(__file__).parents[3]
SPLITS = ("part_train", "part_val", "unpart")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The shipped recipe with fewer writers, smaller images and four rounds of one iteration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    settings = yaml.safe_load((ROOT / "recipes/ddpm_style_shift.yaml").read_text())
    settings["trainer"]["max_epochs"] = 4
    settings["trainer"]["strategy"]["init_args"] |= {"communication_interval": 1, "cohort_size": 2}
    settings["model"]["init_args"]["network"]["init_args"] |= {"image_size": 8, "widths": [8], "layers": 1}
    settings["model"]["init_args"]["sampler"] = {"class_path": "fedgen.models.Sampler", "init_args": {"steps": 2}}
    settings["data"]["init_args"]["data"]["init_args"] |= {"num_writers": 12, "shrink": 4, "held_out": 0.9}
    settings["data"]["init_args"]["split"]["init_args"] = {"unparticipating": 0.33, "max_examples": 12}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def reproduce(name, recipe, capsys, *more):
    given = ["--recipe", str(recipe), "--embedding", "pixels", "--checks", "2", "--seeds", "1", "--num_images", "20"]
    assert main(["reproduce", name, *given, *more]) == 0
    (folder,) = Path("checkpoints").glob(f"{name}*")
    said = " ".join(capsys.readouterr().out.split())
    return said, json.loads((folder / "results.json").read_text())["numbers"], folder


@pytest.mark.slow
def test_more_clients_train_and_a_second_call_trains_nothing(recipe, capsys):
    given = ("--participating", "[0.5, 1.0]")
    said, numbers, folder = reproduce("number-of-clients", recipe, capsys, *given)
    assert numbers["clients"] == {"4 clients": [4, 4], "8 clients": [8, 4]}
    curve = numbers["curves"]["4 clients"]["0"]["loss avg"]
    assert curve["rounds"] == [1, 3]
    assert set(curve["values"]) == {*SPLITS, "gap/out_of_sample", "gap/participation"}
    assert "cannot be told from one seed: loss avg on the same unseen clients falls from 4 clients to 8 clients" in said
    assert "the 4 unseen clients that all arms score" in said
    assert (folder / "number_of_clients.png").stat().st_size > 10_000
    runs = {path: path.stat().st_mtime_ns for path in Path("checkpoints/runs").rglob("*.ckpt")}
    again, _, _ = reproduce("number-of-clients", recipe, capsys, *given)
    assert again == said
    assert runs == {path: path.stat().st_mtime_ns for path in Path("checkpoints/runs").rglob("*.ckpt")}


@pytest.mark.slow
def test_partitions_are_compared_and_the_smallest_gap_comes_first(recipe, capsys):
    more = ("--clients", "12", "--partition_embedding", "efficientnet-lite0-32")
    said, numbers, folder = reproduce("participation-gap", recipe, capsys, *more)
    assert said.index("before training: participation gaps") < said.index("clients that never train: loss avg")
    assert set(numbers["detectable"]) == {"natural", "semantic", "Dirichlet", "random"}
    assert set(numbers["detectable"]["natural"][0]) == {"floor", "participants", "memoriser"}
    assert len(numbers["curves"]) == 8
    assert "natural, centralised" in said
    assert (folder / "participation_gap.png").stat().st_size > 10_000
    said, numbers, folder = reproduce("client-percentiles", recipe, capsys, *more)
    assert set(numbers["spread"]) == {"natural", "semantic", "Dirichlet", "random"}
    assert (folder / "client_percentiles.png").stat().st_size > 10_000
    assert "the 95th percentile of loss is larger over unseen clients" in said


@pytest.mark.parametrize(("dealt", "scored"), [("pixels", "pixels"), ("efficientnet-lite0", "efficientnet-lite0-32")])
def test_a_partition_and_scores_in_one_network_are_refused(recipe, capsys, dealt, scored):
    given = ["--recipe", str(recipe), "--partition_embedding", dealt, "--embedding", scored]
    assert main(["reproduce", "participation-gap", *given]) == 2
    assert "scores would see the features that made the clients" in " ".join(capsys.readouterr().err.split())


def test_arms_have_as_many_clients_as_the_recipe_and_are_natural_only_where_its_own_are(recipe):
    arms = {arm.name: arm.settings for arm in PartitionChoice(recipe=recipe).arms}
    assert arms.pop("natural") == {}
    assert {one["data.init_args.partition"]["init_args"]["num_clients"] for one in arms.values()} == {12}
    settings = yaml.safe_load(recipe.read_text())
    own = {"class_path": "fedgen.clients.partitions.IID", "init_args": {"num_clients": 6}}
    settings["data"]["init_args"]["partition"] = own
    recipe.write_text(yaml.safe_dump(settings))
    choice = PartitionChoice(recipe=recipe)
    assert [arm.name for arm in choice.arms] == ["random", "semantic", "Dirichlet"]
    assert choice.arms[0].settings == {}
    assert len(choice.federation(choice.arms[1]).everyone) == 6
    with pytest.raises(ValueError, match="must deal natural clients"):
        ClassifierChoice(recipe=recipe)


@pytest.mark.slow
def test_a_semantic_recipe_is_not_scored_in_the_network_that_dealt_it(recipe):
    settings = yaml.safe_load(recipe.read_text())
    path = "fedgen.clients.partitions.Semantic.paper"
    settings["data"]["init_args"]["partition"] = {"class_path": path, "init_args": {"num_clients": 6}}
    recipe.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="is the network of the recipe's partition=efficientnet-lite0-32"):
        _ = PartitionChoice(recipe=recipe).arms
    assert PartitionChoice(recipe=recipe).own == "semantic"


def test_a_recipe_without_unseen_clients_is_refused():
    with pytest.raises(ValueError, match=r"has no data.init_args.split"):
        GapChoice(recipe=ROOT / "recipes/quickstart.yaml")


@pytest.mark.parametrize("settings", [{"seeds": 0}, {"checks": 0}, {"rounds": 0}, {"num_images": 5}])
def test_numbers_out_of_range_are_refused(recipe, settings):
    with pytest.raises(ValueError, match="from 1"):
        GapChoice(recipe=recipe, **settings)


def test_two_arms_of_as_many_clients_are_refused(recipe):
    key = "data.init_args.split.init_args.participating"
    with pytest.raises(ValueError, match=r"0.5.* and .*0.51.* are both 4 clients; give one of them"):
        named_by_clients(GapChoice(recipe=recipe), [Arm("", {key: rate}) for rate in (0.5, 0.51)])


def test_an_arm_that_cannot_be_dealt_is_named_before_any_training(recipe):
    choice = GapChoice(recipe=recipe)
    arm = Arm(
        "too many",
        {
            "data.init_args.partition": {
                "class_path": "fedgen.clients.partitions.IID",
                "init_args": {"num_clients": 9999},
            }
        },
    )
    with pytest.raises(ValueError, match=r"^too many: "):
        choice.federation(arm)


def test_arms_of_servers_and_clients():
    arms = arms_of(0.1, {"FedAdam": 0.01}, mu=0.5)
    assert [arm.name for arm in arms] == ["FedAvg", "FedAvgM", "FedAdam", "FedProx", "SCAFFOLD"]
    (settings,) = arms[2].settings.values()
    options = {"lr": 0.01, "convention": "reddi"}
    assert settings == {"class_path": "fedgen.federated.FedAdam", "init_args": options}


def test_a_target_is_reached_at_the_first_evaluation_that_is_no_worse():
    curve = {"rounds": [9, 19, 29], "values": {"unpart": [3.0, 2.0, 1.0]}}
    assert [reached_after(curve, target) for target in (2.0, 5.0, 0.5)] == [20, 10, None]


def kids(*values):
    return {"kid all": {"rounds": [9, 19, 29], "values": {"unpart": list(values)}}}


def test_every_seed_is_held_against_the_median_of_its_ends_or_against_a_number():
    found = {
        "FedAvg": {"0": kids(4.0, 2.0, 1.0), "1": kids(9.0, 8.0, 7.0)},
        "FedAdam": {"0": kids(3.0, 3.0, 3.0), "1": kids(9.0, 9.0, 9.0)},
        "FedProx": {"0": kids(4.0, 3.0, 2.0), "1": kids(9.0, 8.5, 8.0)},
    }
    assert reached(found, None) == {"FedAvg": [20, 20], "FedAdam": [None, None], "FedProx": [30, 30]}
    assert reached(found, 3.0) == {"FedAvg": [20, None], "FedAdam": [10, None], "FedProx": [20, None]}


def test_of_two_the_worse_end_is_the_target_so_that_both_reach_it():
    found = {"FedAvg": {"0": kids(3.0, 2.0, 1.0)}, "FedAdam": {"0": kids(3.0, 3.0, 2.0)}}
    assert reached(found, None) == {"FedAvg": [20], "FedAdam": [30]}


def test_rounds_and_bytes_stand_beside_each_other():
    rounds = {"FedAvg": [30, 30], "FedAdam": [20, None]}
    sizes = {"FedAvg": {"weights": 1000, "control variates": 0}, "FedAdam": {"weights": 1000, "control variates": 500}}
    table = reach_table(rounds, sizes, "that")
    rows = list(zip(*(column._cells for column in table.columns)))
    assert rows[0] == ("FedAvg", "30, 30", "1 kB", "30 kB")
    assert rows[1] == ("FedAdam", "20, -", "1.5 kB", "30 kB")


def test_rates_are_chosen_by_the_sum_on_clients_that_train_and_on_others():
    def curve(val, unpart):
        return {"loss avg": {"rounds": [9], "values": {"part_val": [5.0, val], "unpart": [5.0, unpart]}}}

    found = {"slow": {"0": curve(1.0, 4.0), "1": curve(1.0, 2.0)}, "fast": {"0": curve(2.0, 2.0), "1": curve(1.5, 1.5)}}
    assert {arm: chosen_by(found, arm) for arm in found} == {"slow": 4.0, "fast": 3.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "client-diversity",
            ("--participating", "[0.5, 1.0]", "--images", "[10, 5]"),
            "8 clients x 5: loss avg on the same unseen clients",
        ),
        ("local-epochs", ("--lengths", "[1, 2]"), "2 iterations: participation gap in loss avg beside 1 iterations"),
        (
            "learning-rates",
            ("--client", "[0.001, 0.002]", "--server", "[0.1]"),
            "rates by loss avg on part_val + unpart",
        ),
        ("server-optimizers", ("--kid", "100"), "to kid all on unseen clients of 100"),
    ],
)
def test_other_experiments_compare_their_arms(recipe, capsys, name, options, said):
    text, numbers, folder = reproduce(name, recipe, capsys, *options)
    assert said in text
    assert (folder / f"{name.replace('-', '_')}.png").stat().st_size > 10_000
    if name == "server-optimizers":
        assert list(numbers["curves"]) == [
            "FedAvg",
            "FedAvgM",
            "FedAdam",
            "FedAdagrad",
            "FedYogi",
            "FedProx",
            "SCAFFOLD",
        ]
        assert set(map(tuple, numbers["reached"].values())) == {(2,)}
        sizes = numbers["bytes"]
        assert sizes["SCAFFOLD"]["control variates"] == sizes["FedAvg"]["weights"]
        # Adam's two moments, and a count of steps for each parameter
        assert 2 < sizes["FedAvg"]["optimizer states"] / sizes["FedAvg"]["weights"] < 2.5


@pytest.mark.slow
def test_a_classifier_is_held_against_the_published_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    settings = yaml.safe_load((ROOT / "recipes/classifier_style_shift.yaml").read_text())
    settings["trainer"]["max_epochs"] = 2
    settings["trainer"]["strategy"]["init_args"] |= {"communication_interval": 1, "cohort_size": 2}
    settings["data"]["init_args"]["data"]["init_args"] |= {"num_writers": 12}
    settings["data"]["init_args"]["split"]["init_args"] = {"unparticipating": 0.33, "max_examples": 12}
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(settings))
    more = ("--embedding", "efficientnet-lite0-32", "--clients", "12")
    said, numbers, folder = reproduce("classifier-control", recipe, capsys, *more)
    arms = ["natural", "semantic", "Dirichlet", "random", "natural, FedAvg", "natural, centralised"]
    assert list(numbers["curves"]) == list(numbers["spread"]) == arms
    for seeds in numbers["curves"].values():
        errors = seeds["0"]["loss avg"]["values"]["unpart"]
        assert all(0 <= error <= 1 for error in errors)
    assert "a larger participation gap of natural clients than of Dirichlet ones" in said
    assert "FedAvgM: the participation gap beside FedAvg cannot be told apart" in said
    assert "the median of the clients' errors is larger over unseen clients" in said
    for name in ("classifier_control.png", "percentiles.png"):
        assert (folder / name).stat().st_size > 10_000


def test_another_number_of_adaptive_rates_is_refused(recipe, capsys):
    assert main(["reproduce", "server-optimizers", "--recipe", str(recipe), "--adaptive_lr", "[0.1]"]) == 2
    assert "give three rates, of FedAdam, FedAdagrad, FedYogi" in capsys.readouterr().err
