"""The contents of a run's folder as a report shows them; what is missing, with the reason."""

import base64
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fedgen.evaluation.records import Columns, ScoreRecord, unique
from fedgen.evaluation.runs.scores_file import MATRIX_PICTURE, NEAREST, PARTITION, RECIPE, SCORES_FILE, read_records
from fedgen.evaluation.runs.selection import one_kind, say_others
from fedgen.federated.left_out import Entry, read_left_out, shorten
from fedgen.federated.run_files import read_state
from fedgen.io.field_types import Between, fault
from fedgen.io.files import read_json, read_yaml
from fedgen.io.regular_files import is_regular, read_regular
from fedgen.reports.controls import Controls, read_controls
from fedgen.reports.logged import LoggedSeries, Logs, by_round

MOST_BYTES = 6_000_000  # of all pictures of a page, encoded
MOST_PIXELS = 50_000_000  # of one
LARGE_FILE = 50_000_000
PNG = b"\x89PNG\r\n\x1a\n"
QUALITY = 85  # of JPEG, which large pictures are turned into


class DataURI(str):
    """A picture as "data:image/png;base64,...", which pages show as it is, of any length."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Picture:
    name: str
    uri: DataURI
    round: int | None = None


class Pictures:
    """The pictures of one folder; those that are compressed are kept as long as their files stay as they are."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self._encoded: dict[tuple[str, int, int], DataURI] = {}

    def samples(self, folder: Path) -> tuple[list[Picture], list[str]]:
        """The grids of samples by round, -1 for the untrained model's, and what must be said of them."""
        paths = {}
        for path in filter(is_regular, (folder / "samples").glob("*.png")):
            if match := re.fullmatch(r"round=(\d{1,9})\.png", path.name):
                paths[int(match[1])] = path
            elif path.name == "before.png":
                paths[-1] = path
        rounds = sorted(paths)
        uris, remarks = self._encode([paths[round] for round in rounds])
        named = {round: "before training" if round < 0 else f"round {round}" for round in rounds}
        found = [Picture(named[round], uri, round) for round, uri in zip(rounds, uris) if uri]
        shown = fitting([len(picture.uri) for picture in found], self.most)
        if len(shown) < len(found):
            remarks.append(f"samples of {len(shown)} of {len(found)} rounds are shown, to keep the page small")
        return [found[place] for place in shown], remarks

    def one(self, path: Path) -> Picture | None:
        """One picture under its file's name; None if there is no such file, or it is no picture."""
        uris, _ = self._encode([path]) if is_regular(path) else ([DataURI()], [])
        return Picture(path.name, uris[0]) if uris[0] else None

    def _encode(self, paths: Sequence[Path]) -> tuple[list[DataURI], list[str]]:
        states = [path.stat() for path in paths]
        small = sum(state.st_size for state in states) * 4 > self.most * 3
        uris = []
        for path, state in zip(paths, states):
            key = str(path), state.st_mtime_ns, state.st_size
            if small and key not in self._encoded:
                self._encoded[key] = _read(path, small)
            uris.append(self._encoded[key] if small else _read(path, small))
        remarks = ["samples are compressed (JPEG), to keep the page small"] if small else []
        remarks += [f"{path.name} is not a PNG that can be shown" for path, uri in zip(paths, uris) if not uri]
        return uris, remarks


def fitting(sizes: Sequence[int], most: int) -> list[int]:
    """Evenly spaced places, the last among them, whose sizes add up to at most `most`; all where they do."""
    count = len(sizes)
    for number in range(count, 0, -1):
        places = sorted({round((place + 1) * count / number) - 1 for place in range(number)})
        if sum(sizes[place] for place in places) <= most:
            return places
    return []


def _read(path: Path, small: bool) -> DataURI:
    """The picture's data URI; "" for what is none."""
    content, kind = b"" if path.stat().st_size > LARGE_FILE else read_regular(path), "png"
    if not content.startswith(PNG):
        return DataURI()
    if small:
        from PIL import Image

        out, kind = io.BytesIO(), "jpeg"
        try:
            with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    return DataURI()
                picture.convert("RGB").save(out, "JPEG", quality=QUALITY)
        except Exception:  # what Pillow raises for damaged files may be anything
            return DataURI()
        content = out.getvalue()
    return DataURI(f"data:image/{kind};base64,{base64.b64encode(content).decode()}")


KEPT, REAL = "federation.json", "real.png"
CONCLUSIONS = "conclusions.txt"  # of an experiment, a line each
STORED = ("scores.json", "reference.json")  # of `fedgen evaluate --generated`, with clients or one reference
RESULTS, ROSTER = "results.json", "clients.json"
MOST_FIGURES = 12
MOST_CONCLUSIONS, LONGEST_CONCLUSION = 40, 400
LONGEST_RECIPE = 300_000  # characters


@dataclass
class Kept:
    versions: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    real: list[str] = field(default_factory=list)


def read_kept(folder: str | Path) -> Kept:
    """Read `federation.json`; nothing if there is no file."""
    path, kinds = Path(folder) / KEPT, Kept.__annotations__
    content = read_json(path) if path.exists() else {}
    wrong = not isinstance(content, dict)
    wrong = wrong or any(fault(content[name], kind) for name, kind in kinds.items() if name in content)
    for one in () if wrong else content.get("clients", []):
        values = (one.get("name"), one.get("role", ""), one.get("train"), one.get("held_out"), one.get("labels", []))
        wrong |= bool(fault(values, tuple[str, str, int, int, list[int]]))
    if wrong:
        raise ValueError(f"{path} is damaged: it holds something other than clients and versions; remove it")
    return Kept(**{name: content[name] for name in kinds if name in content})


@dataclass
class Contents:
    place: str
    folder: Path
    kind: str = "training"
    records: list[ScoreRecord] = field(default_factory=list)
    controls: Controls = field(default_factory=dict)
    recipe: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    series: dict[str, LoggedSeries] = field(default_factory=dict)
    are_rounds: bool = True
    samples: list[Picture] = field(default_factory=list)
    real: Picture | None = None
    figures: list[Picture] = field(default_factory=list)
    kept: Kept = field(default_factory=Kept)
    left_out: list[Entry] = field(default_factory=list)
    state: str = ""
    results: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def read_contents(run: str | Path, logs: Logs | None = None, pictures: Pictures | None = None) -> Contents:
    """Everything that a report shows of a run."""
    path, pictures = Path(run), pictures or Pictures()
    if not path.exists():
        raise FileNotFoundError(f"there is no {run}: give a run folder, or a file of scores")
    folder = path if path.is_dir() else path.parent
    found = Contents(str(run), folder)
    stored = next((folder / name for name in STORED if (folder / name).exists()), folder / STORED[0])
    if path.is_file() and path.name != SCORES_FILE:
        stored = path
    is_scored = (folder / SCORES_FILE).exists() and stored != path
    if not is_scored and (path.is_file() or stored.exists()):
        _read_stored(found, stored, pictures)
    elif not is_scored and (folder / RESULTS).exists():
        _read_results(found, pictures)
    elif is_scored or any(folder.glob("round=*.ckpt")):
        _read_training(found, logs or Logs(folder), pictures)
    else:
        raise FileNotFoundError(
            f"{run} has no scores to report: give a run folder (with {SCORES_FILE}), the file that `fedgen evaluate"
            " --generated` wrote, or an experiment's folder"
        )
    return found


def _read_training(found: Contents, logs: Logs, pictures: Pictures) -> None:
    folder = found.folder
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        records = read_records(folder / SCORES_FILE)
    found.records = one_kind(records, folder)
    with _noted(found, "controls"):
        found.controls = read_controls(folder.resolve(), found.records)
    others = say_others(records, found.records, folder)
    found.warnings += [text for text in (*(str(one.message) for one in raised), others) if text]
    if not found.records:
        found.missing["scores"] = "nothing was scored: train with the FederatedEvaluation callback"
    _read_recipe(found)
    _read_clients(found)
    _read_pictures(found, pictures)
    logs.refresh()
    columns = Columns.of(found.records)
    names = {(columns.score(one.split, one.embedding, one.score), one.aggregate) for one in found.records}
    scores = frozenset(mark.join(name) for name in names for mark in "_/")  # CSV's and TensorBoard's names
    found.series, found.are_rounds = by_round(logs.series, scores)
    found.warnings += logs.unread
    with _noted(found, "clients left out"):
        found.left_out = read_left_out(folder)
    with _noted(found, "bytes sent"):
        found.state = read_state(folder)
    _say_missing(found)


def _read_recipe(found: Contents) -> None:
    path = found.folder / RECIPE
    if not path.exists():
        found.missing["settings"] = "this run was trained in Python, which keeps no recipe"
        return
    settings: Any = {}
    with _noted(found, "settings"):
        settings = read_yaml(path)
    if isinstance(settings, dict):
        found.settings = settings
        with _noted(found, "settings"):
            found.recipe = read_regular(path).decode(errors="replace")
    if len(found.recipe) > LONGEST_RECIPE:
        found.recipe = ""
        found.missing["settings"] = f"{RECIPE} has more than {LONGEST_RECIPE:,} characters"


def _read_clients(found: Contents) -> None:
    partition, roster = found.folder / PARTITION, found.folder / ROSTER
    with _noted(found, "clients"):
        found.kept = read_kept(found.folder)
    if not found.kept.clients and partition.exists():
        from fedgen.clients.partitions import load_partition  # with torch, which most pages are written without

        with _noted(found, "clients"):
            saved = load_partition(partition)
            found.kept.clients = [_client(name, len(own)) for name, own in zip(saved.names, saved.assignment)]
            found.warnings.append("clients' sizes are those of the partition, training and held-out images together")
    if not found.kept.clients and roster.exists():
        with _noted(found, "clients"):
            found.kept.clients = _roster(roster)


def _client(name: str, train: int) -> dict[str, Any]:
    return {"name": name, "role": "", "train": train, "held_out": 0}


def _roster(path: Path) -> list[dict[str, Any]]:
    """The clients of a federation over Flower, as they introduced themselves."""
    try:
        found = [_client(str(one["name"]), one["examples"]) for one in read_json(path)]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r})") from error
    if wrong := fault([one["train"] for one in found], list[int]):
        raise ValueError(f"{path} is damaged: its clients' numbers of images {wrong}")
    return found


def _read_pictures(found: Contents, pictures: Pictures) -> None:
    found.samples, remarks = pictures.samples(found.folder)
    found.warnings += remarks
    found.real = pictures.one(found.folder / REAL)
    if not found.samples:
        found.missing["samples"] = "the folder has no grids of images (data without images, or grid=0)"
    elif found.real is None:
        found.missing["real images"] = "the folder keeps none (remote clients, or a run of an earlier release)"
    found.figures = _figures(pictures, [found.folder / name for name in (NEAREST, MATRIX_PICTURE)])


def _figures(pictures: Pictures, paths: Sequence[Path]) -> list[Picture]:
    return [picture for path in paths if (picture := pictures.one(path))]


def _read_stored(found: Contents, path: Path, pictures: Pictures) -> None:
    content = read_json(path)
    try:
        found.records = unique([ScoreRecord.from_json(record) for record in content["records"]])
        settings, skipped = dict(content.get("settings", {})), list(map(str, content.get("skipped", [])))
        sets = [(str(one["name"]), one.get("count")) for one in content.get("sets", [])]
        if wrong := fault([count for _, count in sets], list[Annotated[float, Between(0, 2**63)] | None]):
            raise ValueError(f"the sets' count {wrong}; give numbers of images, or null")
        found.kept.versions = {"fedgen": str(content.get("fedgen", "unknown"))}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} holds no scores of `fedgen evaluate --generated` ({error!r})") from error
    found.kind, found.settings = "images", settings
    found.kept.clients = [_client(name, int(count)) for name, count in sets[1:] if count is not None]
    found.warnings += [f"left out, as it cannot be read: {reason}" for reason in skipped]
    found.figures = _figures(pictures, [path.with_suffix(".png")])
    for name in ("curves over rounds", "losses", "samples"):
        found.missing[name] = "stored images were scored, and nothing was trained"


def _read_results(found: Contents, pictures: Pictures) -> None:
    content = read_json(found.folder / RESULTS)
    if not isinstance(content, dict) or not isinstance(content.get("numbers"), dict):
        raise ValueError(f"{found.folder / RESULTS} is no experiment's: it lacks its numbers")
    found.kind, found.results = "experiment", content
    found.settings = content["settings"] if isinstance(content.get("settings"), dict) else {}
    found.said = ["Its numbers and figure are below; its command prints what was expected of them."]
    if is_regular(path := found.folder / CONCLUSIONS):
        with _noted(found, "conclusions"):
            lines = filter(None, read_regular(path).decode(errors="replace").splitlines())
            found.said = [shorten(line, LONGEST_CONCLUSION) for line in lines][:MOST_CONCLUSIONS] or found.said
    if isinstance(versions := content.get("versions"), dict):
        found.kept.versions = {str(name): str(text) for name, text in versions.items()}
    found.figures = _figures(pictures, sorted(found.folder.glob("*.png"))[:MOST_FIGURES])
    found.below = sorted(str(path.parent) for path in found.folder.glob(f"*/**/{SCORES_FILE}"))
    found.missing["curves over rounds"] = "an experiment keeps numbers and a figure; its runs are in folders below it"


def _say_missing(found: Contents) -> None:
    series = found.series
    if not series:
        found.missing["losses, learning rates, time"] = (
            "the folder has neither TensorBoard's nor CSV logs (logger=False, or one that logs to another place)"
        )
    elif not any("lr" in name.lower().replace("-", "/").split("/") or name.startswith("lr") for name in series):
        found.missing["learning rates"] = "none were logged: Lightning's LearningRateMonitor logs them"
    if series and not any(own.times for own in series.values()):
        found.missing["time"] = "CSV logs keep no times; TensorBoard's do"
    if not any("memory" in name.lower() for name in series):
        found.missing["memory"] = "no logged value is called so: Lightning's DeviceStatsMonitor logs some"
    if not found.state and "bytes sent" not in found.missing:
        found.missing["bytes sent"] = "the folder has no state.txt, which FedAvgStrategy with RoundCheckpoint leaves"
    if not any("epsilon" in name for name in series):
        found.missing["epsilon"] = "nothing was logged of it: training without privacy, or without a logger"
    if not found.kept.versions:
        found.missing["versions"] = "the folder keeps none (a run of an earlier release)"
    if found.kept.clients and not found.kept.classes:
        found.missing["labels of clients"] = "not kept: data without labels, remote clients, or an earlier release"
    if not found.kept.clients:
        found.missing["sizes of clients"] = "the folder keeps neither who they are nor a partition"


@contextmanager
def _noted(found: Contents, what: str) -> Iterator[None]:
    """Notes among what is missing why a damaged file could not be read."""
    try:
        yield
    except (ValueError, OSError) as error:
        found.missing[what] = str(error)
