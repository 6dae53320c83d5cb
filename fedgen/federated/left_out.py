"""Clients left out of rounds: what is recorded of each, kept in a run's folder and logged at its end."""

import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from fedgen.data.optional_attributes import optional
from fedgen.foreign_text import printable
from fedgen.io.field_types import Fits, conforms
from fedgen.io.files import atomic_write, parse_json
from fedgen.io.regular_files import read_regular
from fedgen.models.optional_hooks import FederatedData, TurnTakingStrategy, data_module_of
from fedgen.own_code import own_frames

if TYPE_CHECKING:  # who was left out is read without torch and Lightning
    from lightning.pytorch import Trainer

    from fedgen.clients.turn import Turn

LEFT_OUT_FILE = "left_out.jsonl"
# "round", "client", "name" and "reason"; "kind" where it is not being left out of a round; "turns" of an earlier one
Entry = dict[str, Any]
LONGEST_REASON, LONGEST_LINE, MOST_LINES = 400, 160, 10
REMARK, OBJECTIVE, EVALUATION = "remark", "objective", "evaluation"  # kinds of entries that have one
EARLIER = "earlier"  # of a client all that is no longer listed singly, up to its round
_HEADINGS = {
    "": ("left out", "turn"),
    EARLIER: ("left out earlier, in rounds that are no longer listed singly", "turn"),
    OBJECTIVE: ("left out of the objective", "time"),
    EVALUATION: ("left out of evaluations", "time"),
    REMARK: ("part of their rounds and remarked on", "time"),
}
KEPT_REMARKS = 2_000  # the latest: a rule may have some to make of every round
KEPT_TURNS = 10_000  # that clients were left out of and are listed singly: each checkpoint holds them
_AnyText = Annotated[Any, Fits(lambda value: isinstance(value, str), "text")]  # names may be invalid Unicode


class _OfClient(TypedDict):
    round: int
    client: int
    name: _AnyText
    reason: _AnyText


class LeftOut(_OfClient):
    kind: NotRequired[Literal[""]]


class LeftOutEarlier(_OfClient):
    kind: Literal["earlier"]
    turns: int


class RemarkedOn(_OfClient):
    kind: Literal["remark"]


class NotAnswering(_OfClient):
    kind: Literal["objective", "evaluation"]


AnyEntry = LeftOut | LeftOutEarlier | RemarkedOn | NotAnswering


def make_entry(turn: "Turn", error: BaseException) -> Entry:
    """Return the entry of a client whose turn failed: plain types, and the beginning of a long message."""
    return _entry(turn.round, turn.client, turn.name, f"{type(error).__name__}: {error}")


def make_entries(round: int, reasons: Mapping[int, str], data: Any, kind: str = "") -> list[Entry]:
    clients, extra = optional(data, FederatedData, "clients"), {"kind": kind} if kind else {}
    names = {client: str(clients[client].name if clients else client) for client in reasons}
    return [_entry(round, client, names[client], reason) | extra for client, reason in reasons.items()]


def _entry(round: int, client: int, name: str, reason: str) -> Entry:
    return {"round": round, "client": client, "name": name, "reason": shorten(reason, LONGEST_REASON)}


def fold(entries: list[Entry], most: int = KEPT_TURNS) -> list[Entry]:
    """Return the entries by round; if more than `most` are single turns, the earliest as one entry a client."""
    single = [entry for entry in entries if "turns" not in entry]
    if len(single) <= most:
        return entries
    keep = len(single) - most // 2
    earlier = {(entry["client"], entry["name"]): entry for entry in entries if "turns" in entry}
    for entry in single[:keep]:
        key = entry["client"], entry["name"]
        turns = earlier.get(key, {"turns": 0})["turns"] + 1
        earlier[key] = {**entry, "kind": EARLIER, "turns": turns}
    return [*sorted(earlier.values(), key=lambda entry: entry["round"]), *single[keep:]]


def are_alike(entries: Sequence[Entry]) -> bool:
    """Whether all were left out for one reason: exceptions of one type with one message."""
    return len({entry["reason"] for entry in entries}) == 1


def loss_of_round(round: int, entries: Sequence[Entry], error: Exception | None) -> Exception:
    """Return the error of a round that loses every client: what the errors were, and where the first was raised."""
    alike, reason, own = are_alike(entries), entries[0]["reason"], own_frames(error)
    many = "" if len(entries) == 1 else f", all {len(entries)} alike"
    if not alike:
        kinds = len({entry["reason"] for entry in entries})
        many = f", for {kinds} different reasons; that of client {entries[0]['name']!r}"
    place = f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    words = f"every client of round {round} was left out{many}: {reason}{place}"
    if error is not None and alike and own:
        error.add_note(words)
        return error
    lost = RuntimeError(words)
    lost.__cause__ = error
    return lost


def free_memory(error: BaseException) -> None:
    """Release what the functions that an error came through still hold, such as a step's activations."""
    import torch

    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    for one in chain:
        traceback.clear_frames(one.__traceback__)
    if any(isinstance(one, torch.OutOfMemoryError) for one in chain):
        torch.cuda.empty_cache()  # what is cached may be in pieces too small for the next client's tensors


def log_remarks(entries: Sequence[Entry]) -> None:
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

    if said := [f"client {shorten(repr(one['name']), 40)} {one['reason']}" for one in entries[:MOST_LINES]]:
        rank_zero_info(f"round {entries[0]['round']}: {'; '.join([*said, *_rest(len(entries))])}")


def report_of(trainer: "Trainer") -> list[Entry]:
    """Return a run's entries by round: those of its strategy, and of data whose clients are remote."""
    own = optional(trainer.strategy, TurnTakingStrategy, "report")
    remote = optional(data_module_of(trainer), FederatedData, "left_out")
    return sorted(map(dict, [*own, *remote]), key=lambda entry: entry["round"])


def log_dropped(entries: Sequence[Entry]) -> None:
    """Log at a run's end which clients were left out of it and remarked on, if any were."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

    for line in describe(entries):
        rank_zero_info(line)


def describe(entries: Sequence[Entry]) -> list[str]:
    """Return a line for each client: its rounds and the last reason."""
    by_kind: dict[str, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(str(entry.get("kind", "")), []).append(entry)
    known = [*(kind for kind in _HEADINGS if kind in by_kind), *(kind for kind in by_kind if kind not in _HEADINGS)]
    return [line for kind in known for line in _describe(by_kind[kind], *_HEADINGS.get(kind, (kind, "time")))]


def _describe(entries: Sequence[Entry], what: str, unit: str) -> list[str]:
    clients: dict[tuple[int, str], list[Entry]] = {}
    for entry in entries:
        clients.setdefault((entry["client"], entry["name"]), []).append(entry)
    longest = sorted(clients.items(), key=lambda item: (-_turns(item[1]), item[0]))
    heading = f"{what}: {_count(len(clients), 'client')}, {_count(_turns(entries), unit)}"
    lines = [_line(name, found) for (_, name), found in longest[:MOST_LINES]]
    return [heading, *lines, *(f"  {rest}" for rest in _rest(len(longest)))]


def _line(name: str, entries: Sequence[Entry]) -> str:
    last, others = entries[-1]["reason"], len({entry["reason"] for entry in entries}) - 1
    rounds = sorted({entry["round"] for entry in entries})
    when = f"{'round' if len(rounds) == 1 else 'rounds'} {shorten(spans(rounds), 50)}"
    if "turns" in entries[-1]:
        when = f"{_count(_turns(entries), 'turn')} up to round {rounds[-1]}"
    start = f"  {shorten(repr(name), 40)}, {when}: "
    end = f" ({_count(others, 'other reason')} before)" if others else ""
    return start + shorten(last, LONGEST_LINE - len(start) - len(end)) + end


def _turns(entries: Sequence[Entry]) -> int:
    return sum(entry.get("turns", 1) for entry in entries)


def _rest(clients: int) -> list[str]:
    return [f"and {_count(clients - MOST_LINES, 'more client')}"] if clients > MOST_LINES else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Return rising numbers with those that follow each other as one: "0, 3-5"."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
    return ", ".join(str(run[0][1]) if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs)


def shorten(text: str, length: int) -> str:
    """Return the text in one line of at most `length` characters, with terminals' commands and the like escaped."""
    return printable(" ".join(text.split()), length)


def write_left_out(folder: str | Path, entries: Sequence[Entry]) -> None:
    """Write the entries into a run's folder, a line each; no file if there are none."""
    path = Path(folder) / LEFT_OUT_FILE
    if not entries:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())


def read_left_out(folder: str | Path) -> list[Entry]:
    path = Path(folder) / LEFT_OUT_FILE
    if not path.exists():
        return []
    try:
        *lines, end = read_regular(path).decode().split("\n")
        entries = [parse_json(line) for line in lines]
    except ValueError as error:  # also bytes that are not UTF-8
        raise ValueError(f"{path} is damaged ({error}); remove it, the checkpoints hold the same") from error
    if end or not entries or not conforms(entries, list[AnyEntry]):
        raise ValueError(f"{path} is damaged: it holds other things than clients left out, or half a line; remove it")
    return entries
