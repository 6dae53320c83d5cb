"""One line of a run's progress, as wide as a terminal and never wider."""

from dataclasses import dataclass
from datetime import timedelta

from rich.text import Text

SHORTEST_BAR, LONGEST_BAR = 8, 40
LONGEST_LOSS = len("-1.23e-05")


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Args:
        unit: what is counted, "round" or "epoch".
        done: whole rounds behind it, those before it was resumed among them.
        total: rounds in all; None where nobody knows.
        seconds: since training began.
        since: rounds behind it when training began; 0 but for resumed runs.
        turn: clients behind it in the round at work, and in the round in all; None where rounds are quick.
        loss: the newest loss, "critic_loss -0.31"; "" if nothing is logged.
        score: the newest score, "fid_all 9.1±0.3"; "" before the first evaluation.
    """

    unit: str
    done: int
    total: int | None
    seconds: float
    since: int = 0
    turn: tuple[int, int] | None = None
    loss: str = ""
    score: str = ""

    @property
    def share(self) -> float:
        """The share of the run that is done, in [0, 1]; 0 where nobody knows."""
        if not self.total:
            return 0.0
        return min((self.since + self.made) / self.total, 1.0)

    @property
    def made(self) -> float:
        """Rounds since training began, a part of the one at work among them."""
        return self.done - self.since + (self.turn[0] / self.turn[1] if self.turn else 0.0)

    @property
    def pace(self) -> str:
        """Rounds a second, or seconds a round where it takes longer: "8.1/s", "4.2 s each"; "" before the first."""
        if not self.made or self.seconds <= 0:
            return ""
        each = self.seconds / self.made
        if each > 1:
            return f"{each:.3g} s each"
        return f"{1 / each:,.0f}/s" if each < 0.1 else f"{1 / each:.1f}/s"

    @property
    def left(self) -> str:
        """The time that the run still needs, evaluations included: "0:04:51 left"; "" where nobody knows."""
        if not self.made or self.total is None:
            return ""
        return f"{_clock(self.seconds / self.made * max(self.total - self.since - self.made, 0))} left"

    @property
    def count(self) -> str:
        """ "37 of 100 rounds"."""
        total = "" if self.total is None else f" of {self.total}"
        counted = self.done if self.total is None else self.total
        return f"{self.done}{total} {self.unit}{'' if counted == 1 else 's'}"


def plain_line(progress: Progress) -> str:
    """A line for files and pipes: "37 of 100 rounds, 8.1/s, 0:00:08 left, critic_loss -0.31, fid_all 9.1±0.3"."""
    parts = [progress.count, progress.pace, progress.left, _turn(progress), progress.loss, progress.score]
    return ", ".join(part for part in parts if part)


def last_line(progress: Progress) -> str:
    """Return the line that stays when the bar has gone: "100 of 100 rounds done in 0:02:10"."""
    return f"{progress.count} done in {_clock(progress.seconds)}"


def bar_line(progress: Progress, width: int) -> Text:
    """The line of a terminal: the count, a bar, and as much of pace, time left, score and loss as has room.

    Args:
        progress: how far the run is.
        width: columns of the terminal; the line is shorter, so that no terminal wraps it.
    """
    room = width - 1
    parts = {"count": progress.count}
    wanted = {"left": progress.left, "score": progress.score, "pace": progress.pace, "loss": _padded(progress.loss)}
    for name, text in {"turn": _turn(progress), **wanted}.items():
        if text and _length([*parts.values(), text]) + SHORTEST_BAR + 2 <= room:
            parts[name] = text
    line = Text(no_wrap=True, end="")
    line.append(parts.pop("count")[:room])
    used = _length([line.plain, *parts.values()])
    if progress.total and (size := min(LONGEST_BAR, room - used - 2)) >= SHORTEST_BAR:
        full = round(size * progress.share)
        line.append("  ").append("━" * full, "green").append("─" * (size - full), "bright_black")
    for name in ("turn", "pace", "left", "loss", "score"):
        if name in parts:
            line.append("  ").append(parts[name], "cyan" if name == "score" else "")
    return line


def _padded(loss: str) -> str:
    """Return a loss whose value takes as many columns as the longest, for a bar of one length."""
    name, blank, value = loss.rpartition(" ")
    return f"{name}{blank}{value:<{LONGEST_LOSS}}" if loss else ""


def _turn(progress: Progress) -> str:
    return f"client {progress.turn[0]}/{progress.turn[1]}" if progress.turn else ""


def _length(parts: list[str]) -> int:
    """Columns that parts take with two blanks between them."""
    return len("  ".join(part for part in parts if part))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
