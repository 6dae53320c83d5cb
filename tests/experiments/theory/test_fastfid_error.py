"""The float32 error table at a small D."""

import pytest
import torch

from fedgen.experiments.theory.fastfid import draw_rows, errors_of, fastfid_error, our_trace


def test_our_trace_by_hand():
    rows = torch.tensor([[3.0, 0.0, 1.0], [-3.0, 0.0, -1.0]])  # of C = rows^T rows, with trace 20
    for dtype in (torch.float32, torch.float64):
        assert our_trace(rows, dtype) == pytest.approx(20.0)


def test_small_matrices_keep_the_digits_that_the_root_of_a_large_one_loses():
    found = errors_of(draw_rows(8, 0, 128, 0))
    assert found["answer"] == pytest.approx(128 * 7, rel=0.2)
    assert found["scipy"] > 100 * found["Algorithm 1"]
    assert found["ours, float32"] < 1e-3
    assert found["ours, float64"] < 1e-9


def test_rows_are_centred_and_drawn_anew_for_each_draw():
    rows = draw_rows(8, 0, 32, 0)
    assert float(rows.mean(0).abs().max()) < 1e-6
    assert not torch.equal(rows, draw_rows(8, 1, 32, 0))


def test_no_draw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="draws"):
        fastfid_error(output=tmp_path, draws=0)
