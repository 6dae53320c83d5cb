"""What each aggregate of FID and KID, as a loss, makes of a federated GAN on digits."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.experiments.engine.run_images import client_images
from fedgen.experiments.engine.trainings import Training
from fedgen.experiments.paired.distributed import distributed_digits
from fedgen.experiments.paired.distributed import distributed_fid_loss as module
from fedgen.experiments.paired.distributed.distributed_digits import (
    ARMS,
    DistributedChoice,
    losses_of,
    messages_against_images,
    real_traces,
    traces,
    trainings,
)
from fedgen.experiments.paired.distributed.distributed_fid_loss import distributed_fid_loss
from fedgen.experiments.paired.distributed.distributed_toy import ToySettings
from tests.experiments.tiny_runs import TINY, settings_of, untrained, write_recipe

CHOICE = DistributedChoice(recipe=Path(__file__).parents[4] / "recipes" / "wgan_gp_digits_fid.yaml", seeds=2, seed=3)
FEW = ToySettings(points=50, kernel_points=20, batch=16, queue=32, steps=5)
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
    plain = trainings(CHOICE, tmp_path)
    assert list(plain) == list(ARMS)
    assert [run.folder.name for run in plain["kid_all"]] == ["kid_all-3", "kid_all-4"]
    assert settings_of(plain["without"][0]) == {"--model.init_args.generator_losses": "null"}
    given = settings_of(trainings(replace(CHOICE, rounds=7), tmp_path)["fid_all"][1])
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


@pytest.mark.slow
def test_the_experiment_trains_compares_and_draws_once(tmp_path, capsys, monkeypatch):
    recipe = write_recipe(tmp_path) / "quickstart.yaml"
    monkeypatch.setattr(module, "TOY", FEW)
    monkeypatch.setattr(module, "train_all", lambda jobs, parallel: [make(job) for job in jobs])

    def run():
        distributed_fid_loss(tmp_path / "out", recipe=recipe, seeds=2, rounds=ROUNDS, seed=3)

    monkeypatch.setattr(distributed_digits, "EMBEDDINGS", ("pixels",))
    run()
    first = capsys.readouterr().out
    digits = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]["digits"]
    assert digits["scores"]["fid_avg"]["fid_avg"] == pytest.approx([0.8, 0.9])  # of seeds 3 and 4
    assert digits["against no loss"]["fid_all"]["fid_all"]["difference"] == pytest.approx(-0.5)
    assert digits["floor"]["report/kid_all"] == 0.5
    assert (digits["marks"]["fid_all"], digits["marks"]["report/kid_avg"]) == ("*", "(*)")
    text = "as expected: FID-all in pixels is lower for the model trained on it than for FID-avg's: -0.5 (-0.5 to -0.5)"
    assert text in " ".join(first.split())
    for name in module.FIGURES:
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(module, "train_all", None)
    monkeypatch.setattr(module, "measure", None)
    run()
    assert capsys.readouterr().out == first
    recipe.write_text(f"# a comment\n{recipe.read_text()}")
    run()
    recipe.write_text(recipe.read_text().replace("width: 4", "width: 8"))
    with pytest.raises(ValueError, match=r"results of other settings(.*\n)*  recipes: "):
        run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds=0: must be at least 1"),
        ({"rounds": 0}, "rounds=0"),
        ({"kid_weight": 0.0}, "kid_weight=0: a loss needs a positive weight"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        distributed_fid_loss(tmp_path / "out", recipe=write_recipe(tmp_path) / "quickstart.yaml", **options)
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml does not exist.*--recipe"):
        distributed_fid_loss(tmp_path / "out", recipe=tmp_path / "nowhere.yaml")
    (tmp_path / "central.yaml").write_text("trainer: {max_epochs: 3}")
    with pytest.raises(ValueError, match="must say the communication_interval"):
        distributed_fid_loss(tmp_path / "out", recipe=tmp_path / "central.yaml")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_kid_and_fids_two_losses_train_models_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "QUICK_TOY", FEW)
    recipe = copy.deepcopy(TINY) | {"threads": 1}
    recipe["model"]["init_args"]["n_critic"] = 1  # of two iterations a round, one is the generator's
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    distributed_fid_loss(tmp_path / "out", recipe=tmp_path / "tiny.yaml", quick=True)
    out = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "KID-avg is not trained on digits" in out
    digits = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]["digits"]
    assert len({values[0] for values in digits["scores"]["fid_all"].values()}) == 4
