"""A mistyped command or option is answered with the nearest one; warnings are told as errors are."""

import warnings

import pytest

from fedgen.__main__ import COMMANDS, main, tell, usage
from fedgen.federated import left_out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("evalute", "evaluate"), ("reports", "report"), ("slect", "select"), ("recipe", "recipes"), ("cliens", "clients")],
)
def test_a_mistyped_command_has_a_suggestion(typed, meant, capsys):
    assert main([typed, "run"]) == 2
    assert capsys.readouterr().err.startswith(f"fedgen: no command '{typed}'; did you mean '{meant}'?\n")


def test_commands_and_what_they_do_stand_in_two_columns():
    rows = [line for line in usage().splitlines() if line.startswith("  ")]
    assert len(rows) == len(COMMANDS)
    assert len({row.index(text) for row, (_, text) in zip(rows, COMMANDS.values())}) == 1
    assert all(row[row.index(text) - 2 : row.index(text)] == "  " for row, (_, text) in zip(rows, COMMANDS.values()))
    assert max(map(len, rows)) <= 80


def test_an_errors_notes_stand_behind_it(capsys):
    error = ValueError("the image is torn")
    error.add_note("item 5 of ImageFiles was being read")
    error.add_note("for client 'eve' in split 'train'")
    assert tell(error) == 2
    told = "fedgen: error: the image is torn; item 5 of ImageFiles was being read; for client 'eve' in split 'train'\n"
    assert capsys.readouterr().err.startswith(told)


def test_a_word_like_no_command_has_none(capsys):
    assert main(["zzz\x1b[31m"]) == 2
    first = capsys.readouterr().err.split("\n")[0]
    assert first == "fedgen: no command 'zzz\\x1b[31m'"


@pytest.mark.parametrize(
    ("command", "arguments", "option", "meant"),
    [
        ("select", ["run"], "--againts", "--against"),
        ("evaluate", ["run", "pixels"], "--num_imags", "--num_images"),
        ("evaluate", ["--generated", "a", "--clients", "b"], "--embeding", "--embedding"),
        ("report", ["run"], "--outptu", "--output"),
        ("clients", ["quickstart"], "--embeding", "--embedding"),
        ("deploy", ["quickstart", "app"], "--exprot", "--export"),
        ("convert", ["a", "b"], "--overwirte", "--overwrite"),
        ("reproduce", ["gaussian-toy"], "--sede", "--seed"),
    ],
)
def test_a_mistyped_option_has_a_suggestion(command, arguments, option, meant, capsys):
    assert command in COMMANDS
    with pytest.raises(SystemExit) as ended:
        main([command, *arguments, option, "3"])
    assert ended.value.code == 2
    assert f"{option} 3; did you mean {meant!r}?" in capsys.readouterr().err


def test_a_warning_of_the_kit_is_told_without_its_source_and_all_others_as_python_does(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which the command replaces
    assert main(["--version"]) == 0
    told = warnings.formatwarning("client 'a\x1b' is left out\nof round 3", UserWarning, left_out.__file__, 9)
    assert told == "fedgen: warning: client 'a\\x1b' is left out\nof round 3\n"
    (tmp_path / "train.py").write_text("warn('mine')\n")
    told = warnings.formatwarning("mine", UserWarning, str(tmp_path / "train.py"), 1)
    assert told == f"{tmp_path / 'train.py'}:1: UserWarning: mine\n  warn('mine')\n"
