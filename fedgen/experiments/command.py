"""`fedgen reproduce NAME`."""

import difflib
from collections.abc import Sequence
from importlib import import_module

from jsonargparse import auto_cli

from fedgen.experiments import EXPERIMENTS
from fedgen.flags import ASK, ASK_ALL, CommandParser, with_flags


def usage() -> str:
    width = max(map(len, EXPERIMENTS)) + 2
    lines = ["usage: fedgen reproduce NAME [--option VALUE ...]"]
    lines.append("Print a table, write results.json and a figure. To resume, repeat the command.")
    for name, (_, text) in EXPERIMENTS.items():
        lines.append(f"  {name:<{width}}{text}")
    return "\n".join([*lines, "fedgen reproduce NAME --help explains one."])


def reproduce(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in (*ASK, ASK_ALL):
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
        parser_class=CommandParser,
    )
    return 0
