"""Scores of generators of rising variance."""

from pathlib import Path

import pytest
import torch

from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.neighbourhoods import (
    Anchored,
    Generated,
    NeighbourChoice,
    Neighbourhoods,
    grow,
    measure_anchors,
    spread_of,
    standard_error,
)
from fedgen.experiments.ranking.rising_variance import FrechetAndKernel, frechet_scorers, measure_floor
from fedgen.scores import frechet_distance, mmd2
from fedgen.statistics import summarize

CHOICE = NeighbourChoice("digits", Path("data"), "pixels", None, "pixels", False, 2, (30, 100, 300))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Neighbourhoods(CHOICE)


def row(avg, all):
    return {"fid": {"avg": avg, "all": all}}


SCORES = {
    "0": {"clients": {"1": row(5.0, 9.0), "2": row(2.0, 8.0), "3": row(4.0, 7.0)}},
    "1": {"clients": {"1": row(7.0, 7.0), "2": row(2.0, 6.0), "3": row(2.0, 5.0)}},
}


def over_clients(scores, sizes=(1, 2, 3), controls=()):
    return Anchored(scores, sizes, "clients", controls)


def test_a_generator_grows_to_the_summary_of_all_its_images(places, monkeypatch):
    monkeypatch.setattr("fedgen.experiments.ranking.neighbourhoods.CHUNK", 64)
    order = places.orders[1]
    for (name, generated), size in zip(grow(places, order, summaries=True), CHOICE.sizes):
        whole = summarize(places.generator_source.features[order[: size + 1]])
        assert name == str(size)
        assert generated.summary.count == size + 1
        assert torch.allclose(generated.summary.mean, whole.mean, atol=1e-12)
        assert torch.allclose(generated.summary.covariance(), whole.covariance(), atol=1e-12)
    assert all(generated.summary is None for _, generated in grow(places, order, summaries=False))


def test_scores_are_those_of_the_images_against_each_client_and_their_pool(places):
    federation, projection = places.federation(5), places.projection(8, 5)
    scorer = FrechetAndKernel(federation, projection, equal=31)
    features = places.generator_source.features
    order = places.orders[0]
    found = scorer(Generated(features, order, summarize(features[order]), seed=0))
    parts = federation.parts()
    whole = summarize(features[order])
    distances = [frechet_distance(summarize(part), whole)[0] for part in parts]
    assert found["fid"]["avg"] == pytest.approx(sum(distances) / 10)
    assert found["fid"]["all"] == pytest.approx(frechet_distance(summarize(torch.cat(parts)), whole)[0])
    small = summarize(projection.project(features[order]))
    pooled = summarize(projection.project(torch.cat(parts)))
    assert found["fid pca"]["all"] == pytest.approx(frechet_distance(pooled, small)[0])
    few = summarize(Generated(features, order, None, seed=0).draw(31))
    assert found["fid equal"]["all"] == pytest.approx(frechet_distance(summarize(torch.cat(parts)), few)[0])
    assert found["kid"]["all"] == pytest.approx(mmd2(torch.cat(parts), features[order]))


def test_the_gap_of_kid_is_one_number_and_that_of_fid_is_not(places, tmp_path):
    study = Study("toy", tmp_path / "out", {})
    projection = places.projection(8, 5)
    scores = measure_anchors(study, places, lambda: frechet_scorers(places, 5, projection, "clients", ["IID 0"]))
    rows = over_clients(scores, places.sizes, ["IID 0"])
    assert spread_of(rows.gaps("kid"))["relative spread"] < 1e-12
    assert spread_of(rows.gaps("fid"))["relative spread"] > 0.01
    assert "kid" not in scores["0"]["IID 0"]["30"]
    means_gap = [a - b for a, b in zip(*(rows.terms("fid", "mean", how) for how in ("avg", "all")))]
    assert max(means_gap) - min(means_gap) < 1e-9
    found = rows.compared(("fid", "kid"), single=True)
    assert found["fid"]["pairs"] == 15
    assert found["kid"]["inverted"] == 0
    assert found["kid"]["control inverted"] == []
    assert measure_anchors(study, places, None) == scores


def test_the_floor_is_the_score_of_the_next_neighbours(places):
    floor = measure_floor(places, 5, places.projection(8, 5))
    pooled = summarize(torch.cat(places.federation(5).parts()))
    assert floor["images"] == 60
    assert floor["fid"]["all"] == pytest.approx(frechet_distance(pooled, summarize(places.floor(5)))[0])


def test_curves_gaps_and_means_by_hand():
    rows = over_clients(SCORES)
    assert rows.curves("fid", "avg") == [[5, 2, 4], [7, 2, 2]]
    assert rows.gaps("fid") == [[-4, -6, -3], [0, -4, -3]]
    assert rows.mean_rows("clients")["1"]["fid"] == {"avg": 6, "all": 8, "errors": {"avg": 1, "all": 1}}
    assert spread_of([[-4.0, -6.0], [0.0, -2.0]]) == {"mean": -3, "relative spread": 2}
    assert standard_error([1.0, 3.0]) == 1


def test_the_whole_data_from_two_anchors_is_one_generator_that_ties():
    whole = row(2.0, 3.0), row(2.0 + 4e-15, 3.0 - 4e-15)  # the same images, summed in another order
    scores = {str(n): {"clients": {"1": row(5.0 + n, 9.0 - n), "2": one}} for n, one in enumerate(whole)}
    found = over_clients(scores).compared(["fid"], single=True)["fid"]
    assert (found["pairs"], found["inverted"]) == (6, 1)  # sizes 1 alone


def low(*anchors):
    scores = {str(n): {"clients": {str(m): row(v, v) for m, v in enumerate(own)}} for n, own in enumerate(anchors)}
    return over_clients(scores, (10, 20, 30)).valley("fid", "avg")


def test_a_valleys_ends_are_compared_anchor_by_anchor():
    found = low([5.0, 1.0, 3.0], [6.0, 1.0, 3.5], [5.5, 1.0, 3.2])
    assert (found["least at"], found["least"], found["inside"], found["anchors"]) == (20, 1.0, True, 3)
    assert found["left"][0] == pytest.approx(4.5)
    assert found["right"] == [pytest.approx(6.7 / 3), pytest.approx(standard_error([2.0, 2.5, 2.2]))]
    # as high on average, but one anchor falls on
    assert not low([5.0, 1.0, 9.0], [6.0, 1.0, 0.9], [5.5, 1.0, 0.8])["inside"]
    falling = low([3.0, 2.0, 1.0], [3.0, 0.5, 1.0])
    assert (falling["least at"], falling["inside"], falling["anchors"]) == (30, False, 1)
