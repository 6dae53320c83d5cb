"""Libraries that are not as they should be: those of extras are missing, torchvision was built for another torch."""

import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


class MissingExtraError(ModuleNotFoundError):
    """A library of an extra is not installed; the message says what needs it and how to install it."""


def need(module: str, extra: str, owner: str) -> Any:
    """The module of a library, such as `diffusers`, that an extra installs for `owner`; MissingExtraError without."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{owner} needs {module}: pip install 'fedgen[{extra}]' ({error})") from error


def need_rdkit(owner: str) -> Any:
    """RDKit's `Chem`, without its own line for each text that is no molecule; MissingExtraError without RDKit."""
    chem = need("rdkit.Chem", "molecules", owner)
    need("rdkit.RDLogger", "molecules", owner).DisableLog("rdApp.*")
    return chem


def unfit_torchvision(error: BaseException) -> str:
    """Name both versions, and the remedy, if an error came from loading torchvision beside another torch; else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    if not any(one.name == "<module>" and "torchvision" in Path(one.filename).parts for one in frames):
        return ""
    pair, reason = f"torchvision {_version('torchvision')} with torch {_version('torch')}", str(error).split("\n")[0]
    return (
        f"cannot load {pair} ({reason}): install both by one command and from one index,"
        " `pip install --force-reinstall torch torchvision`"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # of one that was not installed by pip
        return "of no known version"
