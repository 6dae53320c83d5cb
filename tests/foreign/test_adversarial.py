"""Generators and discriminators, with their pools and clocks, are what ordinary fits make of them."""

import pytest

from tests.foreign.adversarial import CASES
from tests.foreign.cases import Case, check


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)
