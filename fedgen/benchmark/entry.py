"""Entries: one JSON file a cell, with its recipe, every seed's scores and costs, where it was made, and its claims."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from fedgen import __version__
from fedgen.benchmark.suite import AUDIT, BESIDE, NUMBER, SPLIT, Slot
from fedgen.class_paths import is_class_path
from fedgen.evaluation.names import SELECT, SignalName
from fedgen.evaluation.records import ScoreRecord
from fedgen.foreign_text import printable
from fedgen.io.field_types import Between, Fits, Length, Text, fault
from fedgen.io.files import read_json

FORMAT = 2  # of the file
FOLDER = "entries"  # of a folder of results
MOST_SEEDS, MOST_RECORDS, MOST_CLIENTS = 100, 1000, 10_000
LONGEST_PICTURE = 2_000_000  # characters
LARGEST_SIDE = 4096  # of images in pixels
_PICTURE = re.compile(r"(data:image/(png|jpeg);base64,[A-Za-z0-9+/]*={0,2})?")
LIBRARIES = ("torch", "lightning", "numpy")
_Name = Annotated[str, Text(200, 1)]
_Word = Annotated[str, Text(200)]
_Commit = Annotated[str, Fits(re.compile(r"[0-9a-f]{40}\+?").fullmatch, "commit of 40 hex digits")]
_Bytes = Annotated[int, Between(0)]
_Real = Annotated[float, Between(0)]
_Signed = Annotated[float, Between(-1, 1)]
_DataUri = Annotated[str, Text(LONGEST_PICTURE), Fits(_PICTURE.fullmatch, "picture in a data URI")]


class Machine(TypedDict):
    """The machine: what numbers and seconds may depend on, and nothing that names its owner."""

    system: _Word
    architecture: _Word
    processor: _Word
    cores: int
    memory: int


class Origin(TypedDict):
    """The origin of an entry; `commit` is None outside a checkout, and ends in "+" where files were changed."""

    fedgen: _Word
    commit: _Commit | None
    versions: dict[_Word, _Word]
    machine: Machine


class RunCost(TypedDict):
    turns: int  # of all clients
    message_bytes: _Bytes  # that a client sends after one
    client_seconds: _Real  # of all turns one after the other, with the server's part of rounds
    peak_memory: _Bytes  # of the process, scoring included


class IntervalForm(TypedDict):
    """An estimate with its interval at 95 %."""

    value: _Signed
    low: _Signed
    high: _Signed


class AttackForm(TypedDict):
    """Membership inference on one client: the AUC and the advantage of `AttackStrength`."""

    name: _Name
    pairs: Annotated[int, Between(1)]
    auc: IntervalForm
    advantage: IntervalForm


class MembershipForm(TypedDict):
    signal: SignalName
    clients: Annotated[list[AttackForm], Length(MOST_CLIENTS, 1)]


class RunForm(TypedDict):
    """One seed's run: the records of its last round and of the floor, on held-out images; audits on training images."""

    seed: int
    records: Annotated[list[dict[str, Any]], Length(MOST_RECORDS, 1)]
    membership: MembershipForm
    costs: RunCost


class Claims(TypedDict):
    """The figures that an entry is ranked and shown by: of runs' means over seeds, but the largest memory."""

    number: _Real | None  # this and the next three are those of `claims.Number`
    low: _Real | None
    high: _Real | None
    parts: dict[_Name, _Real]
    beside: dict[_Name, float]  # other scores in all in the first embedding, of real images too ("authenticity floor")
    attack: IntervalForm  # the advantage of membership inference
    sent_bytes: _Real
    client_seconds: _Real
    peak_memory: _Bytes


class ImagesForm(TypedDict):
    """The fields of `OwnImages`."""

    image_size: Annotated[int, Between(1, LARGEST_SIDE)]
    channels: Annotated[int, Between(1, 3)]
    num_images: Annotated[int, Between(1)]
    partition: Literal["natural", "by-class"]
    num_clients: Annotated[int, Between(1, MOST_CLIENTS)]


class OwnForm(TypedDict):
    """A class in the place of a suite's generator, data set or algorithm; `images` are those of a data set."""

    class_path: Annotated[_Name, Fits(is_class_path, "class path")]
    slot: Slot
    images: NotRequired[ImagesForm]


class EntryForm(TypedDict):
    """The file of an entry."""

    format: int
    suite: _Name
    cell: _Name  # its name
    beside: _Name  # the suite's cell whose other parts it has
    own: OwnForm | None
    recipe: dict[str, Any]
    recipe_hash: _Name
    seeds: Annotated[list[int], Length(MOST_SEEDS, 1)]
    provenance: Origin
    runs: Annotated[list[RunForm], Length(MOST_SEEDS, 1)]
    claims: Claims
    samples: _DataUri  # a picture of the first seed's images
    nearest: _DataUri  # of those that are nearest to training images


@dataclass(frozen=True)
class Entry:
    """An entry whose form is right; whether its claims are is for `claims.check`."""

    form: EntryForm
    records: Sequence[Sequence[ScoreRecord]]  # of each run, in the file's order
    path: Path  # of the file

    @property
    def name(self) -> str:
        return self.form["cell"]

    @property
    def claims(self) -> Claims:
        return self.form["claims"]

    @property
    def task(self) -> tuple[str, str]:
        return self.form["suite"], "/".join(self.form["cell"].split("/")[:2])

    @property
    def parts(self) -> tuple[str, str]:
        _, _, generator, algorithm = self.form["beside"].split("/")
        if (own := self.form["own"]) is None or own["slot"] == "data":
            return generator, algorithm
        return (own["class_path"], algorithm) if own["slot"] == "model" else (generator, own["class_path"])


def read_entry(path: Path) -> Entry:
    form = read_json(path)
    found = form.get("format") if isinstance(form, dict) else None
    if type(found) is not int or found != FORMAT:
        raise ValueError(f"{path} is no entry of the benchmark in format {FORMAT}: its format is {found!r}")
    if wrong := fault(form, EntryForm):
        raise ValueError(f"{path} is no entry of the benchmark: it {wrong}")
    if len(form["beside"].split("/")) != 4:
        raise ValueError(f"{path} is no entry of the benchmark: {printable(form['beside'])!r} names no cell")
    try:
        records = [[ScoreRecord.from_json(one) for one in run["records"]] for run in form["runs"]]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Entry(form, records, path)


def entry_files(places: Sequence[Path]) -> list[Path]:
    """The files of entries in folders of results, or given one by one."""
    found: list[Path] = []
    for place in places:
        if place.is_file():
            found.append(place)
            continue
        inside = sorted((place / FOLDER if (place / FOLDER).is_dir() else place).glob("*.json"))
        if not inside:
            raise FileNotFoundError(
                f"{place} has no entries; give a folder that `fedgen benchmark run` wrote, or an entry's file"
            )
        found += inside
    return list(dict.fromkeys(found))


def measured(records: Sequence[ScoreRecord], last_round: int) -> list[ScoreRecord]:
    """The records that an entry keeps of a run: of the last round and of the floor, avg and all."""
    wanted = {SPLIT: (NUMBER, *BESIDE), SELECT: AUDIT}  # scores on held-out images, audits on those trained on
    return [
        record
        for record in records
        if record.score in wanted.get(record.split, ())
        and record.aggregate in ("avg", "all")
        and ((record.is_floor and record.round is None) or (record.is_model and record.round == last_round))
    ]


def provenance() -> Origin:
    libraries = {name: version(name) for name in LIBRARIES}
    machine: Machine = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    versions = {"python": platform.python_version(), **libraries}
    return {"fedgen": __version__, "commit": _commit(), "versions": versions, "machine": machine}


def _commit() -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    words = (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
    try:
        head, changed = (
            subprocess.check_output(["git", "-C", root, *own], text=True, stderr=subprocess.DEVNULL).strip()
            for own in words
        )
    except (OSError, subprocess.CalledProcessError):  # there is no git, or no commit
        return None
    return head + ("+" if changed else "")


def _processor() -> str:
    """The processor's name, as Linux has it; else what Python knows."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
