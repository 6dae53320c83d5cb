"""What tests of suites share."""

import pytest

from fedgen.benchmark.suite import DATA
from fedgen.experiments.engine import trainings
from tests.benchmark.few_images import FEW
from tests.experiments.tiny_runs import train_in_forks


@pytest.fixture(scope="module")
def few_images():
    """Fewer images of digits for a module's tests."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(DATA, "digits", FEW)
        yield


@pytest.fixture(scope="module")
def forked():
    """Runs in forks of this process, where `fedgen benchmark` starts processes that import all; costs are of these."""
    with pytest.MonkeyPatch.context() as changed:
        train_in_forks(changed)
        changed.setattr(trainings, "run_new_fit", trainings.run_fit)
        yield
