"""Counts of the package's source: lines, files, circles of imports, protocols."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

Sources = Mapping[str, ast.Module]  # by the path within the package: "clients/turn.py"


@cache
def read_sources(root: Path) -> dict[str, ast.Module]:
    """The syntax trees of a package's files by their paths within it."""
    found = sorted(root.rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in found}


def count_lines(root: Path) -> dict[str, int]:
    """The lines of each file, docstrings, comments and blank ones included."""
    return {name: len((root / name).read_text(encoding="utf-8").splitlines()) for name in read_sources(root)}


def room_of(file: str) -> str:
    """The folder directly under the package that a file belongs to; "" for the package's own files."""
    return file.partition("/")[0] if "/" in file else ""


def import_graph(sources: Sources, package: str) -> dict[str, set[str]]:
    """The files that each file imports from, also in functions and for type checkers.

    A name that a package's `__init__` passes on is of the file that defines it, and `__init__` itself imports nothing.
    """
    homes = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in sources}
    homes[""] = "__init__.py"
    passed_on = {
        name: {target.rpartition(".")[2]: target for target in _imported(tree, name, package)}
        for name, tree in sources.items()
        if name.endswith("__init__.py")
    }

    def home(dotted: str) -> str | None:
        """The file that a dotted name within the package is defined in."""
        parts = dotted.split(".")
        for length in range(len(parts), -1, -1):
            file = homes.get(".".join(parts[:length]))
            if file is None:
                continue
            name = parts[length] if length < len(parts) else ""
            again = passed_on.get(file, {}).get(name)
            return home(again) if again is not None and again != dotted else file
        return None

    return {
        name: {found for target in _imported(tree, name, package) if (found := home(target)) not in (None, name)}
        for name, tree in sources.items()
        if not name.endswith("__init__.py")
    }


def _imported(tree: ast.Module, file: str, package: str) -> Iterator[str]:
    """The dotted names within the package that a file imports, without the package's own name."""
    folder = file.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            start = [package, *folder[: len(folder) - node.level + 1], *([node.module] if node.module else [])]
            names = [".".join([*start, alias.name]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.partition(".")[2] for name in names if name.partition(".")[0] == package)


def find_circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of two or more files that all lead to each other by imports (Tarjan 1972)."""
    numbers: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        numbers[file] = low[file] = len(numbers)
        stack.append(file)
        for other in sorted(graph.get(file, ())):
            if other not in numbers:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == numbers[file]:
            place = stack.index(file)
            circle = sorted(stack[place:])
            del stack[place:]
            if len(circle) > 1:
                found.append(circle)

    for file in graph:
        if file not in numbers:
            visit(file)
    return found


def lonely_protocols(sources: Sources) -> list[str]:
    """The protocols that at most one class has all methods of, its own or those of its bases within the package."""
    classes = {
        node.name: node for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    protocols = [node for node in classes.values() if _is_protocol(node)]
    methods = {name: _methods(node, classes) for name, node in classes.items() if not _is_protocol(node)}
    return sorted(
        node.name for node in protocols if sum(_methods(node, classes) <= own for own in methods.values()) <= 1
    )


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0].rpartition(".")[2] == "Protocol" for base in node.bases)


def _methods(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The names of a class's functions and annotated attributes, and those of its bases within the package."""
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name in classes and classes[name] is not node:
            own |= _methods(classes[name], classes)
    return own
