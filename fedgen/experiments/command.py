"""`fedgen reproduce NAME`."""

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser, auto_cli

from fedgen.experiments import EXPERIMENTS


def usage() -> str:
    """The text of `fedgen reproduce --help`."""
    width = max(map(len, EXPERIMENTS)) + 2
    lines = [f"  {name:<{width}}{text}" for name, (_, text) in EXPERIMENTS.items()]
    return "\n".join(
        [
            "usage: fedgen reproduce NAME [--option VALUE ...]",
            "",
            "Run an experiment: it prints a table and leaves results.json and a figure. Run again, it goes on.",
            "",
            *lines,
            "",
            "fedgen reproduce NAME --help explains one.",
        ]
    )


def reproduce(arguments: Sequence[str]) -> int:
    """Runs the experiment that the first argument names.

    Raises:
        ValueError: for an unknown name.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name = arguments[0]
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"no experiment {name!r}; {hint}known: {', '.join(EXPERIMENTS)}")
    module, function = EXPERIMENTS[name][0].split(":")
    experiment = getattr(import_module(module), function)
    auto_cli(
        experiment,
        args=with_flags(experiment, arguments[1:]),
        as_positional=False,
        prog=f"fedgen reproduce {name}",
    )
    return 0


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
