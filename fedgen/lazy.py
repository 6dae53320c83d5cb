"""Packages whose public names are loaded when they are first used, so that a command imports only what it needs.

Such a package imports its names under `if TYPE_CHECKING`, where type checkers and readers find them, and calls
`load_on_use(__name__)`.
"""

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def load_on_use(package: str) -> None:
    """Makes a package load each of the names that it imports under `if TYPE_CHECKING` when it is first asked for."""
    sys.modules[package].__class__ = _LazyPackage


@cache
def homes(package: str) -> dict[str, str]:
    source = Path(str(import_module(package).__file__)).read_text(encoding="utf-8")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    found = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in found for alias in node.names}


@cache
def rooms(package: str) -> dict[str, list[str]]:
    """The public names of the packages below one, by their sources, and the packages that have each, nearest first."""
    folder = Path(str(import_module(package).__file__)).parent
    below = sorted(path.parent.relative_to(folder).parts for path in folder.glob("*/**/__init__.py"))
    found: dict[str, list[str]] = {}
    for parts in sorted(below, key=len):
        for name in _listed(folder.joinpath(*parts, "__init__.py")):
            found.setdefault(name, []).append(".".join([package, *parts]))
    return found


def _listed(file: Path) -> list[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return []


class _LazyPackage(ModuleType):
    """A package with names that are loaded on use, as are the packages below it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__all__:
            if name.startswith("_"):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            below = Path(str(self.__file__)).parent / name
            if (below / "__init__.py").is_file():  # `fedgen.losses` after `import fedgen`
                return import_module(f"{self.__name__}.{name}")
            places = rooms(self.__name__).get(name)
            hint = f"; write `from {places[0]} import {name}`" if places else ""  # it may not be loaded yet
            # Python looks for a name before `from package import name`, and passes over an AttributeError's text
            code = sys._getframe(1).f_code
            is_import = (code.co_name, code.co_filename) == ("_handle_fromlist", "<frozen importlib._bootstrap>")
            if hint and is_import and not below.with_suffix(".py").is_file():
                raise ImportError(f"cannot import name {name!r} from {self.__name__!r}{hint}", name=self.__name__)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{hint}")
        home = homes(self.__name__)[name]
        try:
            found = getattr(import_module(home), name)
        except AttributeError as error:  # which `from package import name` would take for a name that is not there
            raise ImportError(f"{home} cannot be loaded: {error}", name=home) from error
        vars(self)[name] = found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        # importing the file `embed.py` binds its module here, which would hide the function `embed`
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.__all__})
