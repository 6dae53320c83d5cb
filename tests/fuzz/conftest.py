"""How many damaged copies of a file its reader is given."""

import pytest


@pytest.fixture(params=[1, pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.fuzz)])
def copies(request: pytest.FixtureRequest) -> int:
    """One among the quick tests, a hundred among the slow ones, a thousand in `make test-fuzz`."""
    return request.param
