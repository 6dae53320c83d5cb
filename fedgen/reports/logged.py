"""The values that loggers wrote into a run's folder while it trained: TensorBoard's events and CSV files."""

import math
import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgen.extras import need
from fedgen.io.files import read_csv
from fedgen.io.regular_files import is_regular, open_regular

MOST_FILES, MOST_BYTES = 50, 500_000_000  # of one folder's logs
LATEST = 1e11  # seconds since 1970; other times are damaged
MOST_RECORD = 64_000_000  # bytes of one event: histograms and pictures are passed over
SKIPPED = re.compile(r"[_/]clients/p\d+$|^hp_metric$")
_HEAD = struct.Struct("<QI")  # length of a record and a checksum


@dataclass
class LoggedSeries:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, step: int, value: float, time: float | None = None) -> None:
        """Appends a value; one of an earlier step replaces all from it on, as a run that went on measures it again."""
        keep = bisect_left(self.steps, step)
        for part in (self.steps, self.values, self.times):
            del part[keep:]
        self.steps.append(step)
        self.values.append(value)
        if time is not None:
            self.times.append(time)


class Logs:
    """The scalars in a run folder's logs, read as far as they go; `refresh` reads what has been added since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.series, self.unread = dict[str, LoggedSeries](), list[str]()
        self._read: dict[Path, int] = {}
        self._timeless: dict[Path, str] = {}  # the last such value of a file

    def refresh(self) -> None:
        self.unread = []
        for path in log_files(self.folder):
            try:
                (self._read_csv if path.suffix == ".csv" else self._read_events)(path)
            except (OSError, ValueError) as error:
                self.unread.append(f"{path.name}: {error}")
        self.unread += [f"{path.name}: left out as it has no time: {last}" for path, last in self._timeless.items()]

    def _read_events(self, path: Path) -> None:
        try:
            event_pb2 = need("tensorboard.compat.proto.event_pb2", "tensorboard", "reading them")
        except ImportError as error:
            raise ValueError(f"events of TensorBoard: {error}") from error
        for content in self._records(path):
            try:
                event = event_pb2.Event.FromString(content)
            except Exception as error:  # protobuf's own kind
                raise ValueError(f"no events of TensorBoard ({error})") from error
            for value in event.summary.value:
                number = _scalar(value)
                if not math.isfinite(number) or SKIPPED.search(value.tag):
                    continue
                if 0 <= event.wall_time < LATEST:
                    self.series.setdefault(value.tag, LoggedSeries()).add(event.step, number, event.wall_time)
                else:
                    self._timeless[path] = f"{value.tag} of step {event.step}, at {event.wall_time:g}"

    def _records(self, path: Path) -> Iterator[bytes]:
        """The whole records of a file that were not read before."""
        with open_regular(path) as file:
            size, start = os.fstat(file.fileno()).st_size, self._read.get(path, 0)
            file.seek(start)
            while start + _HEAD.size <= size:
                length, _ = _HEAD.unpack(file.read(_HEAD.size))
                if not length:  # every event has a time; of a file with holes there could be millions
                    raise ValueError(f"no events of TensorBoard: a record without bytes at byte {start}")
                end = start + _HEAD.size + length + 4
                if end > size:
                    break
                content = b"" if length > MOST_RECORD else file.read(length)
                file.seek(end)
                if content:
                    yield content
                start = end
                self._read[path] = start

    def _read_csv(self, path: Path) -> None:
        if self._read.get(path) == path.stat().st_size:
            return
        header, rows = read_csv(path)
        if "step" not in header:
            return
        tags = [tag for tag in header if tag != "step" and not SKIPPED.search(tag)]
        for _, row in rows:
            step, values = _number(row["step"]), {tag: _number(row[tag]) for tag in tags}
            for tag, value in values.items():
                if math.isfinite(step) and math.isfinite(value):
                    self.series.setdefault(tag, LoggedSeries()).add(int(step), value)
        self._read[path] = path.stat().st_size


def log_files(folder: Path) -> list[Path]:
    """The log files of a run's folder, the oldest first; without those of other runs' folders below it."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        own = Path(place)
        depth = len(own.relative_to(folder).parts)
        folders[:] = [name for name in sorted(folders) if depth < 3 and not (own / name / "scores.jsonl").exists()]
        found += [own / name for name in names if "tfevents" in name or name == "metrics.csv"]
    found = [path for path in found if is_regular(path) and path.stat().st_size < MOST_BYTES]
    return sorted(found, key=lambda path: (path.stat().st_mtime, str(path)))[-MOST_FILES:]


def by_round(series: dict[str, LoggedSeries], scores: frozenset[str]) -> tuple[dict[str, LoggedSeries], bool]:
    """Series over rounds, of which loggers know the steps that one client took; without the scores."""
    epochs = series.get("epoch", LoggedSeries())
    rounds = {step: int(value) for step, value in zip(epochs.steps, epochs.values)}
    found, all_rounds = {}, True
    for tag, own in series.items():
        if tag.removesuffix("_floor") in scores or tag == "epoch":
            continue
        known = all(step in rounds for step in own.steps) or not rounds
        all_rounds &= known
        found[tag] = LoggedSeries()
        times = own.times if len(own.times) == len(own.steps) else [None] * len(own.steps)
        for step, value, time in zip(own.steps, own.values, times):
            found[tag].add(rounds.get(step, step) if known else step, value, time)
    return found, all_rounds


def thinned(series: LoggedSeries, most: int) -> LoggedSeries:
    """At most `most` points: of each stretch of steps the mean, at its last step; all where there are no more."""
    if (count := len(series.steps)) <= most:
        return series
    parts = [slice(*ends) for ends in pairwise(round(place * count / most) for place in range(most + 1))]
    means = [sum(series.values[part]) / (part.stop - part.start) for part in parts]
    return LoggedSeries([series.steps[part.stop - 1] for part in parts], means)


def _scalar(value: Any) -> float:
    """The number of a summary's value: of TensorBoard's first form, or of a tensor of one float; NaN of others."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    return float(value.tensor.float_val[0]) if kind == "tensor" and len(value.tensor.float_val) == 1 else math.nan


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
