"""The suite `tiny` with a ninth of its images, as scoring is most of what it takes: `python -m` this for `fedgen`."""

import sys
from dataclasses import replace

import pytest

from fedgen.__main__ import main
from fedgen.benchmark.parts import DATA

FEW = replace(DATA["digits"], num_images=100)


@pytest.fixture(scope="module", autouse=True)
def few_images():
    """For a module's tests that import it; processes that they start are to run this one's `main`."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(DATA, "digits", FEW)
        yield


if __name__ == "__main__":
    DATA["digits"] = FEW
    sys.exit(main(sys.argv[1:]))
