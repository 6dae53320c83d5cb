"""Importing fedgen is fast, every module can be imported first, and the public names exist."""

import ast
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import fedgen
from fedgen.lazy import homes

ROOT = Path(fedgen.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(fedgen.__path__, "fedgen."))
PACKAGES = sorted(
    ".".join(["fedgen", *file.parent.relative_to(ROOT).parts])
    for file in ROOT.rglob("*/__init__.py")
    if any(p.suffix == ".py" and p.name != "__init__.py" for p in file.parent.iterdir())
)
HEAVY = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "scipy", "sklearn", "matplotlib")
WITH_ANOTHER = {"huggingface-hub", "pyarrow", "threadpoolctl"}  # of diffusers, datasets and scikit-learn


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


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported: none in functions, or for type checkers alone."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from at_import(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                yield from at_import(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from at_import(handler.body)


def imported_first(sources: Mapping[str, str], homes_of: Callable[[str], Mapping[str, str]]) -> dict[str, set[str]]:
    """By module those that it needs when it is imported; of a package that loads names on use, the names' homes."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        needed = set()
        for statement in at_import(ast.parse(source).body):
            if isinstance(statement, ast.Import):
                needed |= {alias.name for alias in statement.names}
            elif isinstance(statement, ast.ImportFrom):
                base, names = str(statement.module), [alias.name for alias in statement.names]
                loaded = homes_of(base) if "load_on_use" in sources.get(base, "") else {}
                needed |= {f"{base}.{n}" if f"{base}.{n}" in sources else loaded.get(n, base) for n in names}
        found[module] = needed & sources.keys()
    # Python imports the packages around a module first; what loads names on use needs nothing that could need it
    around = {name for name, needed in found.items() if not all(other.endswith(".lazy") for other in needed)}
    return {m: needed | {name for name in around if m.startswith(f"{name}.")} for m, needed in found.items()}


def test_no_module_imports_itself_by_way_of_others():
    """So that each can be imported first: then the order is the same wherever one begins."""
    sources = {name: Path(str(importlib.util.find_spec(name).origin)).read_text() for name in ["fedgen", *MODULES]}
    graph = imported_first(sources, homes)
    assert list(TopologicalSorter(graph).static_order())  # CycleError names the modules
    assert graph["fedgen.callbacks"] == {"fedgen.lazy"}
    assert "fedgen.scores.definition" in graph["fedgen.scores.frechet.frechet"]
    assert "fedgen.federated.strategy" in graph["fedgen.flower.server.flower_strategy"]


def test_modules_that_import_each_other_are_found():
    sources = {
        "p": "from p.lazy import load_on_use\nif TYPE_CHECKING:\n    from p.a import A",
        "p.a": "try:\n    from p import b\nexcept ImportError:\n    pass",
        "p.b": "class B:\n    from p.c import C",
        "p.c": "def later():\n    import p.a",
        "p.lazy": "import sys",
    }
    homes_of = {"p": {"A": "p.a"}}
    graph = imported_first(sources, homes_of.__getitem__)
    assert graph == {"p": {"p.lazy"}, "p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": set(), "p.lazy": set()}
    nested = sources | {"p.q": "import p.b", "p.q.d": "", "p.b": "from p.q import d"}
    graph = imported_first(nested, homes_of.__getitem__)
    assert graph["p.q.d"] == {"p.q"}
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())
    graph = imported_first(sources | {"p.c": "from p import A"}, homes_of.__getitem__)
    with pytest.raises(CycleError, match=r"\['p.a', 'p.[bc]', 'p.[bc]', 'p.a'\]"):
        list(TopologicalSorter(graph).static_order())


@pytest.mark.slow
def test_every_module_imports():
    code = f"import importlib\nfor name in {MODULES}: importlib.import_module(name)"
    result = python("-W", "ignore", "-c", code)
    assert result.returncode == 0, result.stderr


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
    with pytest.raises(AttributeError, match="FedSomething"):
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
