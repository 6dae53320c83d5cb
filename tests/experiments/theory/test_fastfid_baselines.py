"""The baselines' traces and distances against numbers by hand and against each other."""

import pytest
import torch

from fedgen.experiments.theory.fastfid import large_trace, scipy_fid, small_fid, small_trace, torchmetrics_fid
from fedgen.losses import FastFIDLoss
from fedgen.scores import frechet_distance
from fedgen.statistics import summarize

REAL = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.arange(1.0, 13.0).rsqrt())
MADE = torch.randn(6, 12, generator=torch.Generator().manual_seed(1)) + 0.3


def test_traces_by_hand():
    # roots of 9 and 4; the smallest of three is left out, as centred rows have rank m - 1
    assert float(small_trace(torch.diag(torch.tensor([4.0, 0.0, 9.0])))) == pytest.approx(5.0)
    assert large_trace(torch.diag(torch.tensor([4.0, 1.0, 9.0], dtype=torch.float64))) == pytest.approx(6.0)


@pytest.mark.parametrize("baseline", [small_fid, torchmetrics_fid, scipy_fid])
def test_every_baseline_gives_the_score(baseline):
    real = summarize(REAL)
    expected = frechet_distance(real, summarize(MADE))[0]
    assert float(baseline(real)(MADE)) == pytest.approx(expected, rel=1e-6)


def test_algorithm_1_differentiated_by_autograd_has_the_loss_gradient_in_closed_form():
    real = summarize(REAL)
    gradients = []
    for score in (small_fid(real), FastFIDLoss().set_references([real])):
        features = MADE.double().requires_grad_()
        gradients.append(torch.autograd.grad(score(features), features)[0])
    assert torch.allclose(*gradients, rtol=1e-8, atol=1e-10)


def test_in_float32_algorithm_1_computes_in_float32():
    value = small_fid(summarize(REAL), torch.float32)(MADE.double())
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(small_fid(summarize(REAL))(MADE)), rel=1e-5)
