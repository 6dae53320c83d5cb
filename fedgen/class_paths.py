"""Classes and functions by their dotted names, as recipes and commands give them."""

import difflib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

CLASSES = (
    "callbacks",
    "clients",
    "clients.partitions",
    "data",
    "embeddings",
    "federated",
    "losses",
    "models",
    "models.networks",
    "models.stylegan2",
)
"""The folders whose classes recipes name."""


def load_classes(folders: Sequence[str] = CLASSES) -> None:
    """Loads public names: only among loaded classes does jsonargparse find `Dirichlet` without its folder."""
    for folder in folders:
        module = importlib.import_module(f"fedgen.{folder}")
        for name in module.__all__:
            getattr(module, name)


def is_class_path(text: str) -> bool:
    """Whether a text is a dotted name: "my_package.MyEmbedding"."""
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def import_by_path(path: str) -> Any:
    """Return the object of a dotted name, of a module or class; ValueError with the nearest name if there is none."""
    if not is_class_path(path):
        raise ValueError(f"{path!r} is no class path, such as my_package.MyClass")
    module, name = path.rsplit(".", 1)
    found: Any
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing, found = str(error.name), None
        if module == missing:
            with suppress(ValueError):  # of a class, whose methods have names below it
                found = import_by_path(module)
        if not inspect.isclass(found) and (module == missing or module.startswith(f"{missing}.")):
            raise ValueError(f"there is no module {missing!r} for {path}; {looked_in()}") from error
        if not inspect.isclass(found):
            raise ValueError(f"{path}: its module {module!r} imports {missing!r}, which is not installed") from error
    if not hasattr(found, name):
        kind = "class" if inspect.isclass(found) else "module"
        raise ValueError(f"{kind} {module!r} has no {name!r}{nearest(name, public_names(found))}")
    return getattr(found, name)


def looked_in() -> str:
    """Return in which folders modules of the user's own are looked for, and how another one is looked into."""
    here = str(Path.cwd())
    # where commands are installed comes first on the path of a command
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    places = dict.fromkeys(str(Path(place or here)) for place in sys.path)  # which has zip files and hooks' marks, too
    own = [place for place in places if Path(place).is_dir() and not place.startswith(tuple(installed))]
    hint = "" if here in own else "; `python -m fedgen` looks in the current folder, too"
    return (
        f"looked in {', '.join(own) or 'no folder of your own'} and among the installed packages: put its folder on"
        f" PYTHONPATH, or install it{hint}"
    )


def import_object(text: str) -> Any:
    """Return the object of a text: "my_module:make_model", "my_package.MyModel", or "train.py:make_model" of a file."""
    where, colon, name = text.rpartition(":")
    if not colon:
        return import_by_path(text)
    if not where.endswith(".py"):
        return import_by_path(f"{where}.{name}")
    file = Path(where)
    if not file.is_file():
        raise ValueError(f"there is no file {where} for {text}")
    sys.path.insert(0, str(file.parent.resolve()))  # as `python train.py` has it
    module = importlib.import_module(file.stem)
    if Path(str(module.__file__)).resolve() != file.resolve():
        raise ValueError(f"{where} is hidden by {module.__file__}, a module of the same name; rename the file")
    if not hasattr(module, name):
        raise ValueError(f"{where} has no {name!r}{nearest(name, public_names(module))}")
    return getattr(module, name)


def nearest(name: str, accepted: Sequence[str]) -> str:
    """ "; did you mean ...?" with the accepted name that is closest, or that a name abbreviates; "" if none is."""
    close = difflib.get_close_matches(name, accepted, n=1)
    close = close or [one for one in accepted if one in (name.lower(), _initials(name)) or _initials(one) == name]
    return f"; did you mean {close[0]!r}?" if close else ""


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_")) if "_" in name else ""


def public_names(module: Any) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def gives(found: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether something is a subclass of a class or of one of several, or a function that says that it returns one."""
    if isinstance(found, type):
        return issubclass(found, kind)
    if not inspect.isfunction(found):
        return False
    try:
        returned = get_type_hints(found).get("return")
    except (NameError, TypeError):
        return False
    return isinstance(returned, type) and issubclass(returned, kind)
