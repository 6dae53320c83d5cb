"""Every score through the evaluation is the value of its function on the same features."""

import gc

import pytest
import torch
from torch import Tensor

from fedgen.evaluation.plan import records_of
from fedgen.evaluation.reference import Reference, passes
from fedgen.evaluation.score_choice import choose_scores
from fedgen.scores import (
    AuthenticityReference,
    CriticOptions,
    FeatureLikelihoodReference,
    FrechetReference,
    KernelReference,
    ManifoldReference,
    MiFIDReference,
    RBFKernel,
    SlicedReference,
    WassersteinReference,
    inception_score,
    memorisation,
)
from fedgen.statistics import summarize


def features(count, seed, shift=0.0, dim=4):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) + shift


CLIENTS = [features(30, 0), features(20, 1, 0.5), features(25, 2, -0.5)]
GENERATED = features(40, 3, 0.3)
CRITIC = {"hidden": 8, "max_steps": 20, "batch_size": 16}


def alike(found, expected):
    """Whether two scores have the same values and errors, to rounding."""
    assert found.per_client.tolist() == pytest.approx(expected.per_client.tolist(), rel=1e-9)
    assert found.values == pytest.approx(expected.values, rel=1e-9)
    assert found.errors == pytest.approx(expected.errors, rel=1e-9)
    assert found.errors_over_clients == pytest.approx(expected.errors_over_clients, rel=1e-9)


EXPECTED = {
    "fid": lambda: FrechetReference.from_features(CLIENTS),
    "kid": lambda: KernelReference.from_features(CLIENTS),
    "kid-rbf": lambda: KernelReference.from_features(CLIENTS, RBFKernel(sigma=2.0)),  # the root of 4 features
    "sw1": lambda: SlicedReference.from_features(CLIENTS, 1, 50),
    "sw2": lambda: SlicedReference.from_features(CLIENTS, 2, 50),
    "mifid": lambda: MiFIDReference.from_features(CLIENTS),
    "w1": lambda: WassersteinReference.from_features(CLIENTS, CriticOptions(**CRITIC)),
}
OPTIONS = {"sw1": {"projections": 50}, "sw2": {"projections": 50}, "w1": CRITIC}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_score_is_that_of_its_function(name):
    (found,) = Reference(CLIENTS, {"name": name, **OPTIONS.get(name, {})}).score(GENERATED)
    assert found.name == name
    assert not found.higher_is_better
    alike(found, EXPECTED[name]().score(GENERATED))


def test_options_reach_the_score():
    asked = [{"name": "kid", "estimator": "v"}, {"name": "fid", "ddof": 0}, {"name": "kid-rbf", "sigma": 3.0}]
    kid, fid, rbf = Reference(CLIENTS, asked, "uniform").score(GENERATED)
    alike(kid, KernelReference.from_features(CLIENTS, None, "v", "uniform").score(GENERATED))
    alike(fid, FrechetReference.from_features(CLIENTS, "uniform", ddof=0).score(GENERATED))
    alike(rbf, KernelReference.from_features(CLIENTS, RBFKernel(3.0), "u", "uniform").score(GENERATED))


def test_the_four_manifold_scores_come_out_of_one_pass_in_the_order_asked_for(monkeypatch):
    made = []
    real = ManifoldReference.from_features
    monkeypatch.setattr(ManifoldReference, "from_features", lambda *a, **o: made.append(o) or real(*a, **o))
    found = Reference(CLIENTS, ["recall", "fid", "coverage", "precision", "density"]).score(GENERATED)
    assert [score.name for score in found] == ["recall", "fid", "coverage", "precision", "density"]
    assert len(made) == 1
    expected = real(CLIENTS).score(GENERATED)
    for score in found:
        if score.name != "fid":
            assert score.higher_is_better
            alike(score, expected[score.name])


def test_other_options_are_another_pass():
    asked = ["precision", {"name": "recall", "k": 3}, {"name": "density", "k": 3, "strict": False}]
    assert [[c.name for c in group] for group in passes(choose_scores(asked))] == [["precision"], ["recall", "density"]]
    precision, recall, density = Reference(CLIENTS, asked).score(GENERATED)
    alike(precision, ManifoldReference.from_features(CLIENTS).score(GENERATED)["precision"])
    three = ManifoldReference.from_features(CLIENTS, k=3).score(GENERATED)
    alike(recall, three["recall"])
    alike(density, three["density"])


def test_the_inception_score_is_one_value_for_all():
    value, error = inception_score(GENERATED)
    (found,) = Reference(CLIENTS, "is").score(GENERATED)
    assert found.values == {"avg": pytest.approx(value), "all": value, "worst": value}
    assert found.errors == {key: pytest.approx(error) for key in ("avg", "all", "worst")}
    assert found.per_client.tolist() == [value] * 3
    assert found.higher_is_better


def test_authenticity_is_better_when_higher():
    (found,) = Reference(CLIENTS, "authenticity", "uniform").score(GENERATED)
    assert found.higher_is_better
    alike(found, AuthenticityReference.from_features(CLIENTS, "uniform").score(GENERATED))
    with pytest.raises(ValueError, match="authenticity"):
        Reference([CLIENTS[0], CLIENTS[1][:1]], "authenticity")
    with pytest.raises(ValueError, match="authenticity"):
        Reference(CLIENTS, "authenticity", [1.0, 0.0, 1.0])


def test_memorisation_needs_and_takes_held_out_features():
    held_out = [features(9, 4), features(8, 5, 0.5), features(7, 6, -0.5)]
    (found,) = Reference(CLIENTS, "memorisation", held_out=held_out).score(GENERATED)
    alike(found, memorisation(CLIENTS, held_out, GENERATED))
    with pytest.raises(ValueError, match="memorisation"):
        Reference(CLIENTS, "memorisation")


@pytest.mark.slow
def test_fld_needs_and_takes_held_out_features_and_its_seed():
    held_out = [features(9, 4), features(8, 5, 0.5), features(7, 6, -0.5)]
    (found,) = Reference(CLIENTS, {"name": "fld", "seed": 3}, held_out=held_out).score(GENERATED)
    alike(found, FeatureLikelihoodReference.from_features(CLIENTS, held_out, seed=3).score(GENERATED))
    with pytest.raises(ValueError, match="held"):
        Reference(CLIENTS, "fld")


def test_the_likelihood_is_that_of_the_density_and_the_images_do_not_matter():
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    (found,) = Reference(CLIENTS, "ll").score(GENERATED, density=normal)
    assert found.values["all"] == pytest.approx(float(normal.log_prob(torch.cat(CLIENTS).double()).mean()))
    assert found.values["avg"] == pytest.approx(found.values["all"])
    assert found.values["worst"] == float(found.per_client.min())
    assert found.higher_is_better
    with pytest.raises(ValueError, match="generator"):
        Reference(CLIENTS, "ll").score(GENERATED)


def tensors_like(shape):
    """Places in memory of all float32 tensors of one shape."""
    alive = [thing for thing in gc.get_objects() if type(thing) is Tensor and tuple(thing.shape) == shape]
    return {tensor.data_ptr() for tensor in alive if tensor.dtype == torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize(("split", "dim"), [(True, 13), (False, 17)])
def test_features_are_held_once_whatever_the_scores(split, dim):
    whole = torch.randn(75, dim)
    parts = list(whole.split([30, 20, 25])) if split else [part.clone() for part in whole.split([30, 20, 25])]
    # fid keeps a sample of the pool's images, of bounded size
    scores = ["kid", "kid-rbf", "precision", {"name": "w1", **CRITIC}, {"name": "sw1", "projections": 5}]
    reference = Reference(parts, scores)
    reference.score(torch.randn(40, dim))
    places = tensors_like((75, dim))
    assert whole.data_ptr() in places
    assert len(places) == (1 if split else 2)  # the test's own, and one of the parts joined


def test_a_summary_will_do_for_fid_alone():
    summaries = [summarize(part) for part in CLIENTS]
    (found,) = Reference(summaries, "fid").score(summarize(GENERATED))
    assert found.values == pytest.approx(FrechetReference.from_features(CLIENTS).score(GENERATED).values)
    with pytest.raises(TypeError, match="features"):
        Reference(summaries, "kid")
    with pytest.raises(TypeError, match="generated"):
        Reference(CLIENTS, "kid").score(summarize(GENERATED))


@pytest.mark.parametrize(
    ("scores", "weights", "message"),
    [
        ("fdi", "examples", "unknown score 'fdi'; known: authenticity, clip_score, .*fid, .*is, kid, kid-rbf"),
        ({"k": 3}, "examples", r"needs its name, got \['k'\]"),
        ({"name": "precision", "K": 3}, "examples", "score precision has no option 'K'; its options: k, strict"),
        ({"name": "is", "splits": 3}, "examples", "score is has no option 'splits'; its options: none"),
        ({"name": "precision", "k": 0}, "examples", "k must be a whole number of at least 1, got 0"),
        ({"name": "precision", "k": True}, "examples", "k must be a whole number"),
        ({"name": "precision", "strict": "yes"}, "examples", "strict must be true or false, got 'yes'"),
        ({"name": "kid", "estimator": "w"}, "examples", "score kid: estimator must be 'u' or 'v', got 'w'"),
        ({"name": "kid", "degree": 0}, "examples", "score kid: degree must be a whole number"),
        ({"name": "kid-rbf", "sigma": -1.0}, "examples", "score kid-rbf: sigma must be positive"),
        ({"name": ["fid"]}, "examples", r"unknown score \['fid'\]"),
        ({"name": "kid", "degree": "3"}, "examples", "score kid: degree must be a finite number, got '3'"),
        ({"name": "kid", "gamma": float("nan")}, "examples", "score kid: gamma must be a finite number, got nan"),
        ({"name": "kid-rbf", "sigma": float("inf")}, "examples", "score kid-rbf: sigma must be a finite number"),
        ({"name": "sw1", "projections": 1}, "examples", "score sw1: projections must be"),
        ({"name": "sw2", "seed": "a"}, "examples", "score sw2: seed must be a whole number of at least 0, got 'a'"),
        ({"name": "w1", "held_out": 2}, "examples", "score w1: held_out must be"),
        ({"name": "fid", "ddof": 2}, "examples", "score fid: ddof must be 0 or 1"),
        (["fid", {"name": "fid", "ddof": 0}], "examples", "score 'fid' is given twice"),
        ([], "examples", "at least one score"),
        ({"name": "recall", "k": 20}, "examples", r"client 1 has 20 image\(s\), and recall needs 21.*k=19 at most"),
        ("coverage", [1.0, 1.0, 0.0], "client 2 has weight 0, but coverage uses neighbours"),
        ({"name": "w1", "held_out": 0.01}, "examples", "client 0 has 30 images, too few to hold out 0.01"),
    ],
)
def test_mistakes_are_found_before_any_work(scores, weights, message):
    with pytest.raises(ValueError, match=message):
        Reference(CLIENTS, scores, weights)


def test_a_generated_set_that_is_too_small_is_named():
    with pytest.raises(ValueError, match="generated"):
        Reference(CLIENTS, "precision").score(GENERATED[:5])


COMMON = {
    "split": "train",
    "embedding": "e",
    "embedding_fingerprint": "f",
    "reference": "r",
    "num_generated": 40,
    "num_clients": 3,
    "seed": 0,
}


def test_records_keep_direction_options_and_errors_over_clients():
    reference = Reference(CLIENTS, [{"name": "precision", "k": 3}, "fid"], aggregates=["power-2"])
    records = records_of(reference.score(GENERATED), "abc", COMMON, reference.aggregates, reference.choices)
    assert [r.name for r in records] == [
        "precision_avg",
        "precision_all",
        "precision_worst",
        "fid_avg",
        "fid_all",
        "fid_worst",
        "fid_power-2",
    ]
    assert [r.higher_is_better for r in records] == [True] * 3 + [False] * 4
    assert [r.score_settings for r in records] == [{"k": 3}] * 3 + [{}] * 4
    spread = FrechetReference.from_features(CLIENTS).score(GENERATED).errors_over_clients
    assert [r.error_over_clients for r in records[3:5]] == [spread["avg"], spread["all"]]
    assert records[5].error_over_clients is None
    power = records[-1]
    fids = torch.tensor(records[3].per_client)
    shares = torch.tensor([30.0, 20.0, 25.0]) / 75
    assert power.value == pytest.approx(float((shares * fids**2).sum() ** 0.5), rel=1e-6)
    assert (power.standard_error, power.error_parts) == (None, {})
