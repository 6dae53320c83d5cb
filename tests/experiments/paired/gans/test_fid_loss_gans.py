"""GANs with and without FID as a loss: which runs are asked for, what is compared, the whole from random weights."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.experiments.engine.image_scores import real_side
from fedgen.experiments.paired.gans import fid_loss_gans as experiment
from fedgen.experiments.paired.gans.fid_loss_gans import fid_loss_gans
from fedgen.experiments.paired.gans.gan_arms import (
    DIGITS,
    EMA,
    FORMS,
    MINIBATCH,
    NETWORKS,
    PICTURES,
    QUEUE,
    WITHOUT,
    GanChoice,
    losses_of,
)
from fedgen.experiments.paired.gans.gan_report import key_of, outcomes, pair_outcomes, scored, tables_of
from fedgen.losses import AdaptiveWeight, BatchMoments, EMAMoments, QueueMoments
from tests.experiments.tiny_runs import settings_of, untrained

RECIPES = Path(__file__).parents[4] / "recipes"
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"networks": ("biggan",)}, r"networks=\['biggan'\]: give one or more of sngan, dcgan, sagan, each once"),
        ({"networks": ()}, "networks="),
        ({"arms": (EMA, EMA)}, "arms=.*each once"),
        ({"arms": (WITHOUT,)}, "arms=.*minibatch, queue, ema"),
        ({"embedding": "pixels"}, "embedding='pixels' is the one that FID is optimised in"),
        ({"seeds": 0}, "seeds=0: must be at least 1"),
        ({"picture_rounds": 0}, "picture_rounds=0"),
        ({"parallel": 0}, "parallel=0"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fid_loss_gans(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_recipe_that_is_not_there_or_has_no_length_is_refused_before_any_run(tmp_path):
    options = {"networks": ("dcgan",), "recipes": tmp_path}
    (tmp_path / "dcgan_digits.yaml").write_text("trainer: {max_epochs: 2}")
    with pytest.raises(FileNotFoundError, match=r"dcgan_mnist5k.yaml does not exist.*--recipes"):
        fid_loss_gans(tmp_path / "out", **options)
    (tmp_path / "dcgan_mnist5k.yaml").write_text("trainer: {}")
    with pytest.raises(ValueError, match=r"dcgan_mnist5k.yaml must say max_epochs"):
        fid_loss_gans(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


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


# ---- all of it ----


class Means(nn.Module):
    """Means of an image's columns."""

    def forward(self, images):
        return images.mean((1, 2))


@pytest.fixture
def trained(monkeypatch):
    """Names of the run folders that were trained, by weights of chance; networks as embeddings stand for others."""
    names = []

    def train_all(trainings, parallel):
        for training in trainings:
            names.append(training.folder.name)
            if not training.folder.exists():
                untrained(training, rounds=(0,))

    def pick(name, **options):
        return load_embedding(name) if name == "pixels" else load_embedding(Means(), name=name)

    monkeypatch.setattr(experiment, "train_all", train_all)
    monkeypatch.setattr(experiment, "load_embedding", pick)
    monkeypatch.setattr(experiment, "QUICK_IMAGES", 60)
    return names


@pytest.mark.slow
def test_it_scores_all_runs_draws_both_figures_and_prints_again_from_its_file(tmp_path, trained, capsys):
    options = {"embedding": JUDGE, "recipes": RECIPES, "quick": True, "networks": ("sagan",)}
    fid_loss_gans(tmp_path / "out", **options)
    first = capsys.readouterr().out
    assert len(trained) == 4 + 2
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert list(numbers["digits"]) == [key_of("sagan", arm, 0) for arm in (WITHOUT, *FORMS)]
    assert list(numbers["mnist5k"]) == [key_of("sagan", arm, 0) for arm in (WITHOUT, EMA)]
    assert numbers["images of digits"] == numbers["images of mnist5k"] == 60
    assert set(numbers["floor of digits"]) == {"pixels", JUDGE}
    assert set(numbers["floor of mnist5k"]) == {"efficientnet-lite0-32", "pixels"}
    for name in ("fid_loss_gans.png", "fid_loss_gans_samples.png", "samples-sagan-ema.png", "samples-real.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    trained.clear()
    fid_loss_gans(tmp_path / "out", **options)
    assert capsys.readouterr().out == first
    assert trained == []


def test_more_seeds_join_those_that_are_known_and_give_intervals(tmp_path, trained, monkeypatch, capsys):
    options = {"embedding": JUDGE, "recipes": RECIPES, "networks": ("dcgan",), "arms": (QUEUE,), "pictures": False}
    monkeypatch.setattr(experiment, "real_side", lambda runs, embeddings, _: real_side(runs, embeddings, 60))
    fid_loss_gans(tmp_path / "out", **options, seeds=1)
    assert len(trained) == 2
    assert "seen" not in capsys.readouterr().out
    trained.clear()
    fid_loss_gans(tmp_path / "out", **options, seeds=2)
    assert sorted(trained) == [f"dcgan_digits-{arm}-split0-rounds500-seed1" for arm in (QUEUE, WITHOUT)]
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    values = [numbers["digits"][key_of("dcgan", QUEUE, seed)]["pixels"]["fid"] for seed in (0, 1)]
    found = numbers["compared on digits, 2 seeds"][key_of("dcgan", QUEUE)]["pixels"]["fid"]
    assert found["values"] == values
    assert len(found["interval"]) == 2
    printed = capsys.readouterr().out
    assert sum(printed.count(said) for said in ("as expected", "not seen", "cannot be told")) == 3


@pytest.mark.slow
def test_a_pair_whose_pictures_are_lost_is_drawn_again(tmp_path, trained):
    options = {"embedding": JUDGE, "recipes": RECIPES, "quick": True, "networks": ("dcgan",), "arms": (EMA,)}
    fid_loss_gans(tmp_path / "out", **options)
    lost = tmp_path / "out" / "samples-dcgan-ema.png"
    before = lost.read_bytes()
    lost.unlink()
    trained.clear()
    fid_loss_gans(tmp_path / "out", **options)
    assert lost.read_bytes() == before
    assert trained == ["dcgan_mnist5k-ema-split0-rounds1-seed0"]


@pytest.mark.slow
def test_the_recipe_trains_without_and_with_the_loss(tmp_path):
    options = {"networks": ("dcgan",), "arms": (EMA,), "pictures": False, "quick": True, "recipes": RECIPES}
    fid_loss_gans(tmp_path / "out", embedding="efficientnet-lite0-32", **options)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    values = [numbers["digits"][key_of("dcgan", arm, 0)]["pixels"]["fid"] for arm in (WITHOUT, EMA)]
    assert values[0] != values[1]
