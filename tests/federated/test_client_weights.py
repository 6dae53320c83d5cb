"""How much a client counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedgen.federated.aggregators.mean import shares_of, weight_of
from tests.federated.modules import make_data

KINDS: Any = [("examples", [0.25, 0.75], 9.0), ("uniform", [0.5, 0.5], 1.0)]


@pytest.mark.parametrize(("kind", "shares", "weight"), KINDS)
def test_shares_of_all_clients_add_up_to_one(kind, shares, weight):
    """Clients of 4 and 12 examples."""
    assert shares_of(make_data((4, 12)), kind) == shares
    assert weight_of(9, kind) == weight


@pytest.mark.parametrize("data", [None, SimpleNamespace()])
def test_data_that_names_no_clients_has_no_shares(data):
    assert shares_of(data, "examples") is None
