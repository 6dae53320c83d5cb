import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from fedgen import progress
from fedgen.progress import RateColumn, make_console, track


@pytest.fixture
def updates(monkeypatch):
    """What the bar was told: one number of completed units for each item."""
    seen = []
    real = Progress.update

    def update(self, task_id, **fields):
        seen.append(fields["completed"])
        real(self, task_id, **fields)

    monkeypatch.setattr(Progress, "update", update)
    return seen


def terminal(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "ForeignConsole", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    return screen


def test_nothing_is_written_where_there_is_no_terminal(capsys):
    assert list(track("abc", "reading", 3, "letters")) == ["a", "b", "c"]
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_shows_description_count_and_unit(monkeypatch):
    screen = terminal(monkeypatch)
    assert list(track(range(4), "embedding", 4, "images")) == [0, 1, 2, 3]
    assert "embedding" in screen.getvalue()
    assert "4/4" in screen.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_bar_is_one_line_of_the_terminal(monkeypatch, width):
    shown = Console(file=io.StringIO(), force_terminal=True, width=width)
    monkeypatch.setattr(progress, "ForeignConsole", lambda stderr: shown)
    bars = []
    for _ in track(range(12), "embed quickstart/train with efficientnet-lite0-32", 12_000, "images", 1000):
        time.sleep(0.01)  # for a rate
        own = Console(file=io.StringIO(), width=width)
        own.print(progress._shown[-1].get_renderable())
        bars.append(own.file.getvalue().rstrip("\n").split("\n"))
    assert [len(lines) for lines in bars] == [1] * 12
    assert max(len(line) for lines in bars for line in lines) <= width
    assert all("/12000 " in lines[0] for lines in bars)
    assert all("images/s" in lines[0] for lines in bars[3:])
    assert all("embed quick" in lines[0] for lines in bars if width > 40)


def test_nothing_to_count_has_no_bar(monkeypatch):
    screen = terminal(monkeypatch)
    assert list(track([], "embedding", 0, "draws")) == []
    assert screen.getvalue() == ""


def test_slow_units_are_told_by_their_seconds():
    column = RateColumn()
    assert str(column.render(SimpleNamespace(finished_speed=None, speed=0.25, fields={"unit": "draws"}))) == "4 s each"
    assert (
        str(column.render(SimpleNamespace(finished_speed=None, speed=312.4, fields={"unit": "draws"}))) == "312 draws/s"
    )


def test_items_count_for_a_step_and_the_last_is_cut_to_the_total(updates):
    list(track(["a", "b", "c"], "embedding", total=10, unit="images", step=4))
    assert updates == [4, 8, 10]


def test_an_item_counts_only_when_it_is_done(updates):
    items = track("ab", "reading", 2, "letters")
    next(items)
    assert updates == []
    next(items)
    assert updates == [1]
    items.close()


def test_an_error_inside_the_loop_comes_through(monkeypatch):
    terminal(monkeypatch)

    def fail():
        yield 1
        raise RuntimeError("broken item")

    with pytest.raises(RuntimeError, match="broken"):
        list(track(fail(), "reading", 2, "items"))


def test_items_may_say_how_many_units_they_are(updates):
    assert list(track(["ab", "c", "defg"], "reading", 6, "letters", step=len)) == ["ab", "c", "defg"]
    assert updates == [2, 3, 6]


def test_a_bar_inside_another_joins_its_display_and_leaves_it(monkeypatch):
    terminal(monkeypatch)
    starts, tasks = [], []
    real = Progress.start
    monkeypatch.setattr(Progress, "start", lambda self: (starts.append(self), real(self)))
    for _ in track("ab", "sampling", 2, "images"):
        for _ in track(range(3), "denoising", 3, "steps"):
            tasks.append([task.description for task in starts[0].tasks])
    assert len(starts) == 1
    assert tasks == [["sampling", "denoising"]] * 6
    assert [task.description for task in starts[0].tasks] == ["sampling"]
    list(track("a", "embedding", 1, "images"))
    assert len(starts) == 2


def test_tables_in_files_and_pipes_are_wide_unless_someone_says_how_wide(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert make_console().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert make_console().width == 90


def test_a_terminals_width_is_its_own(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    made = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(progress, "ForeignConsole", lambda **_: made)
    assert make_console().width == 100
