import pytest
import torch

from fedgen.losses.fastfid import Form, FrechetTargets, group
from fedgen.losses.moments import BatchMoments
from fedgen.statistics import summarize
from tests.losses.frechet_cases import DIM, draw

FORMS: list[Form] = ["covariance", "rows", "strips"]
CLIENTS = {"many": draw(60, 1), "few": draw(5, 2), "singular": draw(60, 3) * (torch.arange(DIM) > 3)}
CLIENTS["of differing scales"] = draw(60, 1) * torch.linspace(0.02, 1, DIM).double()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("images", [6, DIM + 20])
def test_every_form_gives_the_same_trace_and_pull(client: str, images: int) -> None:
    """tr sqrt(C C_i) by eigenvalues, and its derivative T / 2 in C, so that T C T = C_i where C has full rank."""
    estimate = BatchMoments().estimate(draw(images, 9, 1.3, 0.2), remember=False)
    covariance = CLIENTS[client].T.cov()
    expected = torch.linalg.eigvals(estimate.covariance(1) @ covariance).sqrt().real.sum()
    weight = torch.tensor([0.3]).double()
    pulls = []
    for form in FORMS:
        targets = FrechetTargets([0], [summarize(CLIENTS[client])], 1, torch.float64, form)
        for needed in (True, False):
            traces, pulled = targets.pull(estimate, 1, weight, needed)
            assert float(traces) == pytest.approx(float(expected), rel=1e-6)
            assert (pulled is not None) == needed
            if pulled is not None:
                pulls.append(pulled)
    for other in pulls[1:]:
        torch.testing.assert_close(other, pulls[0], rtol=1e-6, atol=1e-7)
    if images > DIM:
        factors = targets.factorise(estimate, 1)
        pull = factors.rows[0].T @ (factors.inverses[0].unsqueeze(1) * factors.rows[0])
        torch.testing.assert_close(pull @ estimate.covariance(1) @ pull, covariance, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(0.3 * estimate.deviations @ pull, pulls[0], rtol=1e-6, atol=1e-7)


def test_a_root_that_a_large_batch_needed_does_not_disturb_small_ones() -> None:
    targets = FrechetTargets([0], [summarize(CLIENTS["many"])], 1, torch.float64, "covariance")
    weight = torch.ones(1).double()
    small, large = (BatchMoments().estimate(draw(images, images), remember=False) for images in (6, 40))
    before = targets.pull(small, 1, weight, True)
    assert targets.root is None
    targets.pull(large, 1, weight, True)
    assert targets.root is not None
    assert not targets.state_dict()
    after = targets.pull(small, 1, weight, True)
    assert all(torch.equal(a, b) for a, b in zip(before, after))


def test_small_clients_of_about_one_size_are_one_target() -> None:
    sizes = [5, 60, 16, 17, 20, 3]
    summaries = [summarize(draw(size, size, dim=24)) for size in sizes]
    together = list(group(summaries, 1, torch.float64, "covariance", together=True))
    assert [targets.numbers for targets in together] == [[0, 2, 5], [1], [3, 4]]
    apart = list(group(summaries, 1, torch.float64, "covariance", together=False))
    assert [targets.numbers for targets in apart] == [[number] for number in range(6)]
