"""What each aggregate of FID and KID, as a loss, makes of a federated GAN on digits."""

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
    DistributedChoice,
    losses_of,
    messages_against_images,
    real_traces,
    traces,
    trainings,
)
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
