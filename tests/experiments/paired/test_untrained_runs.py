"""Experiments over paired seeds whose trainings are replaced by weights at random; everything else is as it is run."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.evaluation import append_records
from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.experiments.engine.scored_checkpoints import Scorers
from fedgen.experiments.paired import (
    communication_interval,
    distributed_fid_loss,
    fid_finetune,
    fid_loss_artifacts,
    fid_loss_gans,
)
from fedgen.experiments.paired.distributed_fid_loss import ToySettings
from fedgen.experiments.paired.fid_loss_artifacts import FLOW, FLOW_FID
from tests.experiments.paired.test_digits_fid_loss import record
from tests.experiments.paired.test_distributed_fid_loss import ROUNDS, make
from tests.experiments.paired.test_fid_finetune import save_generator
from tests.experiments.tiny_runs import draw_unwritten, settings_of, untrained, write_recipe

SHIPPED = Path(__file__).parents[3] / "recipes"
JUDGE = "judge"


class Means(nn.Module):
    """Means of an image's columns."""

    def forward(self, images):
        return images.mean((1, 2))


def pick(name, **options):
    """Pixels as they are, means of columns under the name of any network."""
    return load_embedding(name) if name == "pixels" else load_embedding(Means(), name=name)


# ---- what a training leaves ----


def scores_alone(run):
    used = [] if run.folder.name.startswith("without") else ["pixels"]
    run.folder.mkdir(parents=True)
    append_records(run.folder / SCORES_FILE, [record(3.0 + run.seed - len(used), used)])


def tunings(run):
    untrained(run)
    if run.recipe.stem == "quickstart":
        save_generator(run.folder / "last.ckpt", run.seed)
    else:
        for k in range(2):
            save_generator(run.folder / checkpoint_name(k), len(run.folder.name) + k)


def with_its_settings(run):
    """The run folder of the recipe with the settings of the run: its checkpoints hold weights near the first ones."""
    recipe = yaml.safe_load(run.recipe.read_text()) | {"seed_everything": run.seed}
    for key, value in settings_of(run).items():
        *path, last = key.removeprefix("--").split(".")
        place = recipe
        for name in path:
            place = place.setdefault(name, {})
        place[last] = yaml.safe_load(value)
    run.folder.mkdir(parents=True)
    (run.folder / RECIPE).write_text(yaml.safe_dump(recipe))
    rounds = recipe["trainer"]["max_epochs"]
    every = recipe["trainer"]["callbacks"][0]["init_args"]["every_n_rounds"]
    torch.manual_seed(100 * run.seed)
    model, _ = rebuild(run.folder)
    for done in range(every, rounds + 1, every):
        state = {
            name: value + 0.01 * torch.randn_like(value) if value.is_floating_point() else value
            for name, value in model.state_dict().items()
        }
        torch.save(
            {"state_dict": state, "hyper_parameters": dict(model.hparams), "epoch": done - 1},
            run.folder / checkpoint_name(done - 1),
        )


# ---- what an experiment finds ----


def check_digits(numbers, trained, printed):
    assert trained == ["without-0", "with-0", "without-1", "with-1"]
    assert "-1 (-1 to -1)" in printed


def check_distributed(numbers, trained, printed):
    digits = numbers["digits"]
    assert digits["scores"]["fid_avg"]["fid_avg"] == pytest.approx([0.8, 0.9])  # of seeds 3 and 4
    assert digits["against no loss"]["fid_all"]["fid_all"]["difference"] == pytest.approx(-0.5)
    assert digits["floor"]["report/kid_all"] == 0.5
    assert (digits["marks"]["fid_all"], digits["marks"]["report/kid_avg"]) == ("*", "(*)")
    text = "as expected: FID-all in pixels is lower for the model trained on it than for FID-avg's: -0.5 (-0.5 to -0.5)"
    assert text in printed


def check_tunings(numbers, trained, printed):
    assert len(trained) == 1 + 3
    assert len(numbers["scores"]) == 1 + 3 * 2
    assert set(numbers["floor"]) == {"pixels", "efficientnet-lite0-32", JUDGE}


def check_gans(numbers, trained, printed):
    assert len(trained) == 2 + 2
    for data, arms in (("digits", ("without", "minibatch")), ("mnist5k", ("without", "ema"))):
        assert list(numbers[data]) == [f"sagan, {arm}, seed 0" for arm in arms]
        assert numbers[f"images of {data}"] == 40
    assert set(numbers["floor of digits"]) == {"pixels", JUDGE}
    assert set(numbers["floor of mnist5k"]) == {"efficientnet-lite0-32", "pixels"}


def check_artifacts(numbers, trained, printed):
    assert [name.split("-after4-of-")[0] for name in trained[6:]] == [
        "fid_alone_digits-critic-removed-split0-rounds4"
    ] * 2
    assert [name[-6:] for name in trained[6:]] == ["-seed0", "-seed1"]
    assert (len(numbers["WGAN-GP + FID"]), len(numbers["Glow"])) == (2 * (2 + 1), 2 * (1 + 1))
    assert set(numbers["bits per dimension"]) == {f"{arm}, seed {seed}" for arm in (FLOW, FLOW_FID) for seed in (0, 1)}
    assert numbers["floor of Glow"]["samples"] == 30
    control, treated = (numbers["compared"]["Glow"][arm]["pixels"]["fid"] for arm in (FLOW, FLOW_FID))
    assert "difference" not in control
    pairs = zip(control["values"], treated["values"])
    assert treated["difference"] == pytest.approx(sum(b - a for a, b in pairs) / 2)
    assert sum(printed.count(said) for said in ("as expected", "not seen", "cannot be told")) == 9
    assert "proves little" in printed


def check_intervals(numbers, trained, printed):
    assert len(trained) == 2 * (1 + 2)
    assert len(numbers["scores"]) == 2 * len(trained)
    assert set(numbers["found"]) == {"pixels", JUDGE}
    first = next(iter(numbers["scores"].values()))["pixels"]["held-out images"]["clients"]["kid"]
    gap = numbers["found"]["pixels"]["held-out images"]["gap"]
    assert gap["mean"] == pytest.approx(first["avg"] - first["all"], rel=1e-9)
    assert len(communication_interval.grids_in(numbers)) == 6
    assert "as expected: KID, pixels, training images: avg - all is one number over all 12 checkpoints" in printed
    assert "DDPM: ddpm_digits.yaml, 16 maps at one resolution, no attention" in printed


# ---- one row an experiment ----

FEW = ToySettings(points=50, kernel_points=20, batch=16, queue=32, steps=5)
SHORT = fid_loss_artifacts.Lengths(before=4, after=4, gan_every=4, removed_every=4, flow=4, flow_every=4, images=30)
TINY, OWN = Path("recipes/quickstart.yaml"), Path("recipes")
DIGITS_RECIPE = SHIPPED / "wgan_gp_digits_fid.yaml"
FEW_INTERVALS = {"intervals": (4,), "iterations": 8, "checkpoints": 2, "seeds": 1, "num_images": 20, "dealings": 1}
CASES = {
    fid_loss_gans.digits_fid_loss: (
        {"recipe": DIGITS_RECIPE, "seeds": 2}, {}, scores_alone, check_digits, ("pairs.png",)
    ),
    distributed_fid_loss.distributed_fid_loss: (
        {"recipe": TINY, "seeds": 2, "rounds": ROUNDS, "seed": 3}, {"TOY": FEW}, make, check_distributed,
        distributed_fid_loss.FIGURES,
    ),
    fid_finetune.fid_finetune: (
        {"embedding": JUDGE, "recipes": OWN, "quick": True}, {}, tunings, check_tunings,
        ("fid_finetune.png", "tracked_images.png"),
    ),
    fid_loss_gans.fid_loss_gans: (
        {"embedding": JUDGE, "recipes": SHIPPED, "quick": True, "networks": ("sagan",), "arms": ("minibatch",)},
        {"QUICK_IMAGES": 40},
        lambda run: untrained(run, rounds=(0,)), check_gans,
        ("fid_loss_gans.png", "fid_loss_gans_samples.png", "samples-sagan-ema.png", "samples-real.png"),
    ),
    fid_loss_artifacts.fid_loss_artifacts: (
        {"embedding": JUDGE, "recipes": SHIPPED, "seeds": 2}, {"USUAL": SHORT}, with_its_settings, check_artifacts,
        ("fid_loss_artifacts.png", "critic-removed.png", "likelihood-fid.png"),
    ),
    communication_interval.communication_interval: (
        {"embedding": JUDGE, "recipes": OWN, **FEW_INTERVALS}, {}, untrained, check_intervals,
        ("communication_interval.png", "samples.png", "ddpm-interval-4.png", "wgan-gp-local-only.png"),
    ),
}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an experiment of CASES with options changed: its numbers, the runs that it trained, what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart.yaml", "finetune_digits.yaml", "ddpm_digits.yaml"):
        write_recipe(OWN, name)

    def go(experiment, **changes):
        options, patches, leave, _, _ = CASES[experiment]
        module, trained = sys.modules[experiment.__module__], []

        def train_all(trainings, parallel):
            for training in trainings:
                trained.append(training.place.name)
                if not training.place.exists():
                    leave(training)

        monkeypatch.setattr(distributed_fid_loss, "EMBEDDINGS", ("pixels",))
        for name, value in {**patches, "train_all": train_all, "load_embedding": pick}.items():
            monkeypatch.setattr(module, name, value, raising=name not in ("train_all", "load_embedding"))
        monkeypatch.setattr("fedgen.experiments.engine.trainings.train_all", train_all)
        experiment(output=Path("out"), **{**options, **changes})
        return json.loads(Path("out/results.json").read_text())["numbers"], trained, capsys.readouterr().out

    return go


# a picture that is lost, and the runs that are asked for to draw it again
LOST = {
    fid_loss_gans.fid_loss_gans: ("samples-sagan-ema.png", ["sagan_mnist5k-ema-split0-rounds1-seed0"]),
    communication_interval.communication_interval: ("ddpm-centralised.png", None),
}


# of the figures, which take as long as the scores, those with pictures of the runs are written
WRITTEN = {fid_loss_gans.fid_loss_gans}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", CASES, ids=lambda experiment: experiment.__name__)
def test_an_experiment_leaves_numbers_and_figures_and_prints_again_without_training(experiment, run, monkeypatch):
    drawn = [] if experiment in WRITTEN else draw_unwritten(monkeypatch)
    numbers, trained, printed = run(experiment)
    _, _, _, check, files = CASES[experiment]
    check(numbers, trained, " ".join(printed.split()))
    written = set(files) - {path.name for path in drawn}
    assert all((Path("out") / file).read_bytes().startswith(b"\x89PNG") for file in written)
    draw_unwritten(monkeypatch)
    again, trained, printed_again = run(experiment)
    assert (again, trained, printed_again) == (numbers, [], printed)
    if experiment in LOST:  # it comes back, and nothing is scored again
        name, asked = LOST[experiment]
        before = (lost := Path("out", name)).read_bytes()
        lost.unlink()
        monkeypatch.setattr(Scorers, "score", None)
        again, trained, _ = run(experiment)
        assert lost.read_bytes() == before
        assert again == numbers
        assert asked in (None, trained)


@pytest.mark.slow
def test_more_seeds_of_gans_join_those_that_are_known_and_give_intervals(run, monkeypatch):
    draw_unwritten(monkeypatch)
    real_side = fid_loss_gans.real_side
    monkeypatch.setattr(fid_loss_gans, "real_side", lambda runs, embeddings, _: real_side(runs, embeddings, 60))
    options = {"networks": ("dcgan",), "arms": ("queue",), "pictures": False, "quick": False}
    _, trained, printed = run(fid_loss_gans.fid_loss_gans, **options, seeds=1)
    assert len(trained) == 2
    assert "seen" not in printed
    numbers, trained, printed = run(fid_loss_gans.fid_loss_gans, **options, seeds=2)
    assert sorted(trained) == [f"dcgan_digits-{arm}-split0-rounds500-seed1" for arm in ("queue", "without")]
    values = [numbers["digits"][f"dcgan, queue, seed {seed}"]["pixels"]["fid"] for seed in (0, 1)]
    found = numbers["compared on digits, 2 seeds"]["dcgan, queue"]["pixels"]["fid"]
    assert found["values"] == values
    assert len(found["interval"]) == 2
    assert sum(printed.count(said) for said in ("as expected", "not seen", "cannot be told")) == 3


@pytest.mark.slow
def test_a_recipe_that_says_something_else_is_refused_and_a_comment_is_not(run, monkeypatch):
    draw_unwritten(monkeypatch)
    run(distributed_fid_loss.distributed_fid_loss, seeds=1)
    TINY.write_text(f"# a comment\n{TINY.read_text()}")
    run(distributed_fid_loss.distributed_fid_loss, seeds=1)
    TINY.write_text(TINY.read_text().replace("width: 4", "width: 8"))
    with pytest.raises(ValueError, match="settings"):
        run(distributed_fid_loss.distributed_fid_loss, seeds=1)
