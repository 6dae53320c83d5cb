"""Each aggregate of FID and KID as a loss, of a Gaussian toy and of a federated GAN on digits; tables and outcomes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.experiments.engine.scored_checkpoints import client_images
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Training
from fedgen.experiments.paired.distributed_fid_loss import (
    ARMS,
    OBJECTIVES,
    OPTIMA,
    DistributedChoice,
    ToySettings,
    apart,
    difference_table,
    digits_outcomes,
    digits_table,
    frechet_objective,
    kernel_objective,
    losses_of,
    messages_against_images,
    real_traces,
    sent,
    toy_outcomes,
    toy_table,
    traces,
    train_toy,
    trainings,
)
from fedgen.losses import FastFIDLoss, QueueMoments
from fedgen.scores.theory import toy_frechet, toy_kernel
from fedgen.statistics import MessageError
from tests.experiments.tiny_runs import settings_of, untrained, write_recipe

CHOICE = DistributedChoice(recipe=Path(__file__).parents[3] / "recipes" / "wgan_gp_digits_fid.yaml", seeds=2, seed=3)
ROUNDS = 4  # of the runs that `tiny_runs` makes


def make(training: Training) -> Path:
    """A run folder with weights at random and one value of every score."""
    folder = untrained(replace(training, settings=("--data.init_args.seed", "0")), rounds=(ROUNDS - 1,))
    arm, seed = folder.name.split("-")
    about = {"embedding": "pixels", "embedding_fingerprint": "a", "reference": "digits", "num_generated": 10}
    for split in ("train", "report"):
        for place, (score, how) in enumerate((s, h) for s in ("fid", "kid") for h in ("avg", "all")):
            value = 1.0 + place + 0.1 * int(seed) - 0.5 * (arm == f"{score}_{how}")
            common = {**about, "num_clients": 10, "seed": 0, "split": split, "standard_error": 0.1}
            records = [
                ScoreRecord(score, how, value, round=ROUNDS - 1, optimised_on=["pixels"], **common),
                ScoreRecord(score, how, 0.5, generator="floor", **common),
            ]
            append_records(folder / SCORES_FILE, records)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ in their seeds alone."""
    recipe = write_recipe(tmp_path_factory.mktemp("recipes")) / "quickstart.yaml"
    folder = tmp_path_factory.mktemp("runs")
    return [make(Training(recipe, folder / f"without-{seed}", seed)) for seed in range(2)]


def test_each_arm_trains_on_its_score_and_aggregate_with_a_fixed_weight():
    assert losses_of("without", CHOICE) is None
    for arm in ARMS[1:]:
        (loss,) = losses_of(arm, CHOICE)
        score, aggregate = arm.split("_")
        inner = loss["init_args"]["loss"]
        assert inner["class_path"].endswith({"fid": "FastFIDLoss", "kid": "MMD2Loss"}[score])
        assert inner["init_args"]["aggregate"] == aggregate
        assert loss["init_args"]["weight"] == {"fid": 10, "kid": 200}[score]


def test_trainings_differ_in_loss_and_seed_and_are_scored_at_their_end_where_rounds_are_given(tmp_path):
    study = Study("toy", tmp_path, {})
    study.numbers["digits"] = {"known": True}  # so that nothing is trained
    plain = trainings(study, CHOICE)
    assert list(plain) == list(ARMS)
    assert [run.folder.name for run in plain["kid_all"]] == ["kid_all-3", "kid_all-4"]
    assert settings_of(plain["without"][0]) == {"--model.init_args.generator_losses": "null"}
    given = settings_of(trainings(study, replace(CHOICE, rounds=7))["fid_all"][1])
    assert given["--trainer.max_epochs"] == "7"
    assert json.loads(given["--trainer.callbacks"])[0]["init_args"]["every_n_rounds"] == 7


def test_traces_are_of_the_clients_pool_and_of_each_by_itself(runs):
    parts = [part.flatten(1).double() / 255 for part in client_images(runs[0])]
    whole = torch.cat(parts)
    scale = traces(torch.cat(client_images(runs[0])), ["pixels"])["pixels"] / float(whole.var(0).sum())
    found = real_traces(runs[0], ["pixels"])["pixels"]
    assert found["pool"] == pytest.approx(scale * float(whole.var(0).sum()))
    within = sum(len(part) * float(part.var(0).sum()) for part in parts) / len(whole)
    assert found["within"] == pytest.approx(scale * within)
    assert found["within"] < found["pool"]


def test_a_loss_from_messages_is_the_one_from_images(runs):
    found = messages_against_images(runs[0])
    assert max(found["value"].values()) < 1e-9
    assert max(found["gradient"].values()) < 1e-9
    assert found["bytes"]["64"] == pytest.approx(8 * (1 + 64 + 64 * 65 / 2), rel=0.02)


# ---- the toy ----

POINTS = [torch.randn(n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + n / 50 for n in (40, 60)]
BATCH = torch.randn(16, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gradient(objective, batch):
    batch = batch.clone().requires_grad_()
    return torch.autograd.grad(objective(batch), batch)[0]


def test_optima_are_those_of_the_closed_forms():
    variances = torch.linspace(0.5, 3, 251, dtype=torch.float64)
    for score, formula in (("fid", toy_frechet), ("kid", toy_kernel)):
        for aggregate in ("all", "avg"):
            least = float(variances[formula(variances)[aggregate].argmin()])
            assert least == pytest.approx(OPTIMA[f"{score}_{aggregate}"], abs=1e-9)


@pytest.mark.parametrize("aggregate", ["all", "avg"])
def test_fid_from_messages_is_fid_from_the_points(aggregate):
    from_points = FastFIDLoss(QueueMoments(64), aggregate).set_references(POINTS)
    from_messages = frechet_objective(sent(POINTS), aggregate, queue=64)
    assert float(from_messages(BATCH)) == pytest.approx(float(from_points(BATCH)), rel=1e-10)
    assert torch.allclose(gradient(from_messages, BATCH), gradient(from_points, BATCH), rtol=1e-9, atol=1e-12)


def test_a_message_holds_six_numbers_and_not_the_points():
    short, long = sent([POINTS[0][:20], POINTS[0]])
    assert len(short) == len(long) < 20 * 2 * 8  # count, two sums, three sums of products; and the header
    with pytest.raises(MessageError):
        frechet_objective([short[:-1]], "all", queue=64)


def test_the_mean_of_the_clients_own_kid_has_the_gradient_of_the_pools():
    pooled, own = (gradient(kernel_objective(POINTS, aggregate), BATCH) for aggregate in ("all", "avg"))
    assert torch.allclose(pooled, own, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_training_leads_to_the_optima():
    settings = ToySettings(points=3000, kernel_points=400, batch=128, queue=1024, steps=200)
    found = train_toy(settings, seed=0)
    ends = {name: end[2] for name, end in found["end"].items()}
    assert ends["fid_all"] == pytest.approx(2, abs=0.2)
    assert ends["fid_avg"] == pytest.approx(1, abs=0.1)
    assert ends["kid_all"] == pytest.approx(2, abs=0.4)  # 600 points of each client
    assert ends["kid_avg"] == pytest.approx(ends["kid_all"], rel=1e-9)
    assert found["kid gradients"] < 1e-12
    assert found["variance"]["fid_all"][0] == pytest.approx(0.25)
    assert len(found["steps"]) == len(found["variance"]["kid_avg"]) == 201


# ---- tables and outcomes, from numbers by hand ----


def cells(table, column):
    return list(table.columns[column].cells)


def test_the_toys_table_and_outcomes_are_means_over_seeds():
    ends = {"fid_all": 2.05, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.5}
    toy = {
        f"seed {seed}": {
            "end": {name: [0, 0, end + shift, 1] for name, end in ends.items()},
            "kid gradients": 1e-15,
            "bytes": 288,
        }
        for seed, shift in enumerate((-0.1, 0.1))
    }
    assert cells(toy_table(toy), 2) == ["2.05 ± 0.1", "1 ± 0.1", "2 ± 0.1", "2.5 ± 0.1"]
    assert "288 bytes" in toy_table(toy).caption
    lines = toy_outcomes(toy)
    assert lines[0] == "as expected: FID-all leads to the variance 2.050, its optimum is 2"
    assert [line.split(":")[0] for line in lines[: len(OBJECTIVES)]] == ["as expected"] * 3 + ["not seen"]


def test_what_two_losses_change_is_told_beside_what_two_seeds_do():
    digits = {
        "marks": {"pixels/fid_all": "*"},
        "scores": {
            "pixels/fid_all": {arm: [1.0, 2.0] for arm in ARMS},  # of a seed nothing apart, of two seeds 1
            "pixels/fid_avg": {arm: [1.0, 2.0] if arm == "fid_avg" else [3.0, 4.5] for arm in ARMS},  # 2.25, and 1.25
        },
        "floor": {"pixels/fid_avg": 1.75},
        "real traces": {"pixels": {"pool": 4.0, "within": 2.0}},
        "traces": {"pixels": {arm: [3.0 if arm == "fid_all" else 2.0] * 2 for arm in ARMS}},
        "messages": {"value": {"all": 0.0}, "gradient": {"all": 1e-15}, "bytes": {"64": 17416}},
    }
    lines = digits_outcomes(digits)
    assert lines[0].startswith("not seen: FID-all and FID-avg train other models")
    assert lines[1].endswith("2.25 apart in FID-avg on average, two seeds of one of them 1.25")
    assert lines[1].startswith("as expected")
    assert lines[2].startswith("not seen: FID-all in pixels")
    assert lines[4].startswith("cannot be told from these 2 seeds: trained on FID-avg")
    assert lines[4].endswith("1.5, than held-out real ones, 1.75: -0.25 (-6.6 to +6.1)")
    assert lines[5].startswith("as expected: FID-avg leaves a lower trace")
    assert "0.50 of the pool's, than FID-all, 0.75 (within a client: 0.50): -0.25 (-0.25 to -0.25)" in lines[5]


def test_one_seed_has_nothing_to_compare_two_losses_with():
    assert apart({"fid_all": [1.0, 2.0, 4.0], "fid_avg": [1.0, 1.0, 1.0]}) == (4 / 3, 1.0)
    assert apart({"fid_all": [1.0], "fid_avg": [3.0]}) == (2.0, None)


def test_the_table_marks_what_was_trained_on_and_shows_traces_as_shares_of_the_pools():
    digits = {
        "scores": {name: {arm: [1.0, 3.0] for arm in ARMS} for name in ("fid_all", "pixels/fid_all")},
        "marks": {"fid_all": "", "pixels/fid_all": "*"},
        "floor": {"fid_all": 0.25},
        "traces": {"pixels": {arm: [2.0, 2.0] for arm in ARMS}},
        "real traces": {"pixels": {"pool": 4.0, "within": 1.0}},
    }
    table = digits_table(digits)
    assert cells(table, 0) == ["fid_all", "pixels/fid_all *", "trace, pixels *"]
    assert cells(table, 1) == ["2 ± 1", "2 ± 1", "0.5 ± 0"]
    assert cells(table, 5) == ["0.25", "-", "1 (a client: 0.25)"]


def test_differences_are_shown_for_held_out_images_in_embeddings_not_trained_on():
    row = {"difference": -0.5, "interval": [-1.0, 0.25]}
    columns = ("fid_all", "report/fid_all", "report/pixels/fid_all", "report/fid_worst")
    digits = {
        "against no loss": {arm: dict.fromkeys(columns, row) for arm in ARMS[1:]},
        "scores": {name: {} for name in columns[:3]},
        "marks": {"fid_all": "", "report/fid_all": "", "report/pixels/fid_all": "(*)"},
    }
    table = difference_table(digits)
    assert [column.header for column in table.columns] == ["trained on", "fid_all"]
    assert cells(table, 1) == ["-0.5 (-1 to +0.25)"] * 3
