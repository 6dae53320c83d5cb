"""GANs with and without FID as a loss: which runs are asked for, what is compared, the whole from random weights."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.experiments.paired.fid_loss_gans import (
    DIGITS,
    EMA,
    FORMS,
    MINIBATCH,
    NETWORKS,
    PICTURES,
    QUEUE,
    WITHOUT,
    GanChoice,
    key_of,
    losses_of,
    outcomes,
    pair_outcomes,
    scored,
    tables_of,
)
from fedgen.losses import AdaptiveWeight, BatchMoments, EMAMoments, QueueMoments
from tests.experiments.tiny_runs import settings_of

RECIPES = Path(__file__).parents[3] / "recipes"
JUDGE = "judge"
CHOICE = GanChoice(recipes=RECIPES)
LOSSES = "--model.init_args.generator_losses"


# ---- runs ----


def model_of(training, folder):
    """The model of a run, without any training."""
    recipe = yaml.safe_load(training.recipe.read_text())
    recipe["model"]["init_args"]["generator_losses"] = json.loads(settings_of(training)[LOSSES])
    folder.mkdir(parents=True)
    (folder / RECIPE).write_text(yaml.safe_dump(recipe))
    return rebuild(folder)[0]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("bench", [DIGITS, PICTURES], ids=["digits", "mnist5k"])
def test_arms_of_a_network_differ_by_their_loss_alone(network, bench, tmp_path):
    choice = GanChoice(runs=tmp_path, recipes=RECIPES, seed=7, rounds=3, picture_rounds=3)
    trainings = [choice.training(bench, network, arm, 1) for arm in (WITHOUT, *FORMS)]
    given = [settings_of(one) for one in trainings]
    assert [one.pop(LOSSES) == "null" for one in given] == [True, False, False, False]
    assert given[0] == given[1] == given[2] == given[3]
    assert (given[0]["--trainer.max_epochs"], given[0]["--data.init_args.seed"]) == ("3", "7")
    assert {one.recipe for one in trainings} == {RECIPES / f"{network}_{bench.data}.yaml"}
    assert len({one.folder for one in trainings}) == 4
    assert {one.seed for one in trainings} == {1}


@pytest.mark.parametrize(("arm", "moments"), [(MINIBATCH, BatchMoments), (QUEUE, QueueMoments), (EMA, EMAMoments)])
def test_a_form_is_a_loss_that_the_model_takes(arm, moments, tmp_path):
    model = model_of(CHOICE.training(DIGITS, "dcgan", arm, 0), tmp_path / "run")
    (loss,) = model.embedded_losses
    assert type(loss.losses[0].moments) is moments
    assert type(loss.weight) is AdaptiveWeight
    assert model.optimised_on == ["pixels"]


@pytest.mark.slow
def test_the_control_has_no_loss_and_the_pictures_have_one_in_a_network(tmp_path):
    assert model_of(CHOICE.training(PICTURES, "sagan", WITHOUT, 0), tmp_path / "a").generator_losses == []
    model = model_of(CHOICE.training(PICTURES, "sagan", EMA, 0), tmp_path / "b")
    assert model.optimised_on == ["efficientnet-lite0-32"]
    assert model.embedded_losses[0].losses[0].refresh_every == 16


@pytest.mark.parametrize("bench", [DIGITS, PICTURES], ids=["digits", "mnist5k"])
def test_queue_and_average_remember_as_many_images(bench):
    arms = {arm: losses_of(arm, bench)[0]["init_args"]["loss"]["init_args"]["moments"] for arm in (QUEUE, EMA)}
    decay, batch = arms[EMA]["init_args"]["decay"], 32
    assert arms[QUEUE]["init_args"]["size"] == pytest.approx(batch * (1 + decay) / (1 - decay))


def test_lengths_are_the_recipes_on_digits_and_the_networks_own_for_pictures():
    for bench, expected in ((DIGITS, (200, 500, 150)), (PICTURES, (200, 300, 150))):
        found = [int(settings_of(CHOICE.training(bench, one, EMA, 0))["--trainer.max_epochs"]) for one in NETWORKS]
        assert tuple(found) == expected


# ---- what comes out ----


def row(held_out, trace=1.0, recall=0.5):
    return {"fid": 1.0, "fid, held out": held_out, "recall": recall, "coverage": 0.5, "trace": trace}


def scores_with(arms):
    """Of SNGAN, from (FID where it was optimised, FID elsewhere, trace, recall) of each arm, with three close seeds."""
    return {
        key_of("sngan", arm, seed): {
            "pixels": row(own + seed / 100, trace), JUDGE: row(other + seed / 100, recall=recall + seed / 1000),
        }
        for arm, (own, other, trace, recall) in arms.items()
        for seed in range(3)
    }  # fmt: skip


def found_of(scores, bench=DIGITS):
    """The scores of SNGAN's runs, and its arms."""
    arms = list(dict.fromkeys(key.split(", ")[1] for key in scores))
    seeds = sorted({int(key.rsplit(" ", 1)[1]) for key in scores})
    floor = {"pixels": row(0.1), JUDGE: row(0.2)}
    study = SimpleNamespace(numbers={bench.data: scores, f"floor of {bench.data}": floor})
    return scored(study, bench, ["sngan"], arms, seeds), arms


def test_arms_are_compared_with_the_control_by_seed():
    scores = {
        key_of("sngan", arm, seed): {"pixels": row(value, trace)}
        for arm, values in {WITHOUT: [(4, 0.9), (6, 1.3)], EMA: [(3, 1.2), (3, 1.2)]}.items()
        for seed, (value, trace) in enumerate(values)
    }
    compared = found_of(scores)[0]
    found = compared.rows(key_of("sngan", EMA))["pixels"]
    assert found["fid, held out"]["values"] == [3, 3]
    assert found["fid, held out"]["difference"] == -2
    assert found["fid, held out"]["improved"] == 2
    assert found["trace"]["improved"] == 1  # 0.9 to 1.2 is worse, 1.3 to 1.2 better
    assert found["fid"]["improved"] == 0
    assert compared.rows(key_of("sngan", WITHOUT))["pixels"]["fid, held out"] == {"values": [4, 6]}


def test_the_table_has_means_differences_and_marks():
    found, arms = found_of(scores_with({WITHOUT: (2, 4, 0.8, 0.5), EMA: (1, 3, 1, 0.5)}))
    table, other = tables_of(found, DIGITS, ["sngan"], arms)
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    assert columns["network"] == ["real images", "SNGAN", ""]
    assert columns["FID as a loss"] == ["", "without", "EMA"]
    assert columns["FID, held out"] == ["0.1", "2.01", "1.01 (*)\n-1, 3/3\n-1 to -1"]
    assert "proves little" in table.caption
    assert "proves little" not in other.caption
    assert "which no loss used" in other.title


def lines_of(arms):
    found, names = found_of(scores_with(arms))
    return outcomes(found, DIGITS, JUDGE, ["sngan"], names)


def test_better_where_it_was_optimised_only_is_told_from_better():
    games = lines_of({WITHOUT: (2, 4, 0.8, 0.5), EMA: (1, 5, 0.9, 0.3)})
    assert [line.split(":")[0] for line in games[:-1]] == ["not seen", "not seen", "as expected"]
    assert games[0].endswith("in judge, which no loss used (in pixels, optimised: -1 (-1 to -1)): +1 (+1 to +1)")
    assert games[1] == "not seen: SNGAN, EMA: recall does not fall in judge: -0.2 (-0.2 to -0.2)"
    assert games[-1].startswith("each of these 3 intervals")
    helps = lines_of({WITHOUT: (2, 4, 0.8, 0.5), EMA: (1, 3, 0.9, 0.5)})
    assert [line.split(":")[0] for line in helps[:-1]] == ["as expected"] * 3


def test_recall_that_scatters_is_not_said_to_stay():
    scores = scores_with({WITHOUT: (2, 4, 0.8, 0.5), EMA: (1, 3, 0.9, 0.5)})
    for seed, shift in enumerate((-0.3, 0.1, 0.0)):
        scores[key_of("sngan", EMA, seed)][JUDGE]["recall"] += shift
    found, arms = found_of(scores)
    line = outcomes(found, DIGITS, JUDGE, ["sngan"], arms)[1]
    assert line.startswith("cannot be told from these 3 seeds: SNGAN, EMA: recall does not fall in judge: -0.0667 (")


def test_the_batchs_shrinkage_is_judged_beside_the_control_and_the_longer_memories():
    lines = lines_of({
        WITHOUT: (2, 4, 0.8, 0.5), MINIBATCH: (1, 3, 0.7, 0.5), QUEUE: (1, 3, 1.1, 0.5), EMA: (1, 3, 0.6, 0.5),
    })  # fmt: skip
    traces = [line for line in lines if "trace" in line]
    assert [line.split(":")[0] for line in traces] == ["as expected", "as expected", "not seen"]
    assert "less than without, trace in pixels 0.7 beside 0.8: -0.1 (" in traces[0]
    assert traces[1].endswith("trace 1.1 is nearer to the data's than minibatch's: -0.2 (-0.2 to -0.2)")
    dropped = lines_of({WITHOUT: (2, 4, 0.6, 0.5), MINIBATCH: (1, 3, 0.7, 0.5)})  # less than the data's, as without
    assert dropped[-2].startswith("not seen: SNGAN, minibatch: images spread less than without")


def test_one_pair_is_no_evidence():
    scores = {key_of("sngan", arm, 0): {"pixels": row(value)} for arm, value in ((WITHOUT, 9), (EMA, 8))}
    (line,) = pair_outcomes(found_of(scores, PICTURES)[0], "pixels", ["sngan"])
    assert line.startswith("cannot be told from one seed: SNGAN, EMA, MNIST 5k")
    assert line.endswith("9 to 8: -1")
