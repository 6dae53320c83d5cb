"""Diffusion, score and consistency models are what ordinary fits make of them."""

import pytest

from tests.foreign.cases import Case, check
from tests.foreign.diffusion import CASES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)
