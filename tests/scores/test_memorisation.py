import pytest
import torch

from fedgen.scores import FederatedScore, memorisation

DIM = 8


def draw(count: int, random: torch.Generator, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=random) + shift


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def test_by_hand() -> None:
    # 0.1 and 0.2 are nearest to a training image, 4.9 to a held-out one, 2.5 to both
    score = memorisation([column(0.0, -9.0)], [column(5.0, 14.0)], column(0.1, 0.2, 2.5, 4.9))
    assert score.name == "memorisation"
    assert score.values == {"avg": 2.5 / 4, "all": 2.5 / 4, "worst": 2.5 / 4}
    counts = torch.tensor([2.5, 0, 1.5, 0])  # variance over the four real images, 1/2 + 1/2, level 1
    expected = float(counts.var()) ** 0.5 / 4
    assert score.errors == pytest.approx(dict.fromkeys(score.values, expected))


def test_unequal_numbers_are_balanced_by_hand() -> None:
    train, held_out = column(0.0, 1.0, 2.0, 3.0), column(10.0, 11.0)
    score = memorisation([train], [held_out], column(0, 1, 2, 3, 10, 11))  # one generated image to each real one
    assert score.values["avg"] == 0.5
    more = memorisation([train], [held_out], column(0, 0, 1, 1, 2, 2, 3, 3, 10, 11))  # two to each training image
    assert more.values["avg"] == pytest.approx(2 / 3)


def test_all_looks_for_the_nearest_image_among_all_clients() -> None:
    train, held_out = [column(0.0, 1.0), column(10.0, 11.0)], [column(2.0, 3.0), column(8.0, 9.0)]
    score = memorisation(train, held_out, column(0.1, 0.9, 8.1, 8.9))
    assert score.per_client.tolist() == pytest.approx([0.5, 0.0])  # client 0: 3 is nearest to 8.1 and 8.9
    assert score.values["all"] == pytest.approx(0.5)
    assert score.values["avg"] == pytest.approx(0.25)
    weighted = memorisation(train, held_out, column(0.1, 0.9, 8.1, 8.9), [3.0, 1.0])
    assert weighted.values["all"] == pytest.approx(0.75)  # T = 3/4 * 1, H = 1/4 * 1
    assert weighted.values["avg"] == pytest.approx(0.375)
    alone = memorisation(train, held_out, column(0.1, 0.9, 8.1, 8.9), [0.0, 1.0])
    assert alone.values == {"avg": 0.0, "all": 0.0, "worst": 0.0}


def federation(random: torch.Generator, sizes: tuple[int, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two clients, the second with as many training as held-out images."""
    train = [draw(sizes[0], random), draw(100, random, 2.0)]
    return train, [draw(sizes[1], random), draw(100, random, 2.0)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(200, 200), (450, 50)])
def test_a_generator_without_memory_scores_a_half_within_its_error(sizes: tuple[int, int]) -> None:
    random, draws = torch.Generator().manual_seed(0), 100
    scores: list[FederatedScore] = []
    for _ in range(draws):
        train, held_out = federation(random, sizes)
        made = torch.cat([draw(160, random), draw(40, random, 2.0)])
        scores.append(memorisation(train, held_out, made))
    for key in ("avg", "all"):
        values = torch.tensor([score.values[key] for score in scores])
        errors = torch.tensor([score.errors[key] for score in scores])
        assert abs(float(values.mean()) - 0.5) < 0.03  # 50 held-out images: the ratio is a little convex
        assert 0.88 <= float(((values - 0.5).abs() < 1.96 * errors).double().mean()) <= 1.0
        assert 0.8 < float(values.std() / errors.mean()) < 1.25


@pytest.mark.parametrize("sizes", [(200, 200), (450, 50)])
def test_copies_are_found(sizes: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(1)
    train, held_out = federation(random, sizes)
    copies = torch.cat([train[0][:80], train[1][:80]])
    exact = memorisation(train, held_out, copies)
    assert exact.values["all"] == 1.0
    near = memorisation(train, held_out, copies + 0.05 * torch.randn(copies.shape, generator=random))
    assert near.values["all"] > 0.99
    half = memorisation(train, held_out, torch.cat([copies, draw(160, random)]))
    assert 0.5 + 3 * half.errors["all"] < half.values["all"] < 1
    first = memorisation(train, held_out, train[0])  # one client's images are copied, the other's are not
    assert first.per_client[0] == 1.0
    assert abs(float(first.per_client[1]) - 0.5) < 4 * float(first.client_errors[1])
    assert first.values["worst"] == 1.0


def test_copies_of_held_out_images_score_zero() -> None:
    train, held_out = federation(torch.Generator().manual_seed(2), (60, 60))
    assert memorisation(train, held_out, held_out[1][:30]).values["all"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_images_that_are_in_both_are_a_tie(dtype: torch.dtype) -> None:
    images = (draw(50, torch.Generator().manual_seed(3)) + 30).to(dtype)
    score = memorisation([images], [images.flip(0)], images[:20] + 0.01)
    assert score.values["all"] == 0.5


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(4)
    train, held_out = federation(random, (70, 30))
    made = draw(90, random)
    whole = memorisation(train, held_out, made)
    monkeypatch.setattr("fedgen.scores.kernel.kernels.BLOCK", 16)
    blocks = memorisation(train, held_out, made)
    assert blocks.values == whole.values
    by_hand = []
    for side in (train, held_out):
        places = torch.cdist(made.double(), side[0].double(), compute_mode="donot_use_mm_for_euclid_dist").min(1)
        by_hand.append(places.values)
    nearer = int((by_hand[0] < by_hand[1]).sum())
    assert whole.per_client[0] == pytest.approx((nearer / 70) / (nearer / 70 + (90 - nearer) / 30))


def test_what_cannot_be_compared_is_refused() -> None:
    random = torch.Generator().manual_seed(5)
    one, two = draw(5, random), draw(6, random)
    with pytest.raises(ValueError, match="held"):
        memorisation([one, two], [one], two)
    with pytest.raises(ValueError, match="0 clients"):
        memorisation([], [], two)
    with pytest.raises(ValueError, match="features"):
        memorisation([one, two], [one, two[:0]], two)
    with pytest.raises(ValueError, match="training"):
        memorisation([one[:, :3]], [two], two)
    with pytest.raises(ValueError, match="generated"):
        memorisation([one], [two], two.index_fill(0, torch.tensor([2]), float("nan")))
