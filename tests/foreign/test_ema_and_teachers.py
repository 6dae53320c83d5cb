"""Moving averages of weights, and teachers that are ones, are what ordinary fits make of them."""

import pytest

from tests.foreign.cases import Case, check
from tests.foreign.ema_and_teachers import CASES
from tests.quick import first_quick


@pytest.mark.parametrize("case", first_quick(CASES), ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)
