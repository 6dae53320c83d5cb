"""Precision, recall, density and coverage in both aggregates, in seconds."""

from pathlib import Path

import pytest
import torch

from fedgen.experiments.engine.features import FeatureFederation
from fedgen.experiments.ranking.neighbourhoods import Generated
from fedgen.experiments.ranking.rising_variance import NAMES, Manifold, manifold_lines, manifold_metrics, unequal

TINY = {
    "data": "digits",
    "embedding": "pixels",
    "clients": 7,
    "anchors": 3,
    "sizes": (30, 100, 300),
    "k": 3,
    "images": 100,
    "controls": 1,
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_nothing_is_said_of_controls_that_were_not_asked_for():
    rows = {name: {"pairs": 10, "inverted": 2, "control inverted": []} for name in NAMES}
    differences = {"clients": 0.0, "unequal, n_i / n": 0.0, "unequal, uniform": 0.1}
    lines = manifold_lines({"recall avg - all": differences, "generators": rows})
    assert len(lines) == 5
    assert not any("IID" in line for line in lines)


def test_the_scores_are_prdcs():
    from prdc import compute_prdc

    draws = torch.Generator().manual_seed(0)
    real, fake = torch.randn(40, 3, generator=draws), torch.randn(50, 3, generator=draws) * 0.7
    found = Manifold([real[:20], real[20:]], 5, 100)(Generated(fake, torch.arange(50), None, 0))
    published = compute_prdc(real.numpy(), fake.numpy(), nearest_k=5)
    assert {name: found[name]["all"] for name in published} == pytest.approx(published)


def test_every_second_client_is_cut_to_its_nearer_half():
    whole = FeatureFederation(
        torch.zeros(20, 1), (torch.arange(5), torch.arange(5, 10), torch.arange(10, 14)), ("a", "b", "c")
    )
    assert [part.tolist() for part in unequal(whole).positions] == [[0, 1, 2, 3, 4], [5, 6, 7], [10, 11, 12, 13]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k=0: give at least 1"),
        ({"k": 4}, "k=4 needs 5 images, and half a client's are 4"),
        ({"k": 3, "images": 3}, "k=3 needs 4 images, and the drawn are 3"),
        ({"k": 3, "sizes": (2, 100)}, "and the smallest generator's are 3; give a smaller k"),
    ],
)
def test_sets_too_small_for_k_neighbours_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        manifold_metrics(output=Path("out"), **{**TINY, **changes})
