"""Options of commands: yes-or-no ones that stand alone, and the nearest name of a mistyped one."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from fedgen.class_paths import nearest

UNKNOWN = re.compile(r"unrecognized arguments: (--[^\s=]+)")


class CommandParser(ArgumentParser):
    """jsonargparse's parser, which suggests the nearest option for a mistyped one."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends the process with status 2, or raises where the parser was told to."""
        super().error(_suggesting(message, self._option_string_actions), ex)


class PlainCommandParser(argparse.ArgumentParser):
    """argparse's parser, which suggests the nearest option for a mistyped one."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        super().error(_suggesting(message, self._option_string_actions))


def _suggesting(message: str, options: Iterable[str]) -> str:
    match = UNKNOWN.search(message)
    return f"{message}{nearest(match[1], list(options))}" if match else message


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
