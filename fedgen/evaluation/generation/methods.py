"""Methods that scores ask of a model besides images."""

from inspect import isclass, isroutine
from typing import Any


def require_method(model: Any, method: str, gives: str, score: str) -> None:
    """Says so if a model lacks a method that a score needs.

    Args:
        model: a module, or any other object.
        method: as it is called, "log_prob(points)".
        gives: what it returns, of what.
        score: that needs it.

    Raises:
        TypeError: if it has none, naming it.
    """
    if not callable(getattr(model, method.partition("(")[0], None)):
        name = model.__name__ if isclass(model) or isroutine(model) else type(model).__name__
        raise TypeError(f"{name} has no method {method}, which gives {gives}; add one, or leave the score {score} out")
