import pytest
import torch

from fedgen.scores import aggregate, resolve_weights
from fedgen.scores.aggregate import combine

SCORES, WEIGHTS = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.25, 0.25])


def test_aggregates_by_hand() -> None:
    assert aggregate(SCORES, WEIGHTS) == pytest.approx(2.0)
    assert aggregate(SCORES, WEIGHTS, "worst") == 4.0
    assert aggregate(SCORES, WEIGHTS, 2) == pytest.approx((0.5 + 1 + 4) ** 0.5)
    assert aggregate(SCORES, WEIGHTS, float("inf")) == 4.0
    assert aggregate(torch.zeros(3), WEIGHTS, 2) == 0.0


def test_power_means_grow_with_the_power_up_to_the_worst() -> None:
    means = [aggregate(SCORES * 1e200, WEIGHTS, power) for power in (1, 2, 5, 50, float("inf"))]
    assert means == sorted(means)


def test_where_higher_is_better_the_smallest_is_worst_and_powers_lean_to_it() -> None:
    assert aggregate(SCORES, WEIGHTS, higher_is_better=True) == aggregate(SCORES, WEIGHTS) == 2.0
    assert aggregate(SCORES, WEIGHTS, "worst", higher_is_better=True) == 1.0
    assert aggregate(SCORES, WEIGHTS, 0, higher_is_better=True) == pytest.approx(8**0.25)
    assert aggregate(SCORES, WEIGHTS, -1, higher_is_better=True) == pytest.approx(1 / (0.5 + 0.125 + 0.0625))
    means = [aggregate(SCORES * 1e-200, WEIGHTS, power, True) for power in (1, 0.5, 0, -1, -50, -float("inf"))]
    assert means == sorted(means, reverse=True)
    assert [aggregate(SCORES - 1, WEIGHTS, power, True) for power in (0.5, 0, -2)] == [
        pytest.approx((1 + 3**0.5) ** 2 / 16),
        0,
        0,
    ]
    score = combine("recall", SCORES, 1.5, WEIGHTS, higher_is_better=True)
    assert score.values == {"avg": 2.0, "all": 1.5, "worst": 1.0}
    assert score.higher_is_better
    assert not combine("kid", SCORES, 1.5, WEIGHTS).higher_is_better
    with pytest.raises(ValueError, match="most"):
        aggregate(SCORES, WEIGHTS, 2, higher_is_better=True)


def test_clients_of_weight_zero_are_not_the_worst() -> None:
    assert aggregate(SCORES, torch.tensor([0.5, 0.5, 0.0]), "worst") == 2.0


def test_aggregates_refuse_what_means_nothing() -> None:
    for how in ("best", 0.5, float("nan")):
        with pytest.raises(ValueError, match="how must be"):
            aggregate(SCORES, WEIGHTS, how)
    with pytest.raises(ValueError, match="at least 0"):
        aggregate(SCORES - 2, WEIGHTS, 2)


def test_weights_by_name_and_number() -> None:
    assert resolve_weights("examples", [1, 3]).tolist() == [0.25, 0.75]
    assert resolve_weights("uniform", [1, 3]).tolist() == [0.5, 0.5]
    assert resolve_weights([1, 4], [1, 3]).tolist() == [0.2, 0.8]
    for weights, message in (("sizes", "'examples'"), ([1.0], "one number a client"), ([0.0, 0.0], "all zero")):
        with pytest.raises(ValueError, match=message):
            resolve_weights(weights, [1, 3])


def test_errors_of_the_two_sides_add_in_squares() -> None:
    parts = {
        "generated": dict.fromkeys(("avg", "all", "worst"), 3.0),
        "real": dict.fromkeys(("avg", "all", "worst"), 4.0),
    }
    score = combine("kid", SCORES, 1.5, WEIGHTS, error_parts=parts)
    assert score.values == {"avg": 2.0, "all": 1.5, "worst": 4.0}
    assert score.errors == {"avg": 5.0, "all": 5.0, "worst": 5.0}
    assert combine("kid", SCORES, 1.5, WEIGHTS).errors == {}
    own = {"generated": torch.tensor([3.0, 0.0, 5.0]), "real": torch.tensor([4.0, 1.0, 12.0])}
    assert combine("kid", SCORES, 1.5, WEIGHTS, client_error_parts=own).client_errors.tolist() == [5.0, 1.0, 13.0]
    assert combine("kid", SCORES, 1.5, WEIGHTS).client_errors is None
