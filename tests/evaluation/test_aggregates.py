"""Power means by name."""

import pytest
import torch

from fedgen.evaluation.reference import Reference
from fedgen.evaluation.score_choice import (
    DISTRIBUTION,
    applies,
    check_aggregates,
    choose,
    choose_aggregates,
    power_of,
    with_further,
)
from fedgen.scores.aggregate import combine

WEIGHTS = torch.tensor([0.5, 0.5], dtype=torch.float64)


def test_avg_all_and_worst_are_always_there():
    assert choose_aggregates(()) == ("avg", "all", "worst")
    assert choose_aggregates(["power-2", "avg", "power-2"]) == ("avg", "all", "worst", "power-2")
    assert choose_aggregates("power-3") == ("avg", "all", "worst", "power-3")


@pytest.mark.parametrize("name", ["power", "power-", "power-x", "2", "median", "power-inf", "power-nan"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=f"unknown aggregate '{name}'; known: avg, all, worst, .*power-2"):
        choose_aggregates([name])


def test_powers_are_read_from_names():
    assert [power_of(name) for name in ("power-2", "power-1.5", "power--1", "power-0")] == [2.0, 1.5, -1.0, 0.0]


def test_power_means_by_hand():
    score = combine("fid", torch.tensor([3.0, 4.0], dtype=torch.float64), 1.0, WEIGHTS)
    found = with_further(score, choose("fid"), ("avg", "all", "worst", "power-2", "power--1"), WEIGHTS)
    assert found.values == {"avg": 3.5, "all": 1.0, "worst": 4.0, "power-2": pytest.approx(12.5**0.5)}


def test_where_higher_is_better_powers_lean_the_other_way():
    score = combine("recall", torch.tensor([0.2, 0.6], dtype=torch.float64), 0.5, WEIGHTS, higher_is_better=True)
    found = with_further(score, choose("recall"), ("power-2", "power--1"), WEIGHTS)
    assert found.values["power--1"] == pytest.approx(2 / (1 / 0.2 + 1 / 0.6))
    assert "power-2" not in found.values
    assert found.values["worst"] == 0.2


def test_scores_that_may_be_negative_have_no_power_means():
    v = {"name": "kid", "estimator": "v"}
    assert [applies("power-2", choose(score)) for score in ("fid", "kid", v, "w1", "sw1")] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert not any(applies("power--1", choose(score)) for score in ("ll", "is", "memorisation", "fld"))
    assert applies("worst", choose("kid"))


def test_an_aggregate_of_no_score_is_refused():
    check_aggregates(("avg", "power-2", "power--1"), [choose("fid"), choose("recall")])
    with pytest.raises(ValueError, match="aggregate"):
        check_aggregates(("avg", "power-2"), [choose("kid"), choose("recall")])


def test_rounding_below_zero_is_no_negative_score():
    score = combine("kid", torch.tensor([-1e-18, 2.0], dtype=torch.float64), 1.0, WEIGHTS)
    found = with_further(score, choose({"name": "kid", "estimator": "v"}), ("power-2",), WEIGHTS)
    assert found.values["power-2"] == pytest.approx(2**0.5)


def test_the_distribution_of_five_clients_by_hand():
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 10.0]).double()
    score = combine("fid", values, 1.0, torch.ones(5).double() / 5)
    found = with_further(score, choose("fid"), ("avg", *DISTRIBUTION), torch.ones(5).double() / 5).values
    assert found["unweighted"] == 5.0
    assert found["var"] == (16 + 9 + 1 + 9 + 25) / 5
    assert [found[name] for name in ("pct95", "pct75", "pct50", "pct25", "pct5")] == [10.0, 8.0, 4.0, 2.0, 1.0]


def test_one_value_for_all_clients_has_no_distribution():
    assert not any(applies(name, choose("is")) for name in DISTRIBUTION)
    assert all(applies(name, choose("kid")) for name in DISTRIBUTION)


def test_the_variance_over_clients_of_a_score_in_thousandths_is_that_of_the_values_shown():
    draws = torch.Generator().manual_seed(0)
    clients = [torch.randn(20, 3, generator=draws) + shift for shift in (0, 1, 3)]
    reference = Reference(clients, choose("kid", scale=1000.0), aggregates=("avg", "var"))
    (found,) = reference.score(torch.randn(20, 3, generator=draws))
    assert found.values["var"] == pytest.approx(found.per_client.var(correction=0).item())
