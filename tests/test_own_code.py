"""Errors are told by the lines of the user's own code; libraries' and the package's are left out before it."""

import json

import pytest

from fedgen.__main__ import COMMANDS, main
from fedgen.own_code import from_own_code, own_frames
from fedgen.seeds import generator


def broken():
    return json.loads("{")


def test_lines_begin_with_the_users_own():
    with pytest.raises(ValueError, match="Expecting") as found:
        broken()
    assert [one.name for one in own_frames(found.value)] == ["test_lines_begin_with_the_users_own", "broken"]
    found.value.add_note("as seen by all")
    told = from_own_code(found.value)
    assert told.startswith("Traceback (from your code on):\n  File ")
    assert told.count('return json.loads("{")') == 1
    assert told.endswith("char 1)\nas seen by all\n")


def failing(arguments):
    """A command with a mistake in a user's class."""
    broken()


def test_a_mistake_in_the_users_code_ends_a_command_with_its_lines(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "failing", ("tests.test_own_code:failing", ""))
    assert main(["failing"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback (from your code on):")
    assert "in broken" in told
    assert "__main__.py" not in told


def test_an_error_that_came_through_no_own_code_has_no_lines():
    assert from_own_code(ValueError("never raised")) == ""
    assert own_frames(None) == []


def test_this_package_is_no_own_code():
    with pytest.raises(TypeError) as found:
        generator()
    assert len(own_frames(found.value)) == 1
