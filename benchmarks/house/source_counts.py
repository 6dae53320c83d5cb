"""Counts of a folder's Python source: kinds of lines, classes, names."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@cache
def trees(root: Path) -> dict[Path, ast.Module]:
    """The syntax trees of a folder's files by their paths within it."""
    return {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}


def classes(sources: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """All classes, with their files."""
    for path, tree in sources.items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def lines_of(node: ast.ClassDef) -> int:
    """The lines of a class, without its decorators."""
    return int(node.end_lineno or 0) - node.lineno + 1


def asked_by_name(sources: dict[Path, ast.Module]) -> int:
    """Calls of `getattr` with an attribute's name, outside the experiments."""
    calls = (
        node
        for path, tree in sources.items()
        if path.parts[0] != "experiments"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    )
    return sum(len(call.args) > 1 and isinstance(call.args[1], ast.Constant) for call in calls)


def naming(sources: dict[Path, ast.Module], score: str) -> set[Path]:
    """The files whose code has a score's name, beside those that define scores and those that choose what to measure.

    Experiments and the benchmark's suites choose: a new score changes none of them.
    """
    return {
        path
        for path, tree in sources.items()
        if path.parts[0] not in ("scores", "experiments", "benchmark")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == score
    }


@dataclass(frozen=True)
class Lines:
    """The lines of a folder's files by kind; imports and comments count as code, blank lines within a docstring as it.

    Args:
        code: lines of code.
        docstrings: lines of docstrings.
        blank: empty lines.
    """

    code: int
    docstrings: int
    blank: int

    @classmethod
    def of(cls, root: Path) -> "Lines":
        """Count the lines of all files below a folder."""
        counts: Counter[str] = Counter()
        for path in root.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            docstrings = docstring_lines(ast.parse(text))
            for number, line in enumerate(text.splitlines(), 1):
                counts["docstring" if number in docstrings else "code" if line.strip() else "blank"] += 1
        return cls(counts["code"], counts["docstring"], counts["blank"])

    @property
    def all(self) -> int:
        """The lines of every kind."""
        return self.code + self.docstrings + self.blank


def docstring_lines(tree: ast.Module) -> set[int]:
    """The numbers, from 1, of the lines that docstrings stand on."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for number in range(node.body[0].lineno, int(node.body[0].end_lineno or 0) + 1)
    }


def count_tests(sources: dict[Path, ast.Module]) -> int:
    """The number of test functions; a parametrised one, which is many cases, counts once."""
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for tree in sources.values()
        for node in ast.walk(tree)
    )
