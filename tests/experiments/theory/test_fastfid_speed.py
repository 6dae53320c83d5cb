"""Times of FID as a loss, at a small D."""

import pytest
import torch

from fedgen.experiments.theory import fastfid as module
from fedgen.experiments.theory.fastfid import (
    METHODS,
    PASSES,
    PEERS,
    cells_of,
    fastfid_speed,
    limited,
    speed_outcomes,
    timed,
)

SMALL = {"dims": (16, 24), "batch_sizes": (4, 8), "repeats": 3, "slow_repeats": 2}


@pytest.fixture(autouse=True)
def few_real_rows(monkeypatch):
    monkeypatch.setattr(module, "REAL", 200)
    module.prepare.cache_clear()


def test_peers_are_timed_forward_alone():
    cells = list(cells_of([16], [4]).values())
    assert len(cells) == 2 * 2 + 2
    assert {(method, passes) for _, _, method, passes in cells if method in PEERS} == {(p, PASSES[0]) for p in PEERS}


def test_a_product_is_timed_before_every_tenth_call_and_after_the_last():
    calls = []
    times, products = timed(lambda: calls.append("call"), lambda: calls.append("product"), 12)
    assert (len(times), len(products)) == (12, 3)
    assert calls == ["product"] * 2 + ["call"] * 10 + ["product"] + ["call"] * 2 + ["product"]


def test_threads_are_limited_within_and_put_back():
    before = torch.get_num_threads()
    with limited(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_molecules_have_chemnets_number_of_features(tmp_path):
    with pytest.raises(ValueError, match="512"):
        fastfid_speed(output=tmp_path, **{**SMALL, "spectrum": "chemnet"})


def test_outcomes_tell_the_factors_from_the_times():
    seconds = {"FastFIDLoss": 2.0, "Algorithm 1": 3.0, "torchmetrics": 50.0, "scipy sqrtm": 80.0}
    found = {
        name: {"seconds": [seconds[method], 0.0], "value": 1.0 + (method == "scipy sqrtm") * 1e-7}
        for name, (_, _, method, _) in cells_of([16], [4]).items()
    }
    lines = speed_outcomes(found, [16], [4], "float64")
    assert lines[0] == "as expected: all methods give one value: largest relative difference 1.0e-07"
    assert "40 to 40 times as fast as scipy's" in lines[1]
    assert lines[2].startswith("as expected: at D = 16")
    assert "1.5 to 1.5 times as fast" in lines[2]
    found = {name: cell | {"value": float(place)} for place, (name, cell) in enumerate(found.items(), 1)}
    assert speed_outcomes(found, [16], [4], "float64")[0].startswith("not seen")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 1}, "repeats=1: give at least 2"),
        ({"threads": 0}, "threads=0: give at least 1"),
        ({"batch_sizes": (8, 600)}, r"batch_sizes=\(8, 600\): give some to the least of dims=\(2048, 512\)"),
        ({"dims": ()}, r"batch_sizes=.*dims=\(\)"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fastfid_speed(output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_every_method_is_drawn_in_its_own_colour():
    assert set(module.COLOURS) == set(module.MARKERS) == set(METHODS)
