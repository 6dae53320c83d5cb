"""Authenticity against numbers by hand, a plain numpy implementation, and generators with and without memory."""

import numpy as np
import pytest
import torch

from fedgen.scores import AuthenticityReference

DIM = 8


def draw(count: int, random: torch.Generator, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=random) + shift


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def test_by_hand() -> None:
    # nearest others of 0, 1 and 4 are at 1, 1 and 3: 0.1 is 0.1 from 0; 2.25 is 1.25 from 1; 6 is 2, 8 is 4 from 4
    score = AuthenticityReference.from_features([column(0.0, 1.0, 4.0)]).score(column(0.1, 2.25, 6.0, 8.0))
    assert (score.name, score.higher_is_better) == ("authenticity", True)
    assert score.values == {"avg": 0.5, "all": 0.5, "worst": 0.5}
    expected = (0.25 * 4 / 3 / 4) ** 0.5  # of 0, 1, 0, 1
    assert score.errors == pytest.approx(dict.fromkeys(score.values, expected))
    assert score.client_errors.tolist() == pytest.approx([expected])


def test_an_image_as_far_as_the_nearest_other_one_is_not_authentic() -> None:
    assert AuthenticityReference.from_features([column(0.0, 1.0)]).score(column(-1.0, 2.0)).values["all"] == 0.0
    twice = AuthenticityReference.from_features([column(0.0, 0.0, 5.0)])  # a copy of an image that is there twice
    assert twice.score(column(0.0)).values["all"] == 0.0


def test_all_looks_among_all_clients_images_and_a_client_among_its_own() -> None:
    reference = AuthenticityReference.from_features([column(0.0, 2.0), column(1.0, 9.0)], [3.0, 1.0])
    score = reference.score(column(3.5, 8.5))
    # client 0: 1.5 and 6.5 from 2, whose other is 2 away. Client 1: 2.5 from 1 and 0.5 from 9, whose other is 8 away
    assert score.per_client.tolist() == [0.5, 0.0]
    assert score.values["avg"] == pytest.approx(0.375)
    assert score.values["worst"] == 0.0
    assert score.values["all"] == 0.5  # 3.5 is 1.5 from 2, whose nearest other is now 1; 8.5 is 0.5 from 9, 7 from 2
    flags = torch.tensor([[0.0, 1.0], [0.0, 0.0]])  # avg counts 0 and 3/4
    assert score.errors["avg"] == pytest.approx(float((flags * torch.tensor([[0.75], [0.25]])).sum(0).std()) / 2**0.5)


def by_brute_force(training: np.ndarray, made: np.ndarray) -> float:
    """The share with every distance formed in float64."""
    between = np.linalg.norm(made[:, None] - training[None], axis=2)
    within = np.linalg.norm(training[:, None] - training[None], axis=2)
    np.fill_diagonal(within, np.inf)
    return float((between.min(1) > within.min(1)[between.argmin(1)]).mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_values_are_those_of_plain_numpy(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    clients = [(draw(60, random) + 20).to(dtype), (draw(45, random, 1.0) + 20).to(dtype)]
    made = (draw(80, random, 0.5) + 20).to(dtype)
    score = AuthenticityReference.from_features(clients).score(made)
    plain = [part.double().numpy() for part in (*clients, torch.cat(clients), made)]
    assert score.per_client.tolist() == [by_brute_force(part, plain[3]) for part in plain[:2]]
    assert score.values["all"] == by_brute_force(plain[2], plain[3])
    assert 0 < score.values["all"] < 1


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(1)
    clients, made = [draw(70, random), draw(30, random, 1.0)], draw(90, random)
    whole = AuthenticityReference.from_features(clients).score(made)
    monkeypatch.setattr("fedgen.scores.kernel.kernels.BLOCK", 16)
    blocks = AuthenticityReference.from_features(clients).score(made)
    assert (blocks.values, blocks.errors) == (whole.values, whole.errors)


def test_a_generator_that_memorises_is_told_from_one_that_cannot() -> None:
    random = torch.Generator().manual_seed(2)
    clients = [draw(300, random), draw(100, random, 2.0)]
    reference = AuthenticityReference.from_features(clients)
    copies = torch.cat(clients)[torch.randperm(400, generator=random)[:200]]
    exact = reference.score(copies)
    assert exact.values["all"] == 0.0
    near = reference.score(copies + 0.05 * torch.randn(copies.shape, generator=random))
    assert near.values["all"] < 0.02
    fresh = reference.score(torch.cat([draw(150, random), draw(50, random, 2.0)]))
    assert 0.3 < fresh.values["all"] < 0.7
    half = reference.score(torch.cat([copies[:100], draw(75, random), draw(25, random, 2.0)]))
    assert near.values["all"] + 3 * half.errors["all"] < half.values["all"]
    assert half.values["all"] < fresh.values["all"] - 3 * half.errors["all"]
    first = reference.score(clients[0][:200])  # one client's images are copied, the other's are not
    assert first.per_client[0] == first.values["all"] == 0.0
    assert first.per_client[1] > 0.5


@pytest.mark.slow
def test_errors_are_the_spread_over_generated_sets() -> None:
    random = torch.Generator().manual_seed(3)
    reference = AuthenticityReference.from_features([draw(60, random), draw(40, random, 1.5)])
    scores = [reference.score(draw(50, random, 0.75)) for _ in range(300)]
    for key in ("avg", "all"):
        values = torch.tensor([score.values[key] for score in scores])
        errors = torch.tensor([score.errors[key] for score in scores])
        assert 0.85 < float(values.std() / errors.mean()) < 1.15


def test_what_cannot_be_compared_is_refused() -> None:
    random = torch.Generator().manual_seed(4)
    one, two = draw(5, random), draw(6, random)
    with pytest.raises(ValueError, match="authenticity"):
        AuthenticityReference.from_features([one, two[:1]])
    with pytest.raises(ValueError, match="weight"):
        AuthenticityReference.from_features([one, two], [1.0, 0.0])
    with pytest.raises(ValueError, match="at least one client"):
        AuthenticityReference.from_features([])
    with pytest.raises(ValueError, match="features"):
        AuthenticityReference.from_features([one, two]).score(two[:, :3])
    with pytest.raises(ValueError, match="generated"):
        AuthenticityReference.from_features([one]).score(two.index_fill(0, torch.tensor([2]), float("nan")))
