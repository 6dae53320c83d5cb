"""Partitions by label go by the classes that occur, and deal as they did where all occur."""

import hashlib

import numpy as np
import pytest
import torch

from fedgen.clients.partitions import (
    IID,
    ByClass,
    BySize,
    CoarseDirichlet,
    Dirichlet,
    Natural,
    Semantic,
    Shards,
    VarianceLimited,
)
from fedgen.data import Examples

GAPS = np.array([3, 7, 8, 12])
RANKS = np.random.default_rng(1).permutation(np.repeat(np.arange(4), 15))
GROUPS = {"g": ["0", "1", "3", "7"], "h": ["2", "8", "12"]}

STORED = [  # of the releases before numbers with gaps
    (IID(4), "77145abf"),
    (BySize(4), "ca11ad3b"),
    (ByClass(), "690e7bbe"),
    (ByClass(2), "87b2e6c4"),
    (Dirichlet(4, 1.0), "d669bd1d"),
    (Dirichlet(4, 1.0, rotate=False), "d5a1f5c0"),
    (CoarseDirichlet(4, groups=GROUPS | {"h": ["2", "3"], "g": ["0", "1"]}), "24af9cce"),
    (Shards(4), "4bf349dd"),
    (Natural(max_examples=7), "99cf4416"),
    (VarianceLimited(3, "identity"), "73d551ed"),
    (VarianceLimited(3, "identity", across_classes=True), "73d551ed"),
    (Semantic(3, "identity"), "74b1d43e"),
]


def points(labels):
    """Points in four far groups, one a label, each of three clusters."""
    noise = np.random.default_rng(0)
    near = RANKS * 100 + np.arange(60) % 3 * 10 + noise.integers(0, 8, 60) / 8
    inputs = torch.tensor(np.stack([near, noise.integers(0, 8, 60) / 8], 1), dtype=torch.float32)
    classes = tuple(map(str, range(labels.max() + 1)))
    return Examples(inputs, labels, "toy/train", classes, np.arange(60) % 5, tuple("abcde"))


def digest(parts):
    return hashlib.blake2b(b"|".join(part.astype("<i8").tobytes() for part in parts), digest_size=4).hexdigest()


def named(pairs):
    return [pytest.param(*pair, id=f"{number}-{type(pair[0]).__name__}") for number, pair in enumerate(pairs)]


@pytest.mark.parametrize(("rule", "stored"), named(STORED))
def test_where_all_classes_occur_the_draws_are_those_of_earlier_releases(rule, stored):
    assert digest(rule.assign(points(RANKS), seed=3)) == stored


@pytest.mark.parametrize(("rule", "stored"), named(STORED))
def test_numbers_with_gaps_are_dealt_to_as_many_clients_as_without(rule, stored):
    if isinstance(rule, CoarseDirichlet):
        rule = CoarseDirichlet(4, groups={"g": ["3", "7"], "h": ["8", "12"]})
    gaps = points(GAPS[RANKS])
    parts = rule.assign(gaps, seed=3)
    assert len(parts) == len(rule.names(gaps))
    if not isinstance(rule, (Semantic, VarianceLimited)):  # whose draws are by seed and class
        assert digest(parts) == stored


def test_clients_by_class_are_named_after_the_classes_that_occur():
    gaps = points(GAPS[RANKS])
    assert ByClass().names(gaps) == VarianceLimited().names(gaps) == ["class 3", "class 7", "class 8", "class 12"]
    assert ByClass(2).names(gaps) == ["class 3 + class 7", "class 8 + class 12"]
    assert [set(gaps.labels[part].tolist()) for part in ByClass(2).assign(gaps, 0)] == [{3, 7}, {8, 12}]
