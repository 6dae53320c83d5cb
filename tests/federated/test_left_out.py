"""What is recorded of clients left out, and how it is told: grouped by client and of bounded length."""

import json

import pytest
import torch

from fedgen.clients import Turn
from fedgen.data import Examples
from fedgen.federated.left_out import (
    LEFT_OUT_FILE,
    AnyEntry,
    LeftOut,
    LeftOutEarlier,
    describe,
    fold,
    make_entry,
    read_left_out,
    shorten,
    spans,
    write_left_out,
)
from fedgen.io.field_types import conforms


def entry(round, client, reason="ValueError: no", name=None):
    return {"round": round, "client": client, "name": name or f"c{client}", "reason": reason}


def test_nobody_needs_no_words():
    assert describe([]) == []


def test_clients_are_grouped_and_those_of_most_rounds_come_first():
    entries = [entry(0, 2), entry(1, 7, "MemoryError: "), entry(2, 7), entry(3, 7), entry(9, 7)]
    assert describe(entries) == [
        "left out: 2 clients, 5 turns",
        "  'c7', rounds 1-3, 9: ValueError: no (1 other reason before)",
        "  'c2', round 0: ValueError: no",
    ]


def test_clients_of_one_name_are_told_apart():
    assert len(describe([entry(0, 1, name="same"), entry(0, 2, name="same")])) == 3


def test_the_report_is_bounded_whatever_names_reasons_and_numbers():
    long = "x" * 5000 + "\n[bold]" + "y" * 5000
    entries = [entry(2 * round, client, f"{round} {long}", long) for client in range(300) for round in range(20)]
    lines = describe(entries)
    assert len(lines) == 12
    assert lines[-1] == "  and 290 more clients"
    assert all(len(line) <= 160 and "\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 2, 3, 4, 7, 9, 10], "0, 2-4, 7, 9-10")],
)
def test_rounds_that_follow_each_other_are_one_span(numbers, said):
    assert spans(numbers) == said


def test_a_long_message_keeps_its_beginning_in_one_line():
    assert shorten("a\n  b", 5) == "a b"
    assert shorten("abcdefgh", 6) == "abc..."


def test_of_a_great_many_the_earliest_are_one_a_client():
    entries = [entry(round, round % 2, f"ValueError: {round}") for round in range(8)]
    assert fold(entries, most=8) == entries
    folded = fold([*entries, entry(8, 0)], most=8)
    assert folded[2:] == [*entries[5:], entry(8, 0)]
    assert [(one["client"], one["round"], one["turns"]) for one in folded[:2]] == [(1, 3, 2), (0, 4, 3)]
    assert conforms(folded, list[LeftOut | LeftOutEarlier])
    assert describe(folded) == [
        "left out: 2 clients, 4 turns",
        "  'c0', rounds 6, 8: ValueError: no (1 other reason before)",
        "  'c1', rounds 5, 7: ValueError: 7 (1 other reason before)",
        "left out earlier, in rounds that are no longer listed singly: 2 clients, 5 turns",
        "  'c0', 3 turns up to round 4: ValueError: 4",
        "  'c1', 2 turns up to round 3: ValueError: 3",
    ]


def test_a_client_that_fails_forever_takes_no_more_room_and_no_turn_is_lost():
    entries = []
    for round in range(1000):
        entries = fold([*entries, entry(round, 3)], most=10)
        assert len(entries) <= 11
        assert sum(one.get("turns", 1) for one in entries) == round + 1
    assert entries[0]["round"] + 1 == entries[1]["round"]


@pytest.mark.parametrize("turns", [-1, "3", 2.5, True, None])
def test_a_fold_of_no_count_is_no_entry(turns):
    assert not conforms({**entry(3, 1), "kind": "earlier", "turns": turns}, AnyEntry)
    assert not conforms({**entry(3, 1), "turns": 2}, AnyEntry)
    assert not conforms({**entry(3, 1), "kind": "earlier"}, AnyEntry)


def test_an_entry_holds_plain_types_and_a_bounded_reason():
    examples = Examples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), "points", ("a",))
    turn = Turn(examples, torch.arange(2), 1, 0, 5, "hospital", 3)
    found = make_entry(turn, RuntimeError("first line\n" + 10_000 * "z"))
    assert json.loads(json.dumps(found)) == found
    assert (found["round"], found["client"], found["name"]) == (3, 5, "hospital")
    assert found["reason"].startswith("RuntimeError: first line zzz")
    assert len(found["reason"]) == 400


def test_what_is_kept_in_a_folder_is_read_again_and_goes_with_the_last_entry(tmp_path):
    entries = [entry(0, 1), entry(4, 2, name='a "name"\nof two lines')]
    assert read_left_out(tmp_path) == []
    write_left_out(tmp_path, entries)
    assert len((tmp_path / LEFT_OUT_FILE).read_text().splitlines()) == 2
    assert read_left_out(tmp_path) == entries
    write_left_out(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
