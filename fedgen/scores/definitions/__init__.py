"""Scores by name, a file for each kind; every subclass of `ScoreDefinition` in this folder is one."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from fedgen.scores.definition import ScoreDefinition


@cache
def definitions() -> dict[str, type[ScoreDefinition]]:
    """The scores of the kit by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ScoreDefinition) and hasattr(value, "name")
    }
    return dict(sorted(found.items()))


__all__ = ["definitions"]
