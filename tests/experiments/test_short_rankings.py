"""Experiments of rankings and of theory in seconds: what they leave and say, and that nothing is measured twice."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedgen.experiments import EXPERIMENTS
from fedgen.experiments.engine import trainings
from fedgen.experiments.ranking import class_generators as makers
from fedgen.experiments.ranking import critic_distance, sample_size
from fedgen.experiments.ranking import paper_table as subset_kid
from fedgen.experiments.ranking.paper_table import interval
from fedgen.experiments.ranking.sample_size import REAL
from fedgen.experiments.ranking.trained_checkpoints import classes_of, of_kind
from fedgen.experiments.theory import fastfid as fastfid_error
from fedgen.experiments.theory import fastfid as fastfid_speed
from fedgen.experiments.theory.gaussian_toy import largest_z
from fedgen.scores import theory
from tests.experiments.ranking.test_paper_table import write_table
from tests.experiments.ranking.tiny_network import write_network
from tests.experiments.tiny_runs import draw_unwritten, untrained, write_recipe

DIGITS = {"data": "digits", "embedding": "pixels"}
CLASSES = {**DIGITS, "components": 4, "num_images": 40, "quick": True}
RISING = {**DIGITS, "clients": 5, "anchors": 3, "sizes": (30, 100, 300)}
RECIPES = Path("recipes")
SMALL = {"dims": (16, 24), "batch_sizes": (4, 8), "repeats": 3, "slow_repeats": 2}


def toy(numbers):
    curves = numbers["against closed forms"]["curves"]
    assert max(row["largest z"] for row in curves.values()) < 4
    assert curves["fid_avg"]["least at"] == pytest.approx(1, abs=0.21)
    for curve in ("fid_all", "kid_avg", "kid_all"):
        assert curves[curve]["least at"] == pytest.approx(2, abs=0.21)
    fid, kid = numbers["ranking"]["fid"], numbers["ranking"]["kid"]
    assert kid["inverted"] == []
    assert kid["gap"]["spread"] < 1e-12
    assert len(fid["inverted"]) > 50
    assert fid["control inverted"] == [0]


def loglik(numbers):
    scores = numbers["scores"]
    for family in ("variance", "mean"):
        assert scores[family]["avg"] == pytest.approx(scores[family]["all"], rel=1e-13)
        assert largest_z(scores[family]) < 4
    assert scores["variance"]["closed form"][10] == pytest.approx(-3.18445, abs=5e-6)
    assert scores["mean"]["closed form"][0] == pytest.approx(-3.18445 - 2**2 / 4, abs=5e-6)
    assert scores["ref"]["value"] == pytest.approx(-3.17471, abs=4 * scores["ref"]["error"])


def barycentre(numbers):
    assert list(numbers["none commute"]) == ["0", "1"]


def minibatch(numbers):
    assert numbers["scales"]["batch_size"]["m"] == [4, 8]


def error(numbers):
    assert len(numbers["errors"]) == 2 * len(fastfid_error.PUBLISHED)
    assert all(set(cell) == {"answer", *fastfid_error.TRACES} for cell in numbers["errors"].values())


def speed(numbers):
    assert len(numbers["times"]) == 2 * 2 * 6
    for cell in numbers["times"].values():
        assert cell["seconds"][0] > 0
        assert cell["seconds"][1] / cell["seconds"][0] == pytest.approx(cell["products"][1] / cell["products"][0])


def class_generators(numbers):
    found, names = numbers["found"]["scores"], [name for name in numbers["scores"] if name != REAL]
    assert len(names) == 12
    assert list(numbers["generators"]["kinds"]) == names
    assert set(numbers["generators"]["kinds"].values()) == {"class", "mixture", "neighbourhood"}
    assert found["fid"]["pairs"] == 12 * 11 // 2  # real images are no generator
    assert found["kid"]["inverted"] == []
    assert found["kid"]["gap"]["spread"] < 1e-12 * numbers["kernel"]["mean"]
    assert found["kid"]["gap"]["mean"] == pytest.approx(numbers["kernel"]["gap"])
    assert found["fid"]["gap"]["spread"] > max(one["spread"] for one in found["fid"]["control gap"])
    assert numbers["found"]["mean term"]["spread"] < 1e-12
    real = numbers["scores"][REAL]["clients"]["fid"]["all"]
    assert real < min(numbers["scores"][name]["clients"]["fid"]["all"] for name in names)


def wasserstein(numbers):
    shares, scores = numbers["calibration"], numbers["scores"]
    assert list(shares) == ["shift 0.25", "shift 0.5", "shift 1", "shift 2", "width 2", "width 4"]
    assert 0.2 < shares["shift 2"]["w1 groupsort"] < 1.05
    assert shares["shift 1"]["sw1"] == pytest.approx(1, abs=0.15)
    assert [numbers["found"]["scores"][score]["pairs"] for score in critic_distance.TITLES] == [3, 3, 3]
    names = [name for name in scores if name != REAL]
    assert (names[0], len(names)) == ("5", 3)
    assert scores[REAL]["clients"]["sw1"]["all"] < min(scores[name]["clients"]["sw1"]["all"] for name in names)


def sizes(numbers):
    found = numbers["found"]
    assert list(numbers["scores"]) == ["10 classes", "10 IID 0", "40 classes", "40 IID 0"]
    for size in ("10", "40"):
        shares = [sample_size.share_of_bias(found[size], score) for score in ("fid pca", "fid")]
        assert shares[0] < shares[1] < 1
        assert found[size]["kid"]["inverted"] == []
        assert found[size]["kid"]["gap"]["spread"] < 1e-12
        assert found[size]["fid"]["pairs"] == 10  # real images are no generator
    gaps = {score: sample_size.iid_gaps(found, score) for score in ("fid", "fid pca", "fid infinity")}
    assert gaps["fid"]["10"] > 2 * gaps["fid"]["40"] > 0
    assert "fid infinity" not in found["10"]  # 24 images are needed
    assert abs(gaps["fid infinity"]["40"]) < 0.25 * gaps["fid pca"]["40"]
    assert found["40"]["fid"]["real, IID"]["avg"] > found["40"]["fid"]["real, IID"]["all"]


def paper(numbers):
    low, high = interval(numbers["explained"]["noisy"])
    assert 0 < low <= len(numbers["printed"]["kid"]["inverted"]) <= high
    assert len(numbers["printed"]["fid"]["inverted"]) > 0
    rows = numbers["subsets"].values()
    gaps = {kind: [row[kind]["avg"] - row[kind]["all"] for row in rows] for kind in ("exact", "subsets")}
    assert max(gaps["exact"]) - min(gaps["exact"]) < 1e-12
    assert max(gaps["subsets"]) - min(gaps["subsets"]) > 1e-3


def checkpoints(numbers):
    assert len(numbers["scores"]) == 4
    assert numbers["real"]["images"] == 60
    first = next(iter(numbers["scores"].values()))["clients"]
    assert numbers["found"]["kid"]["gap"]["mean"] == pytest.approx(first["kid"]["avg"] - first["kid"]["all"], rel=1e-9)


def perfect(numbers):
    assert len(numbers["scores"]) == 2 + 2 + 10 + 1
    assert list(numbers["pairs"]) == list(numbers["found"]) == ["WGAN-GP", "DDPM"]
    for kind, found in numbers["found"].items():
        assert found["kid"]["inverted"] == found["kid-rbf"]["inverted"] == []
        assert found["fid"]["pairs"] == 2 * 10
        assert numbers["pairs"][kind]["checkpoint"].startswith(kind)
        own = of_kind(numbers, kind).clients
        assert [name.split(",")[0] for name in own][:2] == [kind, kind]
        assert (len(own), len(classes_of(own))) == (2 + 10 + 1, 10)


def truncation(numbers):
    found = numbers["found"]["scores"]
    assert list(numbers["scores"]) == ["0.01", "0.3", "0.7", "1"]
    assert found["kid"]["inverted"] == []
    assert found["kid"]["gap"]["spread"] < 1e-12 * found["kid"]["gap"]["mean"]
    assert len(found["fid"]["control inverted"]) == 1
    assert numbers["real"]["fid"]["all"] < min(row["clients"]["fid"]["all"] for row in numbers["scores"].values())


def rising(numbers):
    assert list(numbers) == ["scores", "floor", "found"]
    assert list(numbers["scores"]["2"]) == ["clients", "IID 0"]


def intra(numbers):
    assert list(numbers["scores"]["0"]) == ["K = 5", "K = 5, IID 0", "K = 10", "K = 10, IID 0"]
    assert [numbers["floors"][k]["images"] for k in ("5", "10")] == [60, 110]
    assert list(numbers["found"]) == ["5", "10"]


def manifold(numbers):
    found = numbers["found"]
    assert found["recall avg - all"]["clients"] < 1e-12
    assert found["recall avg - all"]["unequal, n_i / n"] < 1e-12
    assert found["recall avg - all"]["unequal, uniform"] > 1e-3
    assert found["generators"]["recall"]["inverted"] == 0
    assert (found["generators"]["precision"]["pairs"], found["as many images"]["precision"]["pairs"]) == (36, 15)


@dataclass(frozen=True)
class Short:
    """A short run.

    Args:
        options: of the experiment.
        check: of its numbers.
        says: words that it prints.
        figures: that it leaves, beside one named after the experiment.
        quick: whether it runs in `make test` too.
        prepare: makes what it reads.
    """

    options: dict[str, Any]
    check: Callable[[dict[str, Any]], None]
    says: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    quick: bool = False
    prepare: Callable[[], Any] = lambda: None


def write_recipes():
    write_recipe(RECIPES)
    write_recipe(RECIPES, "ddpm_digits.yaml")


TRAINED = {"intervals": (2,), "dealings": 1}
PAIRS = tuple(f"{kind}-{side}.png" for kind in ("wgan-gp", "ddpm") for side in ("checkpoint", "class"))
RUNS = {
    "gaussian-toy": Short(
        {"redraws": 3, "quick": True}, toy, ("as expected: KID's gap is one number",), quick=True
    ),
    "gaussian-loglik": Short({"quick": True}, loglik, ("as expected: LL-avg = LL-all to rounding",)),
    "barycentre": Short(
        {"draws": 2, "generators": 3, "clients": 2, "dim": 3}, barycentre, ("as expected: it is off where",), quick=True
    ),
    "minibatch-bias": Short({"dim": 4, "batch_sizes": (4, 8), "steps": 10, "queue": 100}, minibatch, quick=True),
    "fastfid-error": Short({"draws": 2}, error, ("785", "as expected: ours, float64"), quick=True),
    "fastfid-speed": Short(
        {**SMALL, "spectrum": "falling"}, speed,
        ("as expected: all methods give one value", "have no backward pass"), quick=True,
    ),
    "class-generators": Short(
        CLASSES, class_generators, ("as expected: KID: avg and all order 0 of 66 pairs differently",), quick=True
    ),
    "wasserstein": Short({**CLASSES, "count": 3}, wasserstein),
    "sample-size": Short({**DIGITS, "components": 4, "sizes": (10, 40), "controls": 1}, sizes),
    "paper-table": Short(
        {"table": Path("table.csv"), "quick": True}, paper,
        ("as expected: all images invert 0 pairs by KID", "as expected: rounding alone inverts 0"), ("subset_kid.png",),
        prepare=lambda: write_table(Path("table.csv"), noise=0.01),
    ),
    "wgan-gp-checkpoints": Short(
        {**TRAINED, "seeds": 2, "num_images": 60}, checkpoints,
        ("as expected: KID: avg - all is one number", "4 checkpoints"), prepare=write_recipes,
    ),
    "perfect-generator": Short(
        {**TRAINED, "embedding": "pixels", "seeds": 1}, perfect,
        ("as expected: KID: avg and all order 0 of 20 pairs differently",
         *(f"{kind}: pairs of one of 2 checkpoints and one of 10 classes" for kind in ("WGAN-GP", "DDPM"))),
        PAIRS, prepare=write_recipes,
    ),
    "truncation": Short(
        {"network": Path("tiny.safetensors"), "embedding": "pixels", "quick": True, "taus": (0.01, 0.3, 0.7, 1.0)},
        truncation,
        ("as expected: KID: avg - all is one number",), ("truncation_samples.png",),
        prepare=lambda: write_network(Path("tiny.safetensors")),
    ),
    "variance-limited": Short(
        {**RISING, "components": 8, "controls": 1}, rising, ("as expected: KID: avg - all is one number",)
    ),
    "intra-client-variance": Short(
        {**DIGITS, "clients": (5, 10), "anchors": 2, "sizes": (30, 300), "components": 8}, intra, ("as expected: K = ",)
    ),
    "manifold-metrics": Short(
        {**RISING, "clients": 7, "k": 3, "images": 100, "controls": 1}, manifold,
        ("as expected: recall's avg equals its all", "precision inverts"),
    ),
}  # fmt: skip


# of the figures, which take as long as what is measured, one of each kind is written
WRITTEN = {"gaussian-toy"}


def run(name, options):
    module, function = EXPERIMENTS[name][0].split(":")
    getattr(import_module(module), function)(output=Path("out"), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if short.quick else pytest.mark.slow) for name, short in RUNS.items()]
)
def test_it_leaves_numbers_and_a_figure_says_what_it_saw_and_measures_nothing_twice(
    name, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(trainings.Training, "run", untrained)  # weights at random, and no training
    monkeypatch.setattr(critic_distance, "QUICK_STEPS", 5)
    monkeypatch.setattr(makers, "QUICK_GENERATORS", 12)
    monkeypatch.setattr(subset_kid, "SUBSETS", 4)
    monkeypatch.setattr(sample_size.ClassSplit, "classes", tuple("01234"))
    monkeypatch.setattr(theory, "_mixture_log_likelihood", cache(theory._mixture_log_likelihood))
    monkeypatch.setattr(fastfid_error, "DIM", 300)
    monkeypatch.setattr(fastfid_speed, "REAL", 200)
    fastfid_speed.prepare.cache_clear()
    short = RUNS[name]
    short.prepare()
    drawn = [] if name in WRITTEN else draw_unwritten(monkeypatch)
    run(name, short.options)
    printed = capsys.readouterr().out
    short.check(json.loads(Path("out/results.json").read_text())["numbers"])
    for words in short.says:
        assert words in " ".join(printed.split())
    own = () if name == "fastfid-error" else (f"{name.replace('-', '_')}.png",)
    for figure in {*own, *short.figures} - {path.name for path in drawn}:
        assert Path("out", figure).read_bytes().startswith(b"\x89PNG")
    draw_unwritten(monkeypatch)
    monkeypatch.setattr("fedgen.experiments.engine.study.save_results", None)  # with which every new number is kept
    monkeypatch.setattr(trainings.Training, "run", None)
    run(name, short.options)
    assert capsys.readouterr().out == printed
