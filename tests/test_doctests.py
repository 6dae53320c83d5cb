"""Examples in docstrings: every public name of the main packages has one, and prints what it says."""

import doctest
import inspect
import sys
from importlib import import_module

import lightning  # noqa: F401 - which most examples import: here, not in the first one's time
import pytest

PACKAGES = ["fedgen", "fedgen.losses", "fedgen.metrics", "fedgen.scores", "fedgen.clients", "fedgen.federated"]
SLOW = {"DDPM", "FlowMatching"}  # import diffusers


def public(package):
    """(name, object) of each class and function of a package's `__all__`."""
    module = import_module(package)
    found = ((name, getattr(module, name)) for name in module.__all__ if not name.startswith("_"))
    return [(name, value) for name, value in found if inspect.isclass(value) or inspect.isfunction(value)]


def named():
    """One case for each name, also where two packages have it."""
    names = {name: package for package in reversed(PACKAGES) for name in import_module(package).__all__}
    return [
        pytest.param(package, name, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, package in sorted(names.items())
        if not name.startswith("_")
    ]


@pytest.mark.parametrize(("package", "name"), named())
def test_the_example_of_a_public_name_prints_what_it_says(package, name, capsys):
    value = getattr(import_module(package), name)
    (case,) = doctest.DocTestFinder(recurse=False).find(value, name, module=sys.modules[value.__module__], globs={})
    assert case.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(case)
    assert runner.failures == 0, capsys.readouterr().out


def test_every_public_name_is_looked_at():
    assert {name for package in PACKAGES for name, _ in public(package)} <= {case.values[1] for case in named()}
