"""Redaction where privacy is promised: a client keeps to itself what its steps logged, and the texts of its errors.

Neither has noise, and no accountant counts it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pydoc import locate
from typing import Any

from fedgen.flower.app.run_statistics import has_noise
from fedgen.flower.client.policy import RefusedError
from fedgen.foreign_text import printable_lines
from fedgen.own_code import rank_zero_warn


class ToldError(RuntimeError):
    """An error whose text says only what may be told."""


def is_promised(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a run promises differential privacy, of its updates or of its statistics.

    Args:
        settings: the deployed recipe's.
        config: the run's.
    """
    return has_noise(config) or any(map(_is_private, _class_paths(settings["trainer"].get("strategy"))))


def failure_of(error: Exception, promised: bool) -> str:
    """Return what is told of an error; where privacy is promised the whole of it is in the client's own log.

    A refusal is told in any case: it is about the run's config, which is the server's.
    """
    if not promised or isinstance(error, RefusedError):
        return f"{type(error).__name__}: {error}"
    rank_zero_warn(f"the server is told of a {type(error).__name__}, and not: {printable_lines(str(error))}")
    return untold(type(error).__name__)


def untold(kind: str) -> str:
    """An error's type in place of its text."""
    return f"{kind}, of which the client's own log says more"


@contextmanager
def telling_types(promised: bool) -> Iterator[None]:
    """Keeps the texts of errors, which Flower sends to the server, where privacy is promised."""
    try:
        yield
    except (RefusedError, ToldError):
        raise
    except Exception as error:
        if not promised:
            raise
        raise ToldError(failure_of(error, promised)) from None


def _class_paths(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(path := settings.get("class_path"), str):
            yield path
        for value in settings.values():
            yield from _class_paths(value)


def _is_private(path: str) -> bool:
    """Whether a class path names a private aggregator; recipes may call the project's by their bare names."""
    found = locate(path) or locate(f"fedgen.federated.{path}")
    return bool(getattr(found, "private", False))  # a recipe may name anybody's class
