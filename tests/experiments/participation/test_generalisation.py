"""Experiments on clients that never train, on a tiny DDPM of 8 x 8 digits of ten writers."""

from pathlib import Path

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.class_paths import import_by_path
from fedgen.experiments.engine.gaps import GapChoice, GapScores, named_by_clients
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.gaps_by_setting import (
    ADAPTIVE,
    arms_of,
    chosen_by,
    reach_table,
    reached,
    reached_after,
)
from fedgen.experiments.participation.participation_gap import ClassifierChoice, PartitionChoice
from tests.experiments.participation.tiny_recipes import digits_recipe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return digits_recipe()


@pytest.mark.parametrize(
    ("split_in", "scored"), [("pixels", "pixels"), ("efficientnet-lite0", "efficientnet-lite0-32")]
)
def test_a_partition_and_scores_in_one_network_are_refused(recipe, capsys, split_in, scored):
    given = ["--recipe", str(recipe), "--partition_embedding", split_in, "--embedding", scored]
    assert main(["reproduce", "participation-gap", *given]) == 2
    assert "scores would see the features that made the clients" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
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
    with pytest.raises(ValueError, match="natural"):
        ClassifierChoice(recipe=recipe)


@pytest.mark.slow
def test_a_semantic_recipe_is_not_scored_in_the_network_that_split_it(recipe):
    settings = yaml.safe_load(recipe.read_text())
    path = "fedgen.clients.partitions.Semantic.paper"
    settings["data"]["init_args"]["partition"] = {"class_path": path, "init_args": {"num_clients": 6}}
    recipe.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match="lite0"):
        _ = PartitionChoice(recipe=recipe).arms
    assert PartitionChoice(recipe=recipe).own == "semantic"


def test_a_recipe_without_unseen_clients_is_refused():
    with pytest.raises(ValueError, match="init_args"):
        GapChoice(recipe=ROOT / "recipes/quickstart.yaml")


def test_too_few_images_to_score_are_refused(recipe):
    with pytest.raises(ValueError, match="num_images"):
        GapChoice(recipe=recipe, num_images=5)


@pytest.mark.slow
def test_two_arms_of_as_many_clients_are_refused(recipe):
    key = "data.init_args.split.init_args.participating"
    with pytest.raises(ValueError, match="both"):
        named_by_clients(GapChoice(recipe=recipe), [Arm("", {key: rate}) for rate in (0.5, 0.51)])


@pytest.mark.slow
def test_an_arm_that_cannot_be_split_is_named_before_any_training(recipe):
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
    with pytest.raises(ValueError, match="many"):
        choice.federation(arm)


def test_arms_of_servers_and_clients():
    arms = arms_of(0.1, dict.fromkeys(ADAPTIVE, 0.01), mu=0.5)
    assert [arm.name for arm in arms] == ["FedAvg", "FedAvgM", *ADAPTIVE, "FedProx", "SCAFFOLD"]
    for arm in arms[2:5]:
        (settings,) = arm.settings.values()
        options = {"lr": 0.01, "convention": "reddi"}
        assert settings == {"class_path": f"fedgen.federated.{arm.name}", "init_args": options}
        import_by_path(settings["class_path"])([torch.nn.Parameter(torch.zeros(1))], **options)


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
    assert {arm: chosen_by(GapScores(found), arm) for arm in found} == {"slow": 4.0, "fast": 3.5}
