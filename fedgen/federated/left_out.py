"""Clients left out of rounds: what is recorded of each, kept in a run's folder and told at its end."""

import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from fedgen.data.optional_attributes import optional
from fedgen.foreign_text import printable
from fedgen.io.field_types import Fits, conforms
from fedgen.io.files import atomic_write, parse_json
from fedgen.io.regular_files import read_regular
from fedgen.models.optional_hooks import FederatedData, TurnTakingStrategy, data_module_of
from fedgen.own_code import own_frames, rank_zero_warn

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
_AnyText = Annotated[Any, Fits(lambda value: isinstance(value, str), "text")]  # names may be no Unicode


class _OfClient(TypedDict):
    round: int
    client: int
    name: _AnyText
    reason: _AnyText


class LeftOut(_OfClient):
    """A client that was left out of a round."""

    kind: NotRequired[Literal[""]]


class LeftOutEarlier(_OfClient):
    """All of a client that is no longer listed singly."""

    kind: Literal["earlier"]
    turns: int


class RemarkedOn(_OfClient):
    """A client that an aggregator has something to say of."""

    kind: Literal["remark"]


class NotAnswering(_OfClient):
    """A client that was left out of an objective or an evaluation."""

    kind: Literal["objective", "evaluation"]


AnyEntry = LeftOut | LeftOutEarlier | RemarkedOn | NotAnswering


def make_entry(turn: "Turn", error: BaseException) -> Entry:
    """Return what is kept of a client whose turn failed: plain types, and of a long message the beginning."""
    reason = shorten(f"{type(error).__name__}: {error}", LONGEST_REASON)
    return {"round": turn.round, "client": turn.client, "name": turn.name, "reason": reason}


def make_entries(round: int, reasons: Mapping[int, str], data: Any, kind: str = "") -> list[Entry]:
    """Return what is kept of several clients in a round."""
    clients = optional(data, FederatedData, "clients")
    return [
        {
            "round": round,
            "client": client,
            "name": str(clients[client].name) if clients else str(client),
            "reason": shorten(reason, LONGEST_REASON),
            **({"kind": kind} if kind else {}),
        }
        for client, reason in reasons.items()
    ]


def fold(entries: list[Entry], most: int = KEPT_TURNS) -> list[Entry]:
    """The entries, by round."""
    single = [entry for entry in entries if "turns" not in entry] if len(entries) > most else []
    if len(single) <= most:
        return entries
    keep = len(single) - most // 2
    earlier = {(entry["client"], entry["name"]): entry for entry in entries if "turns" in entry}
    for entry in single[:keep]:
        key = entry["client"], entry["name"]
        turns = earlier.get(key, {"turns": 0})["turns"] + 1
        earlier[key] = {**entry, "kind": EARLIER, "turns": turns}
    return [*sorted(earlier.values(), key=lambda entry: entry["round"]), *single[keep:]]


def warn_of(entry: Entry) -> None:
    """One warning of a client left out."""
    rank_zero_warn(f"client {entry['name']!r} is left out of round {entry['round']}: {entry['reason']}")


def warn_of_dropped_round(round: int, why: str) -> None:
    """One warning of a round that is whole and of which nothing can be made."""
    rank_zero_warn(f"round {round} is dropped and the server's model stays as it was: {why}")


def are_alike(entries: Sequence[Entry]) -> bool:
    """Whether all were left out for one reason: exceptions of one type with one message."""
    return len({entry["reason"] for entry in entries}) == 1


def describe_loss(round: int, entries: Sequence[Entry], error: BaseException | None) -> str:
    """Says of a round that lost every client what the errors were, and where the first was raised."""
    start = f"every client of round {round} was left out"
    if not entries:
        return start
    reason, where = entries[0]["reason"], _place_of(error)
    if are_alike(entries):
        many = "" if len(entries) == 1 else f", all {len(entries)} alike"
        return f"{start}{many}: {reason}{where}"
    kinds = len({entry["reason"] for entry in entries})
    return f"{start}, for {kinds} different reasons; that of client {entries[0]['name']!r}: {reason}{where}"


def loss_of_round(round: int, entries: Sequence[Entry], error: Exception | None) -> Exception:
    """Return the error of a round that loses every client."""
    words = describe_loss(round, entries, error)
    if error is not None and entries and are_alike(entries) and own_frames(error):
        error.add_note(words)
        return error
    lost = RuntimeError(words)
    lost.__cause__ = error
    return lost


def _place_of(error: BaseException | None) -> str:
    """The innermost line that an error came through in the user's own code."""
    own = own_frames(error)
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def free_memory(error: BaseException) -> None:
    """Lets go of what the functions that an error came through still hold, such as a step's activations."""
    import torch

    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    for one in chain:
        traceback.clear_frames(one.__traceback__)
    if any(isinstance(one, torch.OutOfMemoryError) for one in chain):
        torch.cuda.empty_cache()  # what is cached may be in pieces too small for the next client's tensors


def log_remarks(entries: Sequence[Entry]) -> None:
    """Says what an aggregator found in a round, of a few clients by name."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

    said = [f"client {shorten(repr(one['name']), 40)} {one['reason']}" for one in entries[:MOST_LINES]]
    rest = len(entries) - len(said)
    if said:
        rank_zero_info(
            f"round {entries[0]['round']}: "
            + "; ".join([*said, *([f"and {_count(rest, 'more client')}"] if rest else [])])
        )


def report_of(trainer: "Trainer") -> list[Entry]:
    """All that is kept of clients of a run, by round: of its strategy, and of data whose clients are elsewhere."""
    parts = [
        optional(trainer.strategy, TurnTakingStrategy, "report"),
        optional(data_module_of(trainer), FederatedData, "left_out"),
    ]
    return sorted((dict(entry) for part in parts for entry in part), key=lambda entry: entry["round"])


def log_dropped(entries: Sequence[Entry]) -> None:
    """Says at a run's end who was left out of it, and who was remarked on, if anybody was."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

    for line in describe(entries):
        rank_zero_info(line)


def describe(entries: Sequence[Entry]) -> list[str]:
    """In words, a line for each client: its rounds and the last reason; nothing if nobody was left out."""
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
    rest = len(longest) - len(lines)
    return [heading, *lines, *([f"  and {_count(rest, 'more client')}"] if rest else [])]


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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Rising numbers with those that follow each other as one: "0, 3-5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, span)) for span in found)


def shorten(text: str, length: int) -> str:
    """The text in one line and so many characters at most; whatever is no text, as terminals' commands, is escaped."""
    return printable(" ".join(text.split()), length)


def write_left_out(folder: str | Path, entries: Sequence[Entry]) -> None:
    """Keeps the entries in a run's folder, a line each; no file if there are none."""
    path = Path(folder) / LEFT_OUT_FILE
    if not entries:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())


def read_left_out(folder: str | Path) -> list[Entry]:
    """Read what `write_left_out` kept; nothing if there is no file."""
    path = Path(folder) / LEFT_OUT_FILE
    if not path.exists():
        return []
    try:
        *lines, end = read_regular(path).decode().split("\n")
        entries = [parse_json(line) for line in lines]
    except ValueError as error:  # also bytes that are no UTF-8
        raise ValueError(f"{path} is damaged ({error}); remove it, the checkpoints hold the same") from error
    if end or not entries or not conforms(entries, list[AnyEntry]):
        raise ValueError(
            f"{path} is damaged: it holds something other than who was left out, or half a line; remove it"
        )
    return entries
