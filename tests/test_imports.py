"""Importing fedgen is fast, every module imports on its own, and the public names exist."""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import fedgen

ROOT = Path(fedgen.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(fedgen.__path__, "fedgen."))
PACKAGES = sorted(
    ".".join(["fedgen", *file.parent.relative_to(ROOT).parts])
    for file in ROOT.rglob("*/__init__.py")
    if any(p.suffix == ".py" and p.name != "__init__.py" for p in file.parent.iterdir())
)
PARTS = 6  # of the modules, so that several processes can share them
HEAVY = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy", "sklearn", "matplotlib")
WITH_ANOTHER = {"huggingface-hub", "pyarrow"}  # of diffusers and datasets, to whose files they belong

# Every module in a process of its own; the libraries are loaded once, before the processes part.
ALONE = """
import importlib, json, os, sys, traceback
sys.stdout, out = sys.stderr, sys.stdout
for library in sys.argv[2:]:
    importlib.import_module(library)
assert not any(name.split(".")[0] == "fedgen" for name in sys.modules)
failed = {}
for name in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed[name] = True
print(json.dumps(list(failed)), file=out)
"""


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


def fail_alone(modules: list[str]) -> list[str]:
    """The modules that do not import as the first of the package."""
    libraries = ("torch", "torchvision", "lightning.pytorch", "torchmetrics", "scipy.linalg")
    result = python("-W", "ignore", "-c", ALONE, json.dumps(modules), *libraries)
    assert result.returncode == 0, result.stderr
    sys.stderr.write(result.stderr)  # shown where a test fails
    return json.loads(result.stdout)


@pytest.mark.slow
def test_every_package_imports_on_its_own():
    assert fail_alone(PACKAGES) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(PARTS))
def test_every_module_imports_on_its_own(first):
    assert fail_alone(MODULES[first::PARTS]) == []


def test_every_file_is_a_module_of_a_package():
    """A folder without __init__.py would be left out of the wheel, and of the test above."""
    files = (".".join(["fedgen", *f.relative_to(ROOT).with_suffix("").parts]) for f in ROOT.rglob("*.py"))
    assert {name.removesuffix(".__init__") for name in files} == {"fedgen", *MODULES}


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
    with pytest.raises(AttributeError, match=r"fedgen.*no attribute 'FedSomething'"):
        _ = fedgen.FedSomething


def test_the_version_is_that_of_the_distribution():
    project = (ROOT.parent / "pyproject.toml").read_text()
    assert f'version = "{fedgen.__version__}"' in project


def imported_libraries():
    """Roots of all that the package imports, wherever in a file it does so."""
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).split(".")[0]


def test_every_library_that_is_imported_is_declared():
    """Not left to come along with another one."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[\[<>=]", line)[0] for line in lines} | WITH_ANOTHER
    libraries = set(imported_libraries()) - set(sys.stdlib_module_names) - {"fedgen"}
    assert len(libraries) > 15
    homes = packages_distributions()
    undeclared = {
        library
        for library in libraries
        if not {home.lower().replace("_", "-") for home in homes.get(library, [library])} & declared
    }
    assert undeclared == set()
