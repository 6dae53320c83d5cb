"""News of a round that ranks tell each other before it is closed: each has seen the turns of some clients alone."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgen.federated.round import Round


def news_of(round: "Round") -> dict[str, Any]:
    """Return what other ranks do not know of a round."""
    return {
        "memory": round.memory.news(),
        "local": round.local.news(),
        "found": round.exchange.found,
        "counters": round.model.counters.news(),
        "outside": round.outside.news(),
        "clock": round.clock.news(),
        "logged": round.logged.news() if round.ranks.size > 1 else {},
    }


def hear(round: "Round", told: Sequence[Mapping[str, Any]]) -> None:
    """Take every rank's `news_of` into a round, but what is told of the memory, which decides whether it is one."""
    for part, name in ((round.model.counters, "counters"), (round.outside, "outside"), (round.clock, "clock")):
        part.hear([one[name] for one in told])
    round.local.hear([one["local"] for one in told])
    round.model.grow(sorted({name for one in told for name in one["found"]}))
    round.logged.hear([one["logged"] for one in told], round.device)
