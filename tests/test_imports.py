"""Importing fedgen is fast, every module can be imported first, and the public names exist."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedgen
from tests.launched import said_in_fork

ROOT = Path(fedgen.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(fedgen.__path__, "fedgen."))
PACKAGES = sorted(
    ".".join(["fedgen", *file.parent.relative_to(ROOT).parts])
    for file in ROOT.rglob("*/__init__.py")
    if any(p.suffix == ".py" and p.name != "__init__.py" for p in file.parent.iterdir())
)
HEAVY = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy", "sklearn", "matplotlib")


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT.parent, timeout=300)


def test_importing_fedgen_loads_no_heavy_library():
    script = f"import sys, fedgen; print([name for name in {HEAVY} if name in sys.modules])"
    result = python("-c", script)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_asking_for_help_loads_no_heavy_library():
    script = (
        "import sys\nfrom fedgen.__main__ import main\nmain(['--help'])\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = python("-c", script)
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stderr


@pytest.mark.slow
def test_every_module_imports():
    """In a fork that has imported none of them, and what they import from others already."""

    def import_all() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "fedgen"]:
            del sys.modules[name]
        for name in MODULES:
            importlib.import_module(name)

    status, said = said_in_fork(import_all)
    assert status == 0, said


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_public_names_that_exist(name):
    package = importlib.import_module(name)
    if not hasattr(package, "__all__"):  # a room of files, whose public names the package around it lists
        (only,) = ast.parse(Path(str(package.__file__)).read_text()).body
        assert ast.unparse(only) == repr(package.__doc__)
        return
    names = package.__all__
    assert names
    assert len(set(names)) == len(names)
    assert [n for n in names if not hasattr(package, n)] == []
    assert [n for n in names if n.startswith("_")] == []


def test_the_root_has_at_most_twenty_five_names_and_each_of_them_loads():
    names = getattr(fedgen, "__all__", [n for n in vars(fedgen) if not n.startswith("_")])
    assert len(set(names)) == len(names) <= 25
    assert [n for n in names if not hasattr(fedgen, n)] == []


def test_a_name_that_does_not_exist_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="FedSomething"):
        _ = fedgen.FedSomething


def test_the_version_is_that_of_the_distribution():
    project = (ROOT.parent / "pyproject.toml").read_text()
    assert f'version = "{fedgen.__version__}"' in project
