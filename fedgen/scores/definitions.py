"""Scores by name: every subclass of `ScoreDefinition` with a name in `fedgen.scores`, wherever it lies there."""

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from fedgen.scores.definition import ScoreDefinition

__all__ = ["definitions"]


@cache
def definitions() -> dict[str, type[ScoreDefinition]]:
    """The kit's scores by name: every subclass of `ScoreDefinition` with a name in `fedgen.scores`.

    Examples:
        >>> from fedgen.scores.definitions import definitions
        >>> definitions()["fid"].needs
        'summaries'
    """
    package = import_module("fedgen.scores")
    names = [module.name for module in walk_packages(package.__path__, "fedgen.scores.") if not module.ispkg]
    found = {
        value.name: value
        for module in map(import_module, names)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ScoreDefinition) and hasattr(value, "name")
    }
    return dict(sorted(found.items()))
