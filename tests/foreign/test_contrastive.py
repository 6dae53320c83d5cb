"""Self-supervised modules with momentum encoders, queues and centres give what ordinary fits give."""

from dataclasses import replace

import pytest

from tests.foreign.cases import Case, check
from tests.foreign.contrastive import CASES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)


def test_an_integer_that_fell_is_named() -> None:
    case = next(case for case in CASES if case.name == "MoCo, nothing declared")
    with pytest.warns(UserWarning, match="queue_ptr"):
        replace(case, warns=()).federated()
