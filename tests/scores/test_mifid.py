"""MiFID against torchmetrics, the plain FID, and generators with and without memory."""

import pytest
import torch
from torch import nn
from torchmetrics.image.mifid import MemorizationInformedFrechetInceptionDistance

from fedgen.evaluation.score_choice import choose
from fedgen.scores import FederatedScore, FrechetReference, MiFIDReference

DIM = 12


def draw(count: int, random: torch.Generator, shift: float = 1.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=random, dtype=torch.float64) + shift


def by_torchmetrics(generated: torch.Tensor, training: torch.Tensor, threshold: float = 0.1) -> float:
    """Its value with the sets in each other's place: it takes the mean over what it is given as real."""
    metric = MemorizationInformedFrechetInceptionDistance(nn.Identity(), cosine_distance_eps=threshold)
    metric.update(generated, real=True)
    metric.update(training, real=False)
    return float(metric.compute())


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_values_are_those_of_torchmetrics(noise: float) -> None:
    random = torch.Generator().manual_seed(0)
    clients = [draw(90, random, 3.0), draw(60, random, 2.0)]
    made = torch.cat(clients)[::2] + noise * draw(75, random, 0.0)
    found = MiFIDReference.from_features(clients).score(made)
    assert found.name == "mifid"
    expected = [by_torchmetrics(made, part) for part in (*clients, torch.cat(clients))]
    assert found.per_client.tolist() == pytest.approx(expected[:2], rel=1e-8)
    assert found.values["all"] == pytest.approx(expected[2], rel=1e-8)
    assert found.values["avg"] == pytest.approx(0.6 * expected[0] + 0.4 * expected[1], rel=1e-8)
    assert found.values["worst"] == pytest.approx(max(expected[:2]), rel=1e-8)


def test_the_distance_is_over_generated_images_and_the_threshold_decides() -> None:
    training = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    made = torch.tensor([[4.0, 3.0], [0.0, 2.0], [0.0, -3.0]], dtype=torch.float64)
    distance = (1 - 0.8 + 0 + 0) / 3  # opposite directions are the same one
    (fid,) = FrechetReference.from_features([training]).score(made, errors=False).per_client.tolist()
    memorised = MiFIDReference.from_features([training]).score(made)
    assert memorised.values["all"] == pytest.approx(fid / distance)
    below = MiFIDReference.from_features([training], threshold=distance * 0.99).score(made)
    assert below.values["all"] == fid
    turned = MiFIDReference.from_features([made], threshold=0.15).score(training)  # from the two to the three
    assert turned.values["all"] == pytest.approx(fid / ((1 - 0.8 + 0) / 2))


def test_beyond_the_threshold_it_is_the_fid_with_its_errors() -> None:
    random = torch.Generator().manual_seed(1)
    clients, made = [draw(60, random, 0.0), draw(40, random, 0.5)], draw(80, random, 0.0)
    found = MiFIDReference.from_features(clients, "uniform").score(made)
    expected = FrechetReference.from_features(clients, "uniform").score(made)
    assert (found.values, found.errors, found.terms) == (expected.values, expected.errors, expected.terms)
    assert found.errors_over_clients == expected.errors_over_clients


def test_the_training_images_themselves_have_none() -> None:
    random = torch.Generator().manual_seed(2)
    training = draw(200, random)
    score = MiFIDReference.from_features([training]).score(training.flip(0))
    assert score.values["all"] == score.errors["all"] == 0.0


def test_images_without_a_direction_are_left_out() -> None:
    random = torch.Generator().manual_seed(3)
    training = draw(50, random, 4.0)
    training[7] = 0.0
    made = training[:40] * 1.5 + 0.1 * draw(40, random)
    made[3] = made[9] = 0.0
    found = MiFIDReference.from_features([training]).score(made)
    assert found.values["all"] == pytest.approx(by_torchmetrics(made, training), rel=1e-8)
    nothing = MiFIDReference.from_features([training]).score(torch.zeros(9, DIM))
    assert nothing.values == FrechetReference.from_features([training]).score(torch.zeros(9, DIM)).values


def test_all_looks_among_the_images_of_clients_that_count() -> None:
    random = torch.Generator().manual_seed(4)
    clients = [draw(80, random, 3.0), draw(80, random, 3.0)]
    copied = clients[1][:50]
    both = MiFIDReference.from_features(clients).score(copied)
    assert both.per_client[1] > 1e6 * both.per_client[0]
    assert both.values["all"] > 1e6 * both.per_client[0]
    first = MiFIDReference.from_features(clients, [1.0, 0.0]).score(copied)
    assert first.values["all"] == pytest.approx(float(first.per_client[0]))


def test_a_generator_that_memorises_is_told_from_one_that_cannot() -> None:
    random = torch.Generator().manual_seed(5)
    clients = [draw(300, random, 2.0), draw(100, random, 3.0)]
    reference = MiFIDReference.from_features(clients)
    copies = torch.cat(clients)[torch.randperm(400, generator=random)[:200]]
    made = torch.cat([draw(150, random, 2.0), draw(50, random, 3.0)])
    noisy = copies + 0.1 * draw(200, random, 0.0)
    plain = FrechetReference.from_features(clients)
    assert plain.score(noisy).values["all"] < plain.score(made).values["all"]  # the FID takes memory for quality
    fresh, near, exact = (reference.score(one) for one in (made, noisy, copies))
    assert near.values["all"] > 10 * fresh.values["all"]
    assert near.values["avg"] > 2 * fresh.values["avg"]
    assert exact.values["all"] > 1e6 * near.values["all"]


def spread(kind: str, scores: list[FederatedScore], key: str) -> float:
    values = torch.tensor([score.values[key] for score in scores])
    return float(values.std() / torch.tensor([score.error_parts[kind][key] for score in scores]).mean())


@pytest.mark.slow
def test_errors_are_the_spread_over_generated_sets() -> None:
    random = torch.Generator().manual_seed(6)
    clients = [draw(200, random, 2.0), draw(120, random, 3.0)]
    reference = MiFIDReference.from_features(clients)
    scores = []
    for _ in range(150):  # copies of some images, off to one side
        chosen = clients[0][torch.randint(0, 60, (150,), generator=random)]
        scores.append(reference.score(chosen * 1.4 + 0.3 * draw(150, random, 0.0)))
    for key in ("avg", "all", "worst"):
        assert 0.8 < spread("generated", scores, key) < 1.25


def test_options_out_of_range_and_features_that_do_not_fit_are_refused() -> None:
    random = torch.Generator().manual_seed(7)
    with pytest.raises(ValueError, match="threshold"):
        choose({"name": "mifid", "threshold": 0})
    with pytest.raises(ValueError, match="mifid"):
        choose({"name": "mifid", "ddof": 2})
    reference = MiFIDReference.from_features([draw(9, random)])
    with pytest.raises(ValueError, match="features"):
        reference.score(draw(9, random)[:, :3])
    with pytest.raises(ValueError, match="generated"):
        reference.score(draw(9, random).index_fill(0, torch.tensor([2]), float("nan")))
