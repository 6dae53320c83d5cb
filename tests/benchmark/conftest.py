"""What tests of suites share."""

import pytest

from fedgen.benchmark.suite import DATA
from tests.benchmark.few_images import FEW


@pytest.fixture(scope="module")
def few_images():
    """Fewer images of digits for a module's tests; processes that they start run `tests.benchmark.few_images`."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(DATA, "digits", FEW)
        yield
