"""Yes-or-no options of commands that stand alone."""

from collections.abc import Callable, Sequence
from typing import Any

from jsonargparse import ArgumentParser


def with_flags(function: Callable[..., Any], arguments: Sequence[str]) -> list[str]:
    """The arguments with "true" behind each yes-or-no option that stands alone: `--quick` is `--quick true`.

    Options are those of the function, and of what it passes its own `**options` on to.
    """
    parser = ArgumentParser()
    parser.add_function_arguments(function, as_positional=False)
    flags = {f"--{name}" for name, default in parser.get_defaults().items() if isinstance(default, bool)}
    found = []
    for place, argument in enumerate(arguments):
        answer = "".join(arguments[place + 1 : place + 2]).lower()
        if place and arguments[place - 1] in flags and argument.lower() in ("true", "false"):
            argument = argument.lower()
        found.append(argument)
        if argument in flags and answer not in ("true", "false"):
            found.append("true")
    return found
