"""The page of a report: one HTML file that needs neither a network nor anything installed."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps

from fedgen import __version__
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.federated.left_out import describe, shorten
from fedgen.foreign_text import printable, printable_lines
from fedgen.io.files import atomic_write, require_writable
from fedgen.io.regular_files import open_regular
from fedgen.own_code import warn
from fedgen.reports import charts, side_by_side
from fedgen.reports.contents import Contents, Pictures, read_contents
from fedgen.reports.logged import Logs, thinned
from fedgen.reports.sentences import by_topic, in_lines, taken

PARTS = Path(__file__).parent / "page"
PAGE = "report.html"
LONGEST_TEXT, LONGEST_NAME = 1_000, 120
MOST_SERIES, MOST_POINTS, MOST_LOGGED = 300, 400, 60_000  # logged values by name, points of one, and of all of them
MOST_ROWS = 3_000  # of an experiment


def _readable(value: Any) -> Any:
    """Return what the template shows of a value: text without characters that act or hide; the page's parts as are."""
    return printable_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _readable_parts(value: Any) -> Any:
    """Plain values with all their texts, keys too, made readable and of bounded length; pictures as they are."""
    if isinstance(value, dict):
        return {_readable_parts(key): _readable_parts(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_readable_parts(part) for part in value]
    return printable(value, LONGEST_TEXT) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _dumps(value: Any, **options: Any) -> str:
    return json.dumps(_readable_parts(value), separators=(",", ":"), allow_nan=False, **options)


TEMPLATES = Environment(loader=FileSystemLoader(PARTS), autoescape=True, undefined=StrictUndefined, finalize=_readable)


@dataclass(frozen=True)
class HtmlPage:
    name: str
    scripts: tuple[str, ...]

    def render(self, data: Any, **shown: Any) -> str:
        """The page, which loads nothing from anywhere and runs its own script alone."""
        parts = ("report.css",), self.scripts
        texts = ["".join((PARTS / name).read_text(encoding="utf-8") for name in names) for names in parts]
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        policy = (
            f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}';"
            " base-uri 'none'; form-action 'none'"
        )
        return TEMPLATES.get_template(f"{self.name}.html.j2").render(
            mark=f"fedgen {self.name} {__version__}",
            policy=policy,
            style=texts[0],
            script=texts[1],
            data=htmlsafe_json_dumps(data, dumps=_dumps),
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=__version__,
            **shown,
        )

    def save(self, html: str, path: str | Path) -> Path:
        """Writes a page, whole or not at all; returns its path."""
        path = Path(path)
        self.require_own(path)
        with atomic_write(path) as file:
            file.write(html.encode("utf-8", errors="replace"))
        return path

    def require_own(self, path: Path) -> None:
        """Raises ValueError if a file is there that is no page of this kind; PermissionError if none can be made."""
        require_writable(path.parent)
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give a file to write, as {path / self.name}.html")
        if path.exists():
            with open_regular(path) as file:
                if f'content="fedgen {self.name}'.encode() not in file.read(2000):
                    raise ValueError(f"{path} is there already and is no {self.name}; choose another --output")


KIND = HtmlPage("report", ("theme.js", "charts.js", "report.js"))


@dataclass(frozen=True)
class Report:
    """One page; a notebook shows it in a frame.

    Args:
        html: the whole page.
        conclusions: of each run, by the name that it was given by.
    """

    html: str
    conclusions: dict[str, list[str]]

    def save(self, path: str | Path) -> Path:
        """Writes the page, whole or not at all; returns its path.

        Raises:
            ValueError: if there is another file, which is no report.
        """
        return KIND.save(self.html, path)

    def _repr_html_(self) -> str:
        """The page in a separate frame, whose scripts reach nothing of the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.html)}" title="fedgen report"'
            ' style="width:100%;height:80vh;border:1px solid #888"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Report({', '.join(self.conclusions)}; {len(self.html) / 1e6:.2g} MB)"


def report(*runs: str | Path) -> Report:
    """The page of one run, or of several side by side.

    Args:
        runs: folders of runs or experiments, or files of `fedgen evaluate --output`.

    Raises:
        FileNotFoundError: if one has neither scores nor results.
        ValueError: if none is given, or one's scores are damaged.

    Examples:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import fedgen
        >>> score = {"score": "kid", "aggregate": "all", "value": 1.0, "standard_error": 0.1, "round": 0}
        >>> score |= {"split": "train"}
        >>> score |= {"embedding": "pixels", "embedding_fingerprint": "0", "reference": "digits", "num_generated": 100}
        >>> score |= {"num_clients": 2, "seed": 0, "weights": "examples"}
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = Path(folder, "scores.jsonl").write_text(json.dumps(score))
        >>> fedgen.report(folder).save(folder / "report.html").name  # a notebook shows the report itself
        'report.html'
    """
    if not runs:
        raise ValueError("give the folder of at least one run")
    return render([read_contents(run) for run in runs])


def write_report(runs: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Writes the page of runs, atomically; returns its path.

    Args:
        runs: as for `report`.
        output: the file; `report.html` in the one run's folder, or here for several runs, by default.

    Raises:
        FileNotFoundError: if a run has neither scores nor results.
        ValueError: if the output is another file than a report.
    """
    if output is None:
        first = Path(runs[0]) if len(runs) == 1 else Path(".")
        output = (first if first.is_dir() else first.parent) / PAGE
    KIND.require_own(Path(output))
    return report(*runs).save(output)


def render(runs: Sequence[Contents], live: bool = False) -> Report:
    told = [
        {} if run.said else by_topic(run.records, run.place, bool(run.recipe), not live, run.controls) for run in runs
    ]
    quiet = [replace(run, records=_without_remarks(run.records, own)) for run, own in zip(runs, told)]
    names = [shorten(name, LONGEST_NAME) for name in side_by_side.short_names(runs)]
    axes = side_by_side.axes_of(runs) if len(runs) > 1 else {}
    compared = side_by_side.side_by_side(runs, axes) if len(runs) > 1 else None
    page = KIND.render(
        {
            "live": live,
            "runs": [_data(run, name) for name, run in zip(names, quiet)],
            "axes": side_by_side.chart_rows(axes),
        },
        title=", ".join(shorten(run.folder.resolve().name or run.place, LONGEST_NAME) for run in runs),
        live=live,
        runs=[_shown(run, name, own) for name, run, own in zip(names, quiet, told)],
        compared=compared,
    )
    return Report(page, {shorten(run.place, LONGEST_NAME): run.said or in_lines(own) for run, own in zip(runs, told)})


def _shown(run: Contents, name: str, told: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what the template shows of a run."""
    found = list(charts.numbers(run.results.get("numbers", {})))
    return vars(run) | {
        "name": name,
        "conclusions": [_in_parts(line) for line in run.said],
        "verdict": {about: [_in_parts(paragraph) for paragraph in own] for about, own in told.items()},
        "tables": charts.score_parts(run.records),
        "warnings": [shorten(text, 600) for text in dict.fromkeys(run.warnings)],
        "left_out": describe(run.left_out),
        "missing": {name: shorten(reason, 400) for name, reason in run.missing.items()},
        "facts": charts.facts(run),
        "real_clients": [shorten(name, LONGEST_NAME) for name in run.kept.real],
        "experiment": shorten(str(run.results.get("experiment", "")), LONGEST_NAME),
        "numbers": found[:MOST_ROWS],
        "numbers_left": max(0, len(found) - MOST_ROWS),
        "series_left": max(0, len(run.series) - MOST_SERIES),
    }


def _without_remarks(records: Sequence[ScoreRecord], told: Mapping[str, Sequence[str]]) -> list[ScoreRecord]:
    """The records without the remarks that the page's cautions repeat."""
    cautions = " ".join(told.get("Caution", ()))
    kept = {note: "; ".join(p for p in note.split("; ") if p not in cautions) for note in {one.note for one in records}}
    return [one if kept[one.note] == one.note else replace(one, note=kept[one.note]) for one in records]


def _in_parts(line: str) -> list[tuple[str, bool]]:
    """A sentence in parts, and whether a part is a command (what stands between backticks)."""
    parts = printable(line, LONGEST_TEXT).split("`")
    return [(part, place % 2 == 1) for place, part in enumerate(parts) if part]


def _data(run: Contents, name: str) -> dict[str, Any]:
    """Return what scripts draw of a run."""
    most = max(20, min(MOST_POINTS, MOST_LOGGED // max(1, len(run.series))))
    series = {name: thinned(own, most) for name, own in list(run.series.items())[:MOST_SERIES]}
    column, chosen = taken(run.records) or ("", None)
    return {
        "name": name,
        "first": {"score": column.rpartition("_")[0], "round": chosen and chosen.round},  # that the page opens with
        "panels": charts.panels(run.records, run.controls),
        "clients": charts.clients(run),
        "classes": run.kept.classes,
        "samples": [{"name": one.name, "round": one.round, "uri": one.uri} for one in run.samples],
        "unit": "round" if run.are_rounds else "logged step",
        "series": [
            {
                "name": name,
                "steps": own.steps,
                "values": [charts.plain(value, 6) for value in own.values],
                "mean": len(own.steps) < len(run.series[name].steps),
            }
            for name, own in series.items()
        ],
    }


class RunPage:
    """`report.html` of a run that trains, written anew after evaluations; what was read of its logs is kept."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.path = Path(folder), Path(folder) / PAGE
        self._logs, self._pictures = Logs(self.folder), Pictures()

    def write(self, live: bool = False) -> bool:
        """Write the page, whole or not at all; where it cannot be, warn and go on."""
        if not (self.folder / SCORES_FILE).exists():
            return False
        try:
            render([read_contents(self.folder, self._logs, self._pictures)], live).save(self.path)
        except Exception as error:  # whatever it is: days of training do not end for a page
            warn(f"{self.path} is not written: {type(error).__name__}: {error}")
            return False
        return True
