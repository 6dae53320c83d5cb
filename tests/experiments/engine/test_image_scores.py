"""Scores of images in several embeddings beside the real floor."""

import pytest
import torch

from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.scored_arms import SCORES, ImageScores, badness, mark_of


@pytest.fixture
def images():
    return torch.randint(0, 256, (120, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_copies_of_the_training_images_score_zero_on_them_alone(images):
    scores = ImageScores(images[:60], images[60:], [load_embedding("pixels")])
    found = scores.score(images[:60])["pixels"]
    assert tuple(found) == SCORES
    assert found["fid"] == pytest.approx(0, abs=1e-9)
    assert found["fid, held out"] > 1e-3
    assert found["trace"] == pytest.approx(1)


def test_the_floor_is_what_one_half_of_the_real_images_scores_on_the_other(images):
    training, held_out = images[:60], images[60:]
    floor = ImageScores(training, held_out, [load_embedding("pixels")]).floor["pixels"]
    other = ImageScores(held_out, training, [load_embedding("pixels")])
    assert floor["fid"] == pytest.approx(floor["fid, held out"], rel=1e-12)
    assert floor["fid"] == pytest.approx(other.floor["pixels"]["fid"])
    assert floor["recall"] > 0.5


def test_one_image_over_and_over_has_no_variance_and_covers_next_to_nothing(images):
    scores = ImageScores(images[:60], images[60:], [load_embedding("pixels")])
    found = scores.score(images[:1].repeat(60, 1, 1, 1))["pixels"]
    assert found["trace"] == pytest.approx(0, abs=1e-12)
    assert found["recall"] == 0
    assert found["coverage"] < 0.2
    # FID to a point: the squared distance of the means plus the trace of the data's covariance
    data = images[:60].flatten(1).double() / 255
    distance = (images[0].flatten().double() / 255 - data.mean(0)).square().sum() + data.var(0).sum()
    assert found["fid"] == pytest.approx(float(distance), rel=1e-5)


def test_better_is_less_fid_more_recall_and_a_trace_nearer_to_one():
    ordered = {"fid": (1, 2), "recall": (0.5, 0.4), "coverage": (0.5, 0.4), "trace": (1.1, 0.8)}
    assert all(badness(score)(better) < badness(score)(worse) for score, (better, worse) in ordered.items())


def test_scores_are_marked_where_a_loss_was_and_strongest_against_the_images_that_it_saw():
    assert mark_of("fid", "pixels", ["pixels"]) == mark_of("trace", "pixels", ["pixels"]) == "*"
    assert mark_of("fid, held out", "pixels", ["pixels"]) == mark_of("recall", "pixels", ["pixels"]) == "(*)"
    assert mark_of("fid", "efficientnet-lite0", ["pixels", "efficientnet-lite0-32"]) == "(*)"
    assert mark_of("fid", "pixels", []) == mark_of("fid", "pixels", ["efficientnet-lite0-32"]) == ""
