"""Utility: accuracies that can be counted by hand, and what a classifier learns from good and from bad images."""

import pytest
import torch

from fedgen.embeddings import ClassifierOptions
from fedgen.scores import UtilityReference
from fedgen.scores.aggregate import mean_score

RIGHT = [torch.tensor([1.0, 1, 1, 0]), torch.tensor([1.0, 0]), torch.tensor([0.0, 0, 1])]
RIGHT = [part.double() for part in RIGHT]


def bars(labels, seed, noise=20.0):
    """Images uint8 [N, 1, 8, 8] of a bright column for each class, with noise."""
    draws = torch.Generator().manual_seed(seed)
    levels = torch.full((len(labels), 1, 8, 8), 40.0)
    levels[torch.arange(len(labels)), 0, :, labels * 2] = 220.0
    return (levels + noise * torch.randn(levels.shape, generator=draws)).clamp(0, 255).to(torch.uint8)


def dealt(count, seed, classes=4):
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


LABELS = [dealt(40, 1), dealt(60, 2)]
REAL = [bars(labels, 10 + k) for k, labels in enumerate(LABELS)]
FAST = ClassifierOptions(epochs=4, batch_size=16)


def test_all_is_the_accuracy_on_the_pooled_images_and_the_mean_by_their_numbers():
    score = mean_score("utility", RIGHT, torch.tensor([4, 2, 3]).double() / 9, higher_is_better=True)
    assert score.per_client.tolist() == pytest.approx([0.75, 0.5, 1 / 3])
    assert score.values["all"] == pytest.approx(5 / 9, rel=1e-15)
    assert score.values["avg"] == pytest.approx((4 * 0.75 + 2 * 0.5 + 3 / 3) / 9, rel=1e-15)
    assert score.values["worst"] == pytest.approx(1 / 3)


def test_avg_and_all_share_the_weights_and_a_client_without_weight_is_not_the_worst():
    score = mean_score("utility", RIGHT, torch.tensor([0.5, 0.5, 0.0]).double(), higher_is_better=True)
    assert score.values["avg"] == score.values["all"] == pytest.approx(0.625)
    assert score.values["worst"] == 0.5


def test_standard_errors_are_binomial():
    score = mean_score("utility", RIGHT, torch.tensor([4, 2, 3]).double() / 9, higher_is_better=True)
    own = [0.75 * 0.25 / 3, 0.5 * 0.5 / 1, (1 / 3) * (2 / 3) / 2]  # p (1 - p) / (n - 1)
    assert score.client_errors.tolist() == pytest.approx([v**0.5 for v in own])
    expected = sum((n / 9) ** 2 * v for n, v in zip((4, 2, 3), own)) ** 0.5
    assert score.errors["avg"] == score.errors["all"] == pytest.approx(expected)
    assert score.errors["worst"] == pytest.approx(own[2] ** 0.5)
    assert set(score.errors_over_clients) == {"avg", "all"}
    assert not mean_score("utility", RIGHT, torch.ones(3).double() / 3, errors=False, higher_is_better=True).errors


@pytest.mark.slow
def test_images_of_the_asked_classes_teach_and_wrong_labels_or_noise_do_not():
    reference = UtilityReference(REAL, LABELS, 4, options=FAST)
    labels = dealt(200, 3)
    good = reference.score(bars(labels, 4), labels)
    assert good.values["all"] > 0.95
    assert good.higher_is_better
    shuffled = reference.score(bars(labels, 4), labels[torch.randperm(200, generator=torch.Generator().manual_seed(5))])
    noise = torch.randint(256, (200, 1, 8, 8), generator=torch.Generator().manual_seed(6), dtype=torch.uint8)
    assert shuffled.values["all"] < 0.55  # chance is 0.25
    assert reference.score(noise, labels).values["all"] < 0.55


def test_a_generator_that_drops_a_class_fails_that_class_alone():
    labels = dealt(200, 3)
    kept = labels[labels != 2]
    reference = UtilityReference(
        [bars(torch.full((30,), k), k) for k in range(4)], [torch.full((30,), k) for k in range(4)], 4, options=FAST
    )
    score = reference.score(bars(kept, 4), kept)
    assert score.per_client.argmin() == 2
    assert score.per_client[2] == 0
    assert score.per_client[[0, 1, 3]].min() > 0.9


def test_the_same_seed_scores_alike_and_global_streams_stay():
    labels = dealt(100, 3)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    scores = [UtilityReference(REAL, LABELS, 4, options=FAST).score(bars(labels, 4, 90), labels) for _ in range(2)]
    assert torch.equal(scores[0].per_client, scores[1].per_client)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([REAL[0].float()], LABELS[:1], "client 0: a classifier needs at least 2 images uint8"),
        (REAL, [LABELS[0], LABELS[1] + 3], r"client 1: labels run from 3 to 6 but must be 0 to 3"),
        (REAL, [LABELS[0], LABELS[0]], r"client 1: labels must be int64 \[60\], one an image"),
        (REAL, LABELS[:1], "2 clients' images and 1 clients' labels"),
    ],
)
def test_labels_that_do_not_fit_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        UtilityReference(images, labels, 4)
