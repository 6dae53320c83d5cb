"""Self-supervised modules with momentum encoders, queues and centres give what ordinary fits give."""

import pytest

from tests.foreign.cases import Case, check
from tests.foreign.contrastive import CASES


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)
