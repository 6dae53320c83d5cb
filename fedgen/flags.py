"""Options of commands: yes-or-no ones that stand alone, the nearest name of a mistyped one, help of a screen."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from fedgen.class_paths import nearest

UNKNOWN = re.compile(r"unrecognized arguments: (--[^\s=]+)")
SCREEN = 40  # lines of a screen, which has 80 columns
ASK, ASK_ALL = ("-h", "--help"), "--help-all"
HIDDEN = {*ASK, ASK_ALL, "--config", "--print_config"}  # the last two are jsonargparse's
OF_FILE = "Path to a configuration file."  # jsonargparse's option for all settings of a group


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        print(parser.format_help(), end="")
        parser.exit()


class PlainCommandParser(argparse.ArgumentParser):
    """argparse's parser, whose --help fits a screen, and whose errors name the nearest of a mistyped option."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.add_argument(
            ASK_ALL,
            action=_HelpAll,
            nargs=0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help="Show every option with its full text, and exit.",
        )

    def print_help(self, file: Any = None) -> None:
        whole = self.format_help()
        self._print_message(whole if len(whole.splitlines()) <= SCREEN else self._a_line_each(), file or sys.stdout)

    def error(self, message: str, *cause: Exception | None) -> NoReturn:
        if match := UNKNOWN.search(message):
            message += nearest(match[1], list(self._option_string_actions))
        super().error(message, *cause)

    def _a_line_each(self) -> str:
        named = [
            (next(iter(one.option_strings), one.dest.upper()), " ".join((one.help or "").replace("%%", "%").split()))
            for one in self._actions
            if one.help not in (argparse.SUPPRESS, OF_FILE) and not HIDDEN & {*one.option_strings}
        ]
        given = [name for name, _ in named if not name.startswith("-")]
        usage = [self.prog, *given, *["[--option VALUE ...]"] * (len(given) < len(named))]
        longest = max((len(name) for name, _ in named), default=0)
        start = [f"usage: {' '.join(usage)}", "", *([*wrap(self.description, 80), ""] if self.description else [])]
        end = ["", *[f"{self.prog} {ASK_ALL} shows the full texts and the defaults."] * bool(named), ""]
        for most in (4, 3, 2, 1):  # lines of an option: as many as a screen has room for
            texts = [
                wrap(text, 76 - longest, break_on_hyphens=False, max_lines=most, placeholder=" ...") or [""]
                for _, text in named
            ]
            if sum(map(len, [start, *texts, end])) <= SCREEN:
                break
        lines = [pair for (name, _), own in zip(named, texts) for pair in zip_longest([name], own, fillvalue="")]
        shown = [f"  {name:<{longest}}  {line}".rstrip() for name, line in lines]
        return "\n".join([*start, *shown, *end])


class _Formatter(DefaultHelpFormatter):
    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r"<class '(\w+)'>", r"\1", super()._expand_help(action))


class CommandParser(PlainCommandParser, ArgumentParser):
    """jsonargparse's parser with the same errors, and a help of a line for each option."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, formatter_class=_Formatter, **options)

    def print_help(self, file: Any = None) -> None:
        self._print_message(self._a_line_each(), file or sys.stdout)


def with_flags(function: Callable[..., Any], arguments: Sequence[str]) -> list[str]:
    """The arguments with "true" behind each yes-or-no option of a function that stands alone."""
    parser = ArgumentParser()
    parser.add_function_arguments(function, as_positional=False)  # those of dataclasses too
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
