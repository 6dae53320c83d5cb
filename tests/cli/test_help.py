"""Help of every command: a screen behind --help, every option behind --help-all."""

import argparse
import re
import sys

import pytest

from fedgen.__main__ import COMMANDS, main
from fedgen.cli.completion import candidates
from fedgen.flags import CommandParser, PlainCommandParser

OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*")
OF_USAGE = {"--option", "--seed_everything"}  # any option; and a recipe's, which is read by no parser of the command


@pytest.fixture
def shown(capsys, monkeypatch):
    """What a command prints on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def show(*arguments):
        with pytest.raises(SystemExit) as ended:
            sys.exit(main(arguments))
        assert not ended.value.code
        return capsys.readouterr().out

    return show


@pytest.fixture
def made(monkeypatch):
    """The parsers of commands that are made."""
    parsers = []
    make = PlainCommandParser.__init__

    def noted(parser, *arguments, **options):
        make(parser, *arguments, **options)
        parsers.append(parser)

    monkeypatch.setattr(PlainCommandParser, "__init__", noted)
    return parsers


@pytest.mark.parametrize("asked", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen(shown, command, asked):
    lines = shown(*command.split(), asked).splitlines()
    assert lines[0].startswith("usage: fedgen")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("command", "usage"), [
    ("clients", "RECIPE [--option VALUE ...]"), ("convert", "SOURCE TARGET [--option VALUE ...]"), ("recipes", ""),
])  # fmt: skip
def test_help_names_what_a_command_is_given_and_no_type_of_python(shown, command, usage):
    help = shown(command, "--help")
    assert help.splitlines()[0] == f"usage: fedgen {command} {usage}".rstrip()
    assert "<class" not in help + shown(command, "--help-all")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "fit"])
def test_help_all_and_completion_have_every_option(shown, made, command):
    whole = shown(command, "--help-all")
    actions = [action for parser in made for action in parser._actions if action.help != argparse.SUPPRESS]
    named = {name for action in actions for name in action.option_strings if name.startswith("--")}
    options = {name for name in named if not name.endswith("+")}  # jsonargparse's second name of a list
    assert options <= set(OPTION.findall(whole))
    assert options <= set(candidates([command, "--"]))
    assert len(options) > 1 or command in ("completion", "reproduce")


@pytest.mark.parametrize("command", ["evaluate"])
def test_a_chosen_screen_names_options_that_there_are(shown, command):
    screen = shown(command, "--help")
    told = {name for name in OPTION.findall(screen) if not name.startswith("--data.")} - OF_USAGE
    assert told <= set(OPTION.findall(shown(command, "--help-all")))
    assert "--help-all" in screen


def test_a_form_of_evaluate_with_many_options_has_a_line_of_each(shown):
    screen = shown("evaluate", "--generated", "a", "--help")
    assert len(screen.splitlines()) <= 40
    told = set(OPTION.findall(shown("evaluate", "--generated", "a", "--help-all")))
    assert told - {"--help", "--help-all"} == set(OPTION.findall(screen)) - OF_USAGE - {"--help-all"}
    assert "  --skip_unreadable  leave out unreadable files, and record which\n" in screen


def test_a_long_help_is_a_line_an_option(capsys):
    parser = CommandParser(prog="fedgen try", description="Tries it.")
    for number in range(30):
        parser.add_argument(f"--option_{number}", help=f"number {number} of 100 %% " + "long " * 30)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["usage: fedgen try [--option VALUE ...]", "", "Tries it."]
    assert lines[4].startswith("  --option_0   number 0 of 100 % long")
    assert lines[4].endswith(" ...")
    assert lines[-1] == "fedgen try --help-all shows the full texts and the defaults."
    assert len(lines) == 30 + 6
    assert max(map(len, lines)) <= 80
    with pytest.raises(SystemExit):
        parser.parse_args(["--help-all"])
    assert len(capsys.readouterr().out.splitlines()) > 100
