"""The leaderboard's page: one file with sortable tables, samples, answers, and where the runs were made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.benchmark.claims import floor_of
from fedgen.benchmark.entry import Entry
from fedgen.benchmark.standings import Standing, answers_of, standings_of
from fedgen.benchmark.standings_table import HEADINGS, LEGEND, ORDER, cells_of, figure, task_lines
from fedgen.benchmark.suite import AUDIT, BESIDE
from fedgen.evaluation.audit.attack_strength import IntervalEstimate
from fedgen.foreign_text import printable
from fedgen.io.files import in_bytes
from fedgen.reports.contents import MOST_BYTES, fitting
from fedgen.reports.page import HtmlPage

KIND = HtmlPage("leaderboard", ("theme.js", "leaderboard.js"))
ABOUT_AUDIT = (
    "audits of copies of training images, in all, in the first embedding: memorisation is 0.5 without memory and 1 for"
    " copies; authenticity is lower and fld higher for copies; mifid is FID, larger where images lie nearer to training"
    " images than a threshold, as real ones do, too; in brackets: that of real images, which fld of older entries lacks"
)
ABOUT_ATTACK = (
    "attack: the advantage of membership inference, true less false positive rate, the mean over clients and seeds with"
    " its 95 % interval; 0 for a model that tells nothing of who was trained on, 1 for one that tells all"
)
ATTACK = "attack"
ORIGINS = ("entry", "seeds", "fedgen", "commit", "torch", "processor", "cores", "memory", "recipe")


def page_of(entries: Sequence[Entry], refused: Sequence[str]) -> str:
    """The page of entries.

    Args:
        entries: whose claims hold.
        refused: why others are not among them.
    """
    standings = standings_of(entries)
    shown = _fitting([entry for standing in standings for entry in standing.entries])
    suites = dict.fromkeys(standing.suite for standing in standings)
    return KIND.render(
        {},
        title=f"Federated generation: {', '.join(suites) or 'no entries'}",
        legend=[
            *LEGEND,
            f"{', '.join(BESIDE)}: in all, in the first embedding; more is better",
            ABOUT_AUDIT,
            ABOUT_ATTACK,
        ],
        answers=answers_of(entries),
        order=ORDER,
        refused=[printable(reason, 1000) for reason in refused],
        headings=[*HEADINGS, *BESIDE, *AUDIT, ATTACK],
        origins=ORIGINS,
        standings=[_shown(standing, shown) for standing in standings],
    )


def write_leaderboard(entries: Sequence[Entry], refused: Sequence[str], path: Path) -> Path:
    """Writes the page, whole or not at all; returns its path.

    Raises:
        ValueError: if there is another file, which is no leaderboard.
    """
    KIND.require_own(path)
    return KIND.save(page_of(entries, refused), path)


def default_page(places: Sequence[Path]) -> Path:
    """The place of the page: in the folder of results, or beside the entry, that is named first."""
    first = places[0]
    return (first if first.is_dir() else first.parent) / f"{KIND.name}.html"


def _shown(standing: Standing, pictured: Sequence[str]) -> dict[str, Any]:
    """Return what the template shows of one task.

    Args:
        standing: of the task.
        pictured: names of entries whose pictures find room.
    """
    found = [entry for entry in standing.entries if entry.name in pictured]
    return {
        "title": f"{standing.suite}: {standing.task}",
        "shared": task_lines(standing),
        "rows": [_row(standing, entry) for entry in standing.entries],
        "pictures": _pictures({" / ".join(entry.parts): entry.form["samples"] for entry in found}),
        "nearest": _pictures({" / ".join(entry.parts): entry.form["nearest"] for entry in found}),
        "attacks": _attacks(standing),
        "origins": [_origin(entry) for entry in standing.entries],
    }


def _row(standing: Standing, entry: Entry) -> list[dict[str, Any]]:
    """The cells of an entry, each with the number that it is sorted by: "" for none, None for a text."""
    claims = entry.claims
    more = [claims["beside"].get(name) for name in (*BESIDE, *AUDIT)]
    texts = [*cells_of(standing, entry), *map(figure, more), str(IntervalEstimate(**claims["attack"]))]
    for score in AUDIT:
        if (floor := claims["beside"].get(floor_of(score))) is not None:
            texts[len(HEADINGS) + (*BESIDE, *AUDIT).index(score)] += f" ({figure(floor)})"
    numbers = [
        standing.ranks(entry)[0],
        None,
        None,
        *(_sorted_by(value) for value in (claims["number"], claims["low"])),
        *(_sorted_by(claims["parts"].get(name)) for name in ("avg", "all")),
        *(claims[name] for name in ("sent_bytes", "client_seconds", "peak_memory")),
        *map(_sorted_by, more),
        claims["attack"]["value"],
    ]
    return [{"text": text, "sort": number} for text, number in zip(texts, numbers, strict=True)]


def _attacks(standing: Standing) -> dict[str, Any]:
    """The attack on every client by the first seed's models: a row a client, which the entries of a task share."""
    found = [{one["name"]: one for one in entry.form["runs"][0]["membership"]["clients"]} for entry in standing.entries]
    names = dict.fromkeys(name for clients in found for name in clients)
    rows = [
        [
            printable(name, 80),
            *(str(IntervalEstimate(**own[name]["advantage"])) if name in own else "" for own in found),
        ]
        for name in names
    ]
    signals = [entry.form["runs"][0]["membership"]["signal"] for entry in standing.entries]
    headings = [f"{' / '.join(entry.parts)}, by its {signal}" for entry, signal in zip(standing.entries, signals)]
    return {"headings": ["client", *headings], "rows": rows}


def _pictures(uris: Mapping[str, str]) -> list[dict[str, str]]:
    """The pictures that there are, by the names of their entries."""
    return [{"name": name, "uri": uri} for name, uri in uris.items() if uri]


def _sorted_by(value: float | None) -> float | str:
    return "" if value is None else value


def _origin(entry: Entry) -> list[str]:
    """The cells of an entry's provenance, by `ORIGINS`."""
    form, made = entry.form, entry.form["provenance"]
    machine = made["machine"]
    return [
        " / ".join(entry.parts),
        ", ".join(map(str, form["seeds"])),
        made["fedgen"],
        made["commit"] or "none",
        made["versions"].get("torch", "unknown"),
        machine["processor"],
        str(machine["cores"]),
        in_bytes(machine["memory"]),
        form["recipe_hash"][:8],
    ]


def _fitting(entries: Sequence[Entry]) -> list[str]:
    """The names of entries whose pictures are together small enough for a page."""
    pictured = [entry for entry in entries if entry.form["samples"] or entry.form["nearest"]]
    places = fitting([len(entry.form["samples"]) + len(entry.form["nearest"]) for entry in pictured], MOST_BYTES)
    return [pictured[place].name for place in places]
