"""MMD^2 as a metric is the function's, and torchmetrics'."""

import pytest
import torch
from torch import nn
from torchmetrics.image import KernelInceptionDistance

from fedgen.embeddings import ModuleEmbedding
from fedgen.metrics import KernelDistance
from fedgen.scores import RBFKernel, mmd2
from tests.metrics.sets import CLIENTS, DIM, GENERATED, filled


def test_two_points_a_side_by_hand():
    # (x y + 1)^3 in one dimension; x = 0, 1 and y = 1, 2: xx = 1, yy = 27, xy = (1 + 1 + 8 + 27) / 4
    metric = KernelDistance(dim=1)
    metric.update(torch.tensor([[0.0], [1.0]]), real=True)
    metric.update(torch.tensor([[1.0], [2.0]]), real=False)
    assert metric.compute().item() == pytest.approx(1 + 27 - 2 * 37 / 4)


@pytest.mark.parametrize("size", [1, 4, 25])
@pytest.mark.parametrize("arguments", [{}, {"estimator": "v"}, {"kernel": RBFKernel(2.0)}])
def test_the_value_is_that_of_the_function_to_the_bit_in_any_batches(size, arguments):
    metric = KernelDistance(dim=DIM, **arguments)
    for part in GENERATED.split(size):
        metric.update(part, real=False)
    for part in torch.cat(CLIENTS).split(size):
        metric.update(part, real=True)
    assert metric.compute().item() == mmd2(torch.cat(CLIENTS), GENERATED, **arguments)


def test_given_features_keep_their_double_precision():
    x, y = (part.double() + torch.rand(len(part), DIM, dtype=torch.float64) * 1e-10 for part in (CLIENTS[2], GENERATED))
    metric = KernelDistance(dim=DIM)
    metric.update(x, real=True)
    metric.update(y, real=False)
    assert metric.compute().item() == mmd2(x, y) != mmd2(x.float(), y.float())


def test_features_are_copied_so_that_a_reused_buffer_changes_nothing():
    buffer = CLIENTS[2].double()
    metric = KernelDistance(dim=DIM)
    metric.update(buffer, real=True)
    metric.update(GENERATED, real=False)
    buffer.zero_()
    assert metric.compute().item() == mmd2(CLIENTS[2], GENERATED)


class Means(nn.Module):
    def forward(self, levels):
        return levels.double().mean((2, 3)) / 64  # exact also in the float32 of our embeddings


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance`")
def test_it_equals_torchmetrics_on_a_subset_of_everything():
    draw = torch.Generator().manual_seed(0)
    real = torch.randint(0, 256, (20, 3, 8, 8), generator=draw, dtype=torch.uint8)
    generated = torch.randint(50, 200, (20, 3, 8, 8), generator=draw, dtype=torch.uint8)
    ours = KernelDistance(ModuleEmbedding(Means(), input_range="uint8"), dim=3)
    theirs = KernelInceptionDistance(Means(), subsets=1, subset_size=20)
    for metric in (ours, theirs):
        metric.update(real, real=True)
        metric.update(generated, real=False)
    assert ours.compute().item() == pytest.approx(theirs.compute()[0].item(), rel=1e-11)


def test_a_side_with_too_few_images_is_an_error_that_names_it_and_its_count():
    for estimator, needed in (("u", 2), ("v", 1)):
        metric = KernelDistance(dim=2, estimator=estimator)
        metric.update(torch.zeros(5, 2), real=True)
        with pytest.raises(ValueError, match=f"generated: 0 images seen, the score needs {needed}"):
            metric.compute()


def test_another_estimator_is_an_error_at_once():
    with pytest.raises(ValueError, match="'u' or 'v', got 'w'"):
        KernelDistance(dim=2, estimator="w")


def test_reset_forgets_both_sides_or_keeps_the_real_one():
    both, kept = filled("kernel"), filled("kernel", reset_real_features=False)
    exact = kept.compute()
    for metric in (both, kept):
        metric.reset()
        metric.update(GENERATED, real=False)
    assert torch.equal(kept.compute(), exact)
    with pytest.raises(ValueError, match="real"):
        both.compute()
