"""Standings: entries of a task in their order, ranks where intervals allow one, and answers to a suite's questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedgen.benchmark.claims import check, check_alike
from fedgen.benchmark.entry import Entry, entry_files, read_entry
from fedgen.benchmark.suites import SUITES

UNTOLD = "cannot be told"


@dataclass(frozen=True)
class Standing:
    """Entries of one task, the best number first; those without a number last.

    Args:
        suite: its name.
        task: data and partition.
        entries: of the task.
    """

    suite: str
    task: str
    entries: Sequence[Entry]

    def ranks(self, entry: Entry) -> tuple[int, int]:
        """The best and the worst rank that an entry may have: others are ahead or behind where intervals are apart."""
        ahead = sum(is_ahead(other, entry) for other in self.entries)
        behind = sum(is_ahead(entry, other) for other in self.entries)
        return 1 + ahead, len(self.entries) - behind

    def rank(self, entry: Entry) -> str:
        """The rank in words: "1", "2 to 3", or that it cannot be told."""
        best, worst = self.ranks(entry)
        if best == worst:
            return str(best)
        return UNTOLD if (best, worst) == (1, len(self.entries)) else f"{best} to {worst}"


@dataclass(frozen=True)
class SuiteAnswer:
    """A question, and the order of the cells that are there.

    Args:
        suite: its name.
        question: the text.
        order: in words.
    """

    suite: str
    question: str
    order: str


def is_ahead(one: Entry, other: Entry) -> bool:
    """Whether an entry's whole interval is better than another's; where one has none it cannot be told."""
    high, low = one.claims["high"], other.claims["low"]
    return high is not None and low is not None and high < low


def read_all(places: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """The entries of folders and files whose claims hold, and why others are refused.

    Of one task all are measured as those of most cells; of one cell the first file counts, in their order.

    Raises:
        FileNotFoundError: for a place that is not there or has no entries.
    """
    checked: list[Entry] = []
    refused: list[str] = []
    for path in entry_files(places):
        try:
            entry = read_entry(path)
            check(entry)
        except ValueError as error:
            refused.append(str(error))
        else:
            checked.append(entry)
    entries: list[Entry] = []
    reasons: dict[Path, str] = {}
    for task in dict.fromkeys(entry.task for entry in checked):
        reasons |= _unlike([entry for entry in checked if entry.task == task])
    for entry in checked:
        same = next((one for one in entries if (one.task, one.name) == (entry.task, entry.name)), None)
        if reason := reasons[entry.path]:
            refused.append(reason)
        elif same is not None:
            refused.append(f"entry {entry.name} ({entry.path}) is refused: {same.path} is of the same cell")
        else:
            entries.append(entry)
    return entries, refused


def _unlike(entries: Sequence[Entry]) -> dict[Path, str]:
    """The reasons to refuse entries of one task for how they were measured, by their files; "" where there is none.

    Those that entries of the most cells are like decide; copies of a file add nothing. Where others are like as many,
    nobody knows who is right, and all of them are refused.
    """
    reasons = [["" if other is entry else _difference(entry, other) for other in entries] for entry in entries]
    alike = [len({other.name for other, reason in zip(entries, row) if not reason}) for row in reasons]
    deciding = [place for place, count in enumerate(alike) if count == max(alike)]
    return {
        entry.path: next((row[place] for place in deciding if row[place]), "") for entry, row in zip(entries, reasons)
    }


def _difference(entry: Entry, other: Entry) -> str:
    """The first difference in how two entries were measured, in words; "" if there is none."""
    try:
        check_alike(entry, other)
    except ValueError as error:
        return str(error)
    return ""


def standings_of(entries: Sequence[Entry]) -> list[Standing]:
    """The standings of each task, in the order of the first entries."""
    tasks = dict.fromkeys(entry.task for entry in entries)
    return [Standing(*task, sorted((one for one in entries if one.task == task), key=_place)) for task in tasks]


def answers_of(entries: Sequence[Entry]) -> list[SuiteAnswer]:
    """The answers to the questions of the entries' suites, of those with two or more of their cells.

    In an answer "<" stands where the left one is ahead of the right one, "~" where that cannot be told.
    """
    answers = []
    for suite in dict.fromkeys(entry.form["suite"] for entry in entries):
        known = {entry.name: entry for entry in entries if entry.form["suite"] == suite}
        for question in SUITES[suite].questions:
            found = sorted((known[name] for name in question.cells if name in known), key=_place)
            if len(found) > 1:
                answers.append(SuiteAnswer(suite, question.text, _order(found)))
    return answers


def _order(found: Sequence[Entry]) -> str:
    words = [f"{' / '.join(found[0].parts)}"]
    for better, worse in pairwise(found):
        words.append(f"{'<' if is_ahead(better, worse) else '~'} {' / '.join(worse.parts)}")
    return " ".join(words)


def _place(entry: Entry) -> tuple[bool, float, str]:
    value = entry.claims["number"]
    return value is None, value or 0.0, entry.name
