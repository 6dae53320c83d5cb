"""Imports point one way: a folder of fedgen imports only folders above it in the list."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedgen

ROOT = Path(fedgen.__file__).parent

# The data's path. Names in one line are one layer and may import each other.
LAYERS = [
    (
        "class_paths",
        "extras",
        "flags",
        "foreign_text",
        "images",
        "io",
        "lazy",
        "own_code",
        "progress",
        "pytorch_lightning_alias",
        "ranks",
        "recipe",
        "seeds",
    ),
    ("data",),
    ("embeddings",),
    ("statistics",),
    ("scores",),
    ("metrics",),
    ("losses",),
    ("models",),
    ("clients",),
    ("federated",),
    ("evaluation",),
    ("reports",),
    ("hub",),
    ("callbacks",),
    ("experiments",),
    ("benchmark",),
    ("training",),
    ("flower",),
    ("cli", "__main__"),
]
MOST_FILES = 20  # directly in one folder
ROOMS = ["engine", "theory", "ranking", "paired", "participation"]  # of experiments: each imports only those before it
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def sources(root: Path) -> list[Path]:
    """The package's Python files, relative to it."""
    return sorted(path.relative_to(root) for path in root.rglob("*.py"))


def part_of(file: Path) -> str:
    """The folder or file directly under the package that a file belongs to; "" for the package's own __init__."""
    return "" if file == Path("__init__.py") else Path(file.parts[0]).stem


def unlisted(files: list[Path]) -> set[str]:
    """Parts of the package that the list does not name."""
    return {part_of(file) for file in files} - {"", *RANK}


def imported_modules(tree: ast.AST, file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a file imports from fedgen, wherever in the file it does so."""
    package = ["fedgen", *file.parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "fedgen")


def violations(source: str, file: Path) -> list[str]:
    """What in a file's source goes against the list, one line each."""
    importer = part_of(file)
    if not importer:
        return []  # fedgen/__init__.py lists the public names of every layer
    found = []
    for line, name in imported_modules(ast.parse(source), file):
        target = [*name.split("."), ""][1]
        if target in ("", "__version__") or target == importer:
            continue
        where = f"fedgen/{file.as_posix()}:{line} imports {name}"
        if target not in RANK:
            found.append(f"{where}: no such folder; import a name from the file that defines it")
        elif RANK[target] > RANK[importer]:
            found.append(f"{where}: {target} is below {importer} in the list")
    return found


def room_faults(source: str, file: Path) -> list[str]:
    """Imports of an experiment's source that go against the order of rooms, or name what the kit keeps to itself."""
    faults = []
    for line, name in imported_modules(ast.parse(source), file):
        where = f"fedgen/{file.as_posix()}:{line} imports {name}"
        parts = name.split(".")
        if parts[1] != "experiments":
            if any(part.startswith("_") and not part.startswith("__") for part in parts):
                faults.append(f"{where}: not a public name")
        elif parts[2] in ROOMS and file.parts[1] in ROOMS and ROOMS.index(parts[2]) > ROOMS.index(file.parts[1]):
            faults.append(f"{where}: {parts[2]} is below {file.parts[1]} in the list")
    return faults


def test_every_folder_and_file_of_the_package_is_in_the_list():
    assert unlisted(sources(ROOT)) == set()


def test_no_folder_holds_more_files_than_a_reader_takes_in():
    folders = {file.parent for file in sources(ROOT)}
    counts = {folder.as_posix(): len(list((ROOT / folder).glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_no_file_imports_what_is_below_it():
    broken = [v for file in sources(ROOT) if not unlisted([file]) for v in violations((ROOT / file).read_text(), file)]
    assert broken == []


def test_the_importers_are_found_at_all():
    """A test that reads no file passes too."""
    imports = [name for f in sources(ROOT) for _, name in imported_modules(ast.parse((ROOT / f).read_text()), f)]
    assert len(sources(ROOT)) > 60
    assert {"fedgen.clients.turn.Turn", "fedgen.seeds.generator"} <= set(imports)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("clients/turn.py", "from fedgen.federated import FedAvgStrategy"),
        ("clients/turn.py", "from fedgen.federated.strategy import FedAvgStrategy"),
        ("clients/turn.py", "import fedgen.federated.strategy as strategy"),
        ("clients/turn.py", "from fedgen import federated"),
        ("clients/turn.py", "from ..federated import FedAvgStrategy"),
        ("clients/turn.py", "from .. import federated"),
        ("clients/partitions/iid.py", "from ...federated.strategy import FedAvgStrategy"),
        ("clients/turn.py", "def f():\n    import fedgen.evaluation"),
        (
            "clients/turn.py",
            "if TYPE_CHECKING:\n    from fedgen.federated import Mean",
        ),
        ("clients/turn.py", "from importlib import import_module\nimport_module('fedgen.federated')"),
        ("clients/turn.py", "import os, fedgen.training.fit"),
        ("images.py", "from fedgen.data import Examples"),
        ("evaluation/__init__.py", "from fedgen.callbacks import FederatedEvaluation"),
        ("clients/turn.py", "from fedgen import FedAvgStrategy"),
        ("clients/turn.py", "from fedgen.helpers import anything"),
    ],
)
def test_a_violation_is_found_with_its_file_and_line(file, source):
    (found,) = violations(source, Path(file))
    line = source.count("\n") + 1
    assert found.startswith(f"fedgen/{file}:{line} imports fedgen.")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("clients/turn.py", "from fedgen.data import Examples\nfrom fedgen.images import from_uint8"),
        ("clients/turn.py", "from fedgen.clients.client import Client"),
        ("clients/turn.py", "from .client import Client\nfrom ..data import Examples"),
        ("clients/partitions/iid.py", "from .partition import Partition\nfrom ..client import Client"),
        ("images.py", "from fedgen.io.files import atomic_write"),
        ("io/files.py", "from fedgen import __version__\nimport fedgen"),
        ("cli/deploy.py", "import fedgen.flower, fedgen.__main__"),
        ("__init__.py", "from fedgen.federated import FedAvgStrategy"),
        ("clients/turn.py", "import torch\nfrom lightning.pytorch import Trainer\nfrom fedgenerator import x"),
    ],
)
def test_what_is_allowed_passes(file, source):
    assert violations(source, Path(file)) == []


def test_a_folder_or_file_that_is_not_in_the_list_is_found():
    files = [Path("helpers/numbers.py"), Path("tools.py"), Path("data/digits.py"), Path("__init__.py")]
    assert unlisted(files) == {"helpers", "tools"}


def test_experiments_import_public_names_and_only_rooms_above_their_own():
    files = [file for file in sources(ROOT) if file.parts[0] == "experiments"]
    assert {file.parts[1] for file in files} == {"__init__.py", "command.py", *ROOMS}
    assert [fault for file in files for fault in room_faults((ROOT / file).read_text(), file)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from fedgen.scores.aggregate import _check", "not a public name"),
        ("def f():\n    from fedgen.clients._wire import x", "not a public name"),
        ("from fedgen.experiments.paired import privacy_cost", "paired is below ranking"),
        ("from fedgen.scores import aggregate\nfrom fedgen.experiments.engine.study import _keep", ""),
    ],
)
def test_an_experiment_that_imports_from_below_or_a_private_name_is_found(source, fault):
    found = room_faults(source, Path("experiments/ranking/sample_size.py"))
    assert len(found) == bool(fault)
    assert all(fault in line for line in found)


NO_BEGINNING = ("As", "How", "Nothing", "Of", "What", "When", "Where", "Which", "Who", "Why")


def first_words(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name, first word) of every docstring in a file."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "the file"), text.split()[0].strip("\"'`.,:")


def test_docstrings_begin_with_a_verb_or_a_noun():
    """A first line says what a thing is or does, without the file around it."""
    trees = {file: ast.parse((ROOT / file).read_text()) for file in sources(ROOT)}
    found = [
        f"{file}: {name}" for file, tree in trees.items() for name, word in first_words(tree) if word in NO_BEGINNING
    ]
    assert found == []


def test_public_type_names_mean_one_thing_each():
    trees = {file: ast.parse((ROOT / file).read_text()) for file in sources(ROOT)}
    homes: dict[str, list[str]] = {}
    for file, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(file.as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
