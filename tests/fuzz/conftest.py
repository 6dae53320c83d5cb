"""How many damaged copies of a file its reader is given."""

import pytest


@pytest.fixture(params=[1, pytest.param(64, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.fuzz)])
def copies(request: pytest.FixtureRequest) -> int:
    """One among the quick tests, a thousand in `make test-fuzz`.

    Among the slow ones eight of each kind, with whole files of other kinds a hundred.
    """
    return request.param
