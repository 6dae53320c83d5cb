"""Noise for epsilon and delta, against dp-accounting and the mechanism's definition."""

import builtins
import math
import sys

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from scipy.integrate import quad
from scipy.stats import norm

from fedgen.statistics import noise_multiplier, spent_epsilon
from fedgen.statistics.private import counted_epsilon, federated_epsilon

CASES = [(0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-5), (2.0, 1e-9), (0.5, 0.3)]


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_the_noise_meets_the_definition_with_equality(epsilon, delta) -> None:
    """delta = integral of max(0, p - e^epsilon q) for outputs p and q of neighbours at distance 1."""
    z = noise_multiplier(epsilon, delta)
    left = 0.5 - epsilon * z**2  # where the densities of N(0, z^2) and N(1, z^2) are e^epsilon apart
    value, _ = quad(lambda t: norm.pdf(t, 0, z) - math.exp(epsilon) * norm.pdf(t, 1, z), left - 20 * z, left)
    assert value == pytest.approx(delta, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_it_is_what_dp_accounting_calibrates(epsilon, delta) -> None:
    z = noise_multiplier(epsilon, delta)
    assert z == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    assert z < noise_multiplier(epsilon, delta, accountant="rdp") < 2 * z


def test_the_analytic_noise_is_less_than_the_classic_one() -> None:
    classic = noise_multiplier(1.0, 1e-5, accountant="classic")
    assert classic == pytest.approx(math.sqrt(2 * math.log(125000)))
    assert noise_multiplier(1.0, 1e-5) == pytest.approx(0.77 * classic, rel=1e-3)
    assert noise_multiplier(8.0, 1e-5) < noise_multiplier(8.0, 1e-5, accountant="classic")


def test_the_classic_noise_is_refused_where_it_would_not_protect() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        noise_multiplier(10.0, 1e-5, accountant="classic")


@pytest.mark.slow
def test_privacy_loss_distributions_come_to_the_same() -> None:
    assert noise_multiplier(1.0, 1e-5, accountant="pld") == pytest.approx(noise_multiplier(1.0, 1e-5), rel=1e-5)


@pytest.mark.parametrize("accountant", ["analytic", "rdp"])
def test_releases_compose(accountant) -> None:
    z = noise_multiplier(1.0, 1e-5, releases=4, accountant=accountant)
    assert spent_epsilon([z] * 4, 1e-5, accountant) == pytest.approx(1.0, rel=1e-4)
    assert z == pytest.approx(2 * noise_multiplier(1.0, 1e-5, accountant=accountant), rel=1e-4)


@pytest.mark.parametrize("releases", [1, 3])
def test_dp_accounting_alone_counts_what_the_noise_is_made_for(releases) -> None:
    z = noise_multiplier(2.0, 1e-5, releases)
    assert counted_epsilon(z, releases, 1e-5) == pytest.approx(2.0, rel=1e-9)
    assert counted_epsilon(z / 2, releases, 1e-5) > 4


@pytest.mark.slow
def test_unequal_releases_compose_as_by_the_accountant() -> None:
    exact = spent_epsilon([2.0, 3.0, 5.0], 1e-5)
    assert exact == pytest.approx(spent_epsilon([2.0, 3.0, 5.0], 1e-5, "pld"), rel=1e-5)
    assert exact < spent_epsilon([2.0, 3.0, 5.0], 1e-5, "rdp")
    assert spent_epsilon([1000.0], 0.4) == 0.0


@pytest.mark.slow
def test_federated_epsilon_is_that_of_a_client_in_anothers_place_as_dp_accounting_counts_it() -> None:
    """Replacing a client moves the sum by twice its noise's unit: nine of z = 1 are one of 1 / (2 sqrt 9) = 1 / 6."""
    found, alone = federated_epsilon(1.0, releases=9, delta=1e-5), spent_epsilon([1 / 6], 1e-5)
    assert alone == pytest.approx(42.836, abs=1e-3)
    pieces = (
        pld.PLDAccountant(value_discretization_interval=1e-3),
        rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE),
    )
    exact, bound = (one.compose(dp_accounting.GaussianDpEvent(0.5), 9).get_epsilon(1e-5) for one in pieces)
    assert alone == pytest.approx(exact, rel=1e-5)
    assert found == pytest.approx(bound) == pytest.approx(45.245, abs=1e-3)
    assert alone < found


def test_federated_epsilon_falls_with_noise_and_rises_with_releases() -> None:
    assert federated_epsilon(4.0, 9, 1e-5) < federated_epsilon(2.0, 9, 1e-5) < federated_epsilon(2.0, 10, 1e-5)
    assert federated_epsilon(2.0, 0, 1e-5) == 0
    assert federated_epsilon(0.0, 3, 1e-5) == math.inf


def test_a_missing_package_names_the_extra(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "dp_accounting":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match="install"):
        noise_multiplier(1.0, 1e-5, accountant="pld")
    assert noise_multiplier(1.0, 1e-5) == pytest.approx(3.7306, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.0, 1e-5), "epsilon must be positive and finite, got 0.0"),
        ((float("nan"), 1e-5), "epsilon must be positive"),
        ((1.0, 0.0), "delta must be between 0 and 1, got 0.0"),
        ((1.0, 1e-5, 0), "releases must be at least 1, got 0"),
        ((1.0, 1e-5, 1, "moments"), "accountant must be .* got 'moments'"),
    ],
)
def test_values_out_of_range_are_refused(arguments, text) -> None:
    with pytest.raises(ValueError, match=text):
        noise_multiplier(*arguments)


def test_spending_needs_releases_and_an_accountant_that_counts() -> None:
    with pytest.raises(ValueError, match="multiplier"):
        spent_epsilon([1.0, 0.0], 1e-5)
    with pytest.raises(ValueError, match="multiplier"):
        spent_epsilon([], 1e-5)
    with pytest.raises(ValueError, match="accountant"):
        spent_epsilon([1.0], 1e-5, "classic")
