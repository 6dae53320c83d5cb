"""A table of what becomes of a module's state under federated averaging, as found in training."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedgen.federated.round import Round
from fedgen.federated.run_files import STATE_FILE
from fedgen.io.files import atomic_write, in_bytes
from fedgen.io.tensor_files import bytes_of, tensors_in
from fedgen.own_code import rank_zero_warn

MOST_NAMES = 4  # of a row in the log
RESET, OPAQUE = "not in state_dict, reset", "cannot be isolated"  # how fates begin that are warned of


class StateRow(NamedTuple):
    fate: str
    names: tuple[str, ...]
    num_bytes: int


def state_rows(round: Round) -> list[StateRow]:
    """Return the rows that are not empty, what travels first: their bytes are all that a client sends in a round."""
    exchange, counters, outside, local = round.exchange, round.model.counters, round.outside, round.local
    by_fate: dict[str, list[str]] = {}
    for path, word in outside.found.items():
        if path not in exchange.first_names:  # where a buffer that was None is by now
            by_fate.setdefault(word, []).append(path)
    moving = {name: tensor for name, tensor in exchange.traveling.items() if name not in exchange.trained}
    known, server = counters.seen | exchange.advancing, exchange.server  # and what the present turn has raised
    counted = {name: t for name, t in exchange.counters.items() if name in known or not torch.equal(t, server[name])}
    beside, still = exchange.beside, {**exchange.quiet, **exchange.counters}
    raised = [tensor for name, tensor in counted.items() if name not in exchange.advancing]
    rows = [
        _row("trained, averaged", exchange.trainable, exchange.bytes_sent(exchange.trainable)),
        _row("changed by turns, averaged", moving, exchange.bytes_sent(moving)),
        _row("counters and flags, the largest", counted, bytes_of(raised)),
        _row("optimizer states, averaged", local.names_sent, local.bytes_sent),
        _row("the last client's for the next round", local.continued, bytes_of(tensors_in(local.continued))),
        _row("sent along by the client algorithm", [type(round.algorithm).__name__] * bool(beside), beside),
        _row("stays with each client", exchange.personal),
        _row("declared 'server', reset at every turn", exchange.held),
        _row("constant, does not travel", [name for name in still if name not in moving and name not in counted]),
    ]
    words = {
        "averaged": "not in state_dict, averaged",
        "mean": "not in state_dict, averaged as declared",
        "max": "not in state_dict, a counter: the largest",
        "personal": "not in state_dict, stays with each client as declared",
        "gathered": "lists of the round's outputs, gathered over clients",
        "seeded": "random generators, seeded for each turn",
        "rebuilt": "not in state_dict, made anew in every turn",
        "server": "declared 'server', not in state_dict, reset at every turn",
        "reset": "not in state_dict, reset at every turn",
    }
    means = round.messages.server_means
    for word in (word for word in words if word in by_fate):
        sent = bytes_of([means[path] for path in by_fate[word] if path in means and word in ("averaged", "mean")])
        rows.append(_row(words[word], by_fate[word], sent))
    rows.append(_row(OPAQUE, [f"{path} ({kind})" for path, kind in outside.opaque.items()]))
    rows.append(_row("kept by clients, but not in checkpoints", outside.not_in_checkpoints))
    return [row for row in rows if row.names]


def _row(fate: str, names: Iterable[str], num_bytes: int = 0) -> StateRow:
    return StateRow(fate, tuple(names), num_bytes)


def table_of(rows: Sequence[StateRow], most: int | None = MOST_NAMES) -> str:
    lines = []
    for row in rows:
        shown = row.names if most is None else row.names[:most]
        names = ", ".join(shown) + (f", ... ({len(row.names)} in all)" if len(row.names) > len(shown) else "")
        size = f"{in_bytes(row.num_bytes)} a round: " if row.num_bytes else ""
        lines.append(f"  {row.fate}: {size}{names}")
    return "\n".join(lines)


def warn_of_state(
    rows: Sequence[StateRow], unmatched: Sequence[str] = (), remedies: Mapping[str, str] | None = None
) -> None:
    """Warn, once the first round is over, of what may surprise in the module's state."""
    for row in rows:
        if row.fate.startswith(RESET):
            fitting = {name: (remedies or {}).get(name, "personal") for name in row.names[:MOST_NAMES]}
            rank_zero_warn(
                f"clients' turns change state that is not in state_dict and is not exchanged:\n{table_of([row])}\n"
                f"FedAvgStrategy(rules={fitting}) declares what becomes of it; with 'server' it is reset without a"
                " warning",
                category=UnexchangedStateWarning,
            )
        if row.fate == OPAQUE:
            attribute = row.names[0].split(" ")[0].split(".")[-1]
            rank_zero_warn(
                f"the module holds objects that cannot be looked into:\n{table_of([row])}\n"
                "What a client's turn does to them reaches the next client. Make them anew in `on_turn_start(turn)`, or"
                f" declare that they are no state: own_turn_state = ({attribute!r},) in the class that holds them",
                category=UnexchangedStateWarning,
            )
    if unmatched:
        rank_zero_warn(
            f"rules for {', '.join(map(repr, unmatched))} have matched nothing of the module's state in the"
            " first round; strategy.state_table() has the names"
        )


class UnexchangedStateWarning(UserWarning):
    """Some of a module's state is lost with each of the clients' turns, or reaches the next client."""


class NoRoundError(RuntimeError):
    """The table was asked for before a round was trained, in which it is found."""


def rows_so_far(strategy: Any) -> list[StateRow]:
    """The rows of a strategy's `state_table`; none before its first whole round, or if it has no such table."""
    try:
        return strategy.state_table() if hasattr(strategy, "state_table") else []
    except NoRoundError:
        return []


def write_state(folder: str | Path, rows: Sequence[StateRow]) -> None:
    """Write the rows with all names into a run's folder, as `table_of` has them; no file if there are none."""
    if rows:
        with atomic_write(Path(folder) / STATE_FILE) as file:
            file.write(f"{table_of(rows, most=None)}\n".encode())
