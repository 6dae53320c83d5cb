"""Rules that the package's source keeps: `make check` runs `python -m benchmarks.house.rules`, which prints each fault.

The files are read and parsed once, and nothing of the package is imported. A rule is a function of all of them that
gives its faults in words.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

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
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MOST_FILES = 20  # directly in one folder
ROOMS = ["engine", "theory", "ranking", "paired", "participation"]  # of experiments: each imports only those before it
NO_BEGINNING = ("As", "How", "Nothing", "Of", "What", "When", "Where", "Which", "Who", "Why")
INTERNALS = "federated/lightning/lightning_internals.py"  # holds what Lightning and torch keep to themselves
PUBLIC = ("_replace", "_asdict", "_fields", "_make")  # of named tuples: Python documents them
FUNCTIONS = "torch._foreach_"  # many tensors in one call, as torch's own optimizers: there is no public name for them
IMPORTERS = ("import_module", "__import__")
BY_NAME = ("getattr", "hasattr", "setattr", "delattr")
WITH_ANOTHER = {"huggingface-hub", "pyarrow", "threadpoolctl"}  # of diffusers, datasets and scikit-learn


@dataclass(frozen=True)
class Source:
    """A file of the package: its path within it, as "clients/turn.py", and its text."""

    file: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def part(self) -> str:
        """The folder or file directly under the package that the file belongs to; "" for the package's own __init__."""
        return "" if self.file == "__init__.py" else PurePosixPath(PurePosixPath(self.file).parts[0]).stem

    @property
    def module(self) -> str:
        """The dotted name by which the file is imported."""
        parts = PurePosixPath(self.file).with_suffix("").parts
        return ".".join(["fedgen", *(parts[:-1] if parts[-1] == "__init__" else parts)])

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """(line, dotted name) of everything that the file imports from fedgen, wherever in the file it does so."""
        package = ["fedgen", *PurePosixPath(self.file).parent.parts]
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                start = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*start, *([node.module] if node.module else [])])
                names = [f"{base}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in IMPORTERS:
                names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            else:
                continue
            found += [(node.lineno, name) for name in names if name.split(".")[0] == "fedgen"]
        return found

    def at(self, line: int, name: str) -> str:
        return f"fedgen/{self.file}:{line} imports {name}"


Sources = Sequence[Source]


def read_package(root: Path) -> list[Source]:
    """The files of a package, in order."""
    return [Source(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))]


# ---- folders and imports ----


def every_part_is_listed(sources: Sources) -> Iterator[str]:
    """Each folder and file of the package has its place in the list of layers."""
    for part in sorted({source.part for source in sources} - {"", *RANK}):
        yield f"fedgen/{part} is not in the list of layers"


def folders_are_packages_of_few_files(sources: Sources) -> Iterator[str]:
    """A folder without __init__.py would be left out of the wheel; one of many files is more than a reader takes in."""
    files = {PurePosixPath(source.file) for source in sources}
    for folder in sorted({folder for file in files for folder in file.parents}):
        if folder / "__init__.py" not in files:
            yield f"fedgen/{folder} has no __init__.py"
        if (count := sum(file.parent == folder for file in files)) > MOST_FILES:
            yield f"fedgen/{folder} holds {count} files, more than {MOST_FILES}"


def imports_point_up(sources: Sources) -> Iterator[str]:
    """A folder imports only folders above it in the list. fedgen/__init__.py lists the public names of every layer."""
    for source in sources:
        if source.part not in RANK:
            continue
        for line, name in source.imports:
            target = [*name.split("."), ""][1]
            if target in ("", "__version__") or target == source.part:
                continue
            if target not in RANK:
                yield f"{source.at(line, name)}: no such folder; import a name from the file that defines it"
            elif RANK[target] > RANK[source.part]:
                yield f"{source.at(line, name)}: {target} is below {source.part} in the list"


def experiments_import_public_names_and_rooms_above(sources: Sources) -> Iterator[str]:
    """An experiment names nothing that the kit keeps to itself, and its rooms have an order as well."""
    for source in sources:
        if source.part != "experiments":
            continue
        own = PurePosixPath(source.file).parts[1]
        if own not in ("__init__.py", "command.py", *ROOMS):
            yield f"fedgen/experiments/{own} is not in the list of rooms"
        for line, name in source.imports:
            parts = name.split(".")
            if parts[1] != "experiments":
                if any(part.startswith("_") and not part.startswith("__") for part in parts):
                    yield f"{source.at(line, name)}: not a public name"
            elif parts[2] in ROOMS and own in ROOMS and ROOMS.index(parts[2]) > ROOMS.index(own):
                yield f"{source.at(line, name)}: {parts[2]} is below {own} in the list"


def at_import(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
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


def imported_first(sources: Sources) -> dict[str, set[str]]:
    """By module those that it needs when it is imported; of a package that loads names on use, the names' homes."""
    modules = {source.module: source for source in sources}
    homes = {name: _homes(source.tree) for name, source in modules.items() if "load_on_use" in source.text}
    found: dict[str, set[str]] = {}
    for module, source in modules.items():
        needed = set()
        for statement in at_import(source.tree.body):
            if isinstance(statement, ast.Import):
                needed |= {alias.name for alias in statement.names}
            elif isinstance(statement, ast.ImportFrom):
                base = str(statement.module)
                names = [alias.name for alias in statement.names]
                loaded = homes.get(base, {})
                needed |= {f"{base}.{n}" if f"{base}.{n}" in modules else loaded.get(n, base) for n in names}
        found[module] = needed & modules.keys()
    # Python imports the packages around a module first; what loads names on use needs nothing that could need it
    around = {name for name, needed in found.items() if not all(other.endswith(".lazy") for other in needed)}
    return {m: needed | {name for name in around if m.startswith(f"{name}.")} for m, needed in found.items()}


def _homes(tree: ast.Module) -> Mapping[str, str]:
    """The names that a package loads on use, and the module of each."""
    statements = [one for node in tree.body if isinstance(node, ast.If) for one in node.body]
    imports = [one for one in statements if isinstance(one, ast.ImportFrom)]
    return {alias.asname or alias.name: str(one.module) for one in imports for alias in one.names}


def no_module_imports_itself(sources: Sources) -> Iterator[str]:
    """Each module can be imported first: the order is the same wherever one begins."""
    try:
        TopologicalSorter(imported_first(sources)).prepare()
    except CycleError as error:
        yield f"modules import each other when they are imported: {', '.join(error.args[1])}"


def libraries_are_declared(sources: Sources) -> Iterator[str]:
    """A library that is imported, wherever in a file, is not left to come along with another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[\[<>=]", line)[0] for line in lines} | WITH_ANOTHER
    homes = packages_distributions()
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.Import):
                libraries = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                libraries = {str(node.module).split(".")[0]}
            else:
                continue
            for library in sorted(libraries - {*sys.stdlib_module_names, "fedgen"}):
                if not {home.lower().replace("_", "-") for home in homes.get(library, [library])} & declared:
                    yield f"{source.at(node.lineno, library)}, which pyproject.toml does not declare"


# ---- names ----


def public_types_mean_one_thing_each(sources: Sources) -> Iterator[str]:
    """Two classes of one name are not told apart in an error or on a page."""
    homes: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(source.file)
    for name, files in homes.items():
        if len(files) > 1:
            yield f"class {name} is defined in {' and '.join(files)}"


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def _owns(base: ast.expr, classes: set[str]) -> bool:
    """Whether private attributes are a file's own: of the object itself, its class or parents, or one of the file."""
    if isinstance(base, ast.Call):
        return isinstance(base.func, ast.Name) and base.func.id == "super"
    return isinstance(base, ast.Name) and base.id in {"self", "cls", *classes}


def _named(node: ast.AST, classes: set[str]) -> Iterator[object]:
    """The names of other objects' parts that a piece of code touches, one way or another."""
    if isinstance(node, ast.Attribute) and not _owns(node.value, classes):
        yield node.attr
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != "fedgen":
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
        yield from (part.value for part in node.args[1:2] if isinstance(part, ast.Constant))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield node.slice.value


def one_file_touches_internals(sources: Sources) -> Iterator[str]:
    """Private names of Lightning and torch stand in one file of the federation, and it says what each is for."""
    for source in sources:
        if source.file == INTERNALS:
            for node in source.tree.body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                    yield f"fedgen/{source.file}:{node.lineno}: {node.name} has no docstring"
        elif source.part == "federated":
            classes = {node.name for node in source.nodes if isinstance(node, ast.ClassDef)}
            for node in source.nodes:
                if isinstance(node, ast.expr | ast.stmt) and any(map(_is_private, _named(node, classes))):
                    code = ast.unparse(node)
                    if not code.startswith(FUNCTIONS):
                        yield f"fedgen/{source.file}:{node.lineno}: `{code}` is private; ask {INTERNALS}"


def attributes_asked_by_name_have_a_comment(sources: Sources) -> Iterator[str]:
    """Others are declared: in their class, or in one with defaults (`fedgen.data.optional_attributes`)."""
    for source in sources:
        if source.part == "experiments" or "getattr" not in source.text:
            continue
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        for node in source.nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "getattr"
                and len(node.args) > 1
                and isinstance(node.args[1], ast.Constant)
                and not comments & {node.lineno - 1, node.lineno}
            ):
                code = ast.unparse(node)
                yield f"fedgen/{source.file}:{node.lineno}: `{code}` has no comment that says who may have it"


def optional_attributes_are_declared(sources: Sources) -> Iterator[str]:
    """Each name that is asked of an object by `optional` stands in the class that it is asked with."""
    classes = {
        node.name: {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
    }
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "optional":
                _, kind, name = node.args
                if isinstance(name, ast.Constant) and name.value not in classes.get(ast.unparse(kind), set()):
                    yield f"fedgen/{source.file}:{node.lineno}: {ast.unparse(kind)} declares no {name.value}"


# ---- form ----


def docstrings_begin_with_a_verb_or_a_noun(sources: Sources) -> Iterator[str]:
    """A first line says what a thing is or does, without the file around it."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                word = text.split()[0].strip("\"'`.,:")
                if word in NO_BEGINNING:
                    name = "the file" if isinstance(node, ast.Module) else node.name
                    yield f"fedgen/{source.file}: the docstring of {name} begins with {word}"


def no_warning_counts_its_frames(sources: Sources) -> Iterator[str]:
    """`fedgen.own_code` shows the user's own line, however deep a warning is raised."""
    for source in sources:
        if "stacklevel" in source.text:
            yield f"fedgen/{source.file} names stacklevel: warn by fedgen.own_code"


def experiments_leave_settings_and_quick_options_to_the_engine(sources: Sources) -> Iterator[str]:
    """Settings that numbers are kept under, and what `quick` means, are made in one place: study.py."""
    for source in sources:
        if source.part != "experiments" or PurePosixPath(source.file).name == "study.py":
            continue
        for node in source.nodes:
            if not isinstance(node, ast.FunctionDef):
                continue
            where = f"fedgen/{source.file}:{node.lineno}: {node.name}"
            if node.name == "settings":
                yield f"{where} names its settings by itself"
            if {"output", "quick"} <= {argument.arg for argument in node.args.args}:
                yield f"{where} takes `quick` by itself: take it from a `Choice`"


RULES = (
    every_part_is_listed,
    folders_are_packages_of_few_files,
    imports_point_up,
    experiments_import_public_names_and_rooms_above,
    no_module_imports_itself,
    libraries_are_declared,
    public_types_mean_one_thing_each,
    one_file_touches_internals,
    attributes_asked_by_name_have_a_comment,
    optional_attributes_are_declared,
    docstrings_begin_with_a_verb_or_a_noun,
    no_warning_counts_its_frames,
    experiments_leave_settings_and_quick_options_to_the_engine,
)


def main() -> int:
    """Print the faults of the package; returns the exit status."""
    sources = read_package(ROOT / "fedgen")
    assert INTERNALS in {source.file for source in sources}  # rules that read no file find no fault
    faults = [fault for rule in RULES for fault in rule(sources)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(RULES)} rules, {len(sources)} files, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
