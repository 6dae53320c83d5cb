"""A recipe's own modules, which an app takes with it: those of the folder that it is written from."""

import importlib.util
from pathlib import Path
from typing import Any

from fedgen.class_paths import is_class_path
from fedgen.recipe.recipe_keys import texts_in

RESERVED = "federation"  # the app's own package


def own_modules(settings: Any, folder: Path) -> list[Path]:
    """The files of modules in a folder that class paths in settings name, and of packages there, without repetition.

    What these import of the folder themselves is not followed.

    Args:
        settings: a recipe's.
        folder: where its author works.

    Raises:
        ValueError: for a module with the name of the app's own package.
    """
    tops = dict.fromkeys(text.split(".")[0] for text in texts_in(settings) if is_class_path(text))
    found: list[Path] = []
    for name in tops:
        package, module = folder / name, folder / f"{name}.py"
        files = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]
        if not files[0].is_file() or not _is_imported_from(name, folder):
            continue
        if name == RESERVED:
            raise ValueError(f"{files[0]} has the name of the app's own package; rename it")
        found += files
    return found


def _is_imported_from(name: str, folder: Path) -> bool:
    """Whether `import name` finds the folder's module, and not another of the same name."""
    spec = importlib.util.find_spec(name)
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    return origin is not None and folder.resolve() in origin.parents and name != "fedgen"
