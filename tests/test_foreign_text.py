"""Text of strangers shows on a terminal and does nothing there."""

import io
import json
import os

import pytest
from rich.table import Table

from fedgen.__main__ import main
from fedgen.evaluation import append_records, print_report
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import read_records
from fedgen.foreign_text import printable, printable_lines
from fedgen.io.files import is_file_name
from fedgen.progress import ForeignConsole, track
from tests.evaluation.samples import record

EVIL = "[/x][bold]\x1b[2J\x1b]0;title\x07\u202eabc\r\x9b1A"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("Zürich [1]", 20, "Zürich [1]"),
        ("\x1b[31mred\n", 40, r"\x1b[31mred\n"),
        ("a\u202eb\u200bc\x9b", 40, r"a\u202eb\u200bc\x9b"),
        ("\ud800", 40, r"\ud800"),
        ("abcdef", 5, "ab..."),
        ("\x1b\x1b", 7, r"\x1b..."),
        ("", 5, ""),
    ],
)
def test_what_would_act_on_a_terminal_is_shown_as_an_escape_in_one_line(text, limit, shown):
    assert printable(text, limit) == shown
    assert len(shown) <= limit


def test_lines_stay_lines():
    assert printable_lines("a\tb\n\x1bc\r\n") == "a\tb\n\\x1bc\\r\n"


def is_harmless(text):
    return not any(character in text for character in "\x1b\x07\x9b\r\u202e")


def test_a_console_shows_text_as_it_is():
    console = ForeignConsole(file=io.StringIO(), width=200)
    console.print(EVIL)
    shown = console.file.getvalue()
    assert is_harmless(shown)
    assert "[/x][bold]" in shown


def test_a_bar_shows_the_name_of_a_folder_as_it_is(capsys):
    assert list(track([1], EVIL, 1, "files")) == [1]


def write_run(folder, **changed):
    """A run's scores as a stranger may write them."""
    records = [record(round=round, aggregate=a, value=1.0 + round) for round in range(2) for a in ("avg", "all")]
    append_records(folder / "scores.jsonl", records)
    lines = [json.loads(line) | changed for line in (folder / "scores.jsonl").read_text().splitlines()]
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("field", ["score", "split", "embedding", "reference", "note", "weights", "aggregate"])
def test_records_are_printed_without_acting(field, tmp_path):
    write_run(tmp_path, **{field: EVIL})
    console = ForeignConsole(file=io.StringIO(), width=200)
    print_report(Run(tmp_path), console)
    assert is_harmless(console.file.getvalue())


def test_select_prints_a_path_with_brackets_as_its_last_line(tmp_path, capsys):
    folder = tmp_path / "run [x] [bold]"
    folder.mkdir()
    write_run(folder, checkpoint="last.ckpt")
    (folder / "last.ckpt").write_bytes(b"")
    assert main(["select", str(folder), "--by", "fid_all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "last.ckpt")


NAMES = ["/etc/shadow", "../x.ckpt", "a/b.ckpt", "..", ".", "", "a\0b", "\x1b[2J.ckpt", "a\\b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_record_names_a_checkpoint_beside_it_or_none(name, tmp_path):
    assert not is_file_name(name)
    write_run(tmp_path, checkpoint=name)
    with pytest.raises(ValueError, match="record"):
        read_records(tmp_path / "scores.jsonl")


def test_a_pipe_is_not_recommended_as_a_checkpoint(tmp_path, capsys):
    write_run(tmp_path, checkpoint="last.ckpt")
    os.mkfifo(tmp_path / "last.ckpt")
    assert main(["select", str(tmp_path), "--by", "fid_all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no checkpoint of these rounds was kept"


def test_errors_that_quote_a_file_are_printed_without_acting(tmp_path, capsys):
    (tmp_path / "scores.jsonl").write_text(json.dumps({EVIL: 1}) + "\n")
    assert main(["select", str(tmp_path)]) == 2
    assert is_harmless(capsys.readouterr().err)
    assert main(["select", str(tmp_path / EVIL)]) == 2
    assert is_harmless(capsys.readouterr().err)


def test_tables_keep_their_own_marks_while_texts_have_none():
    console = ForeignConsole(file=io.StringIO(), width=200)
    table = Table("best")
    table.add_row("[bold]1.0[/bold]")
    console.print(table)
    console.print("[bold]a folder[/bold]")
    shown = console.file.getvalue()
    assert "[bold]1.0" not in shown
    assert "1.0" in shown
    assert "[bold]a folder[/bold]" in shown
