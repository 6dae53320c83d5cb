"""Libraries that some parts need and a plain installation leaves out: each belongs to an extra of the package."""

from importlib import import_module
from typing import Any


class MissingExtraError(ModuleNotFoundError):
    """A library of an extra is not installed; the message says what needs it and how to install it."""


def need(module: str, extra: str, owner: str) -> Any:
    """The module of a library that an extra installs.

    Args:
        module: its name, `diffusers` or `flwr_datasets.partitioner`.
        extra: the extra's name in pyproject.toml.
        owner: what needs it, the start of the message.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{owner} needs {module}: pip install 'fedgen[{extra}]' ({error})") from error
