"""How many damaged copies of a file its reader is given."""

import pytest


@pytest.fixture(params=[100, pytest.param(1000, marks=pytest.mark.slow)])
def copies(request: pytest.FixtureRequest) -> int:
    """A hundred of the thousand among the quick tests, all of them among the slow ones."""
    return request.param
