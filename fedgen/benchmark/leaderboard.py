"""The leaderboard: entries of a task in order, ranks where intervals allow one, answers to a suite's questions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from fedgen.benchmark.claims import AGGREGATES, check
from fedgen.benchmark.entry import Entry, entry_files, read_entry
from fedgen.benchmark.suite import AUDIT, BESIDE, NUMBER, SUITES
from fedgen.evaluation.audit.attack_strength import IntervalEstimate
from fedgen.foreign_text import printable
from fedgen.io.files import in_bytes
from fedgen.reports.contents import MOST_BYTES, fitting
from fedgen.reports.page import HtmlPage

UNTOLD = "cannot be told"


@dataclass(frozen=True)
class Standing:
    """Entries of one task, the best number first; those without a number last."""

    suite: str
    task: str
    entries: Sequence[Entry]

    def ranks(self, entry: Entry) -> tuple[int, int]:
        """The best and the worst rank that an entry may have."""
        ahead = sum(is_ahead(other, entry) for other in self.entries)
        behind = sum(is_ahead(entry, other) for other in self.entries)
        return 1 + ahead, len(self.entries) - behind

    def rank(self, entry: Entry) -> str:
        """The rank in words: "1", "2 to 3", or that it cannot be told."""
        best, worst = self.ranks(entry)
        if best == worst:
            return str(best)
        return UNTOLD if (best, worst) == (1, len(self.entries)) else f"{best} to {worst}"


@dataclass(frozen=True)
class SuiteAnswer:
    suite: str
    question: str
    order: str


def is_ahead(one: Entry, other: Entry) -> bool:
    """Whether an entry's whole interval is better than another's; where one has none it cannot be told."""
    high, low = one.claims["high"], other.claims["low"]
    return high is not None and low is not None and high < low


def read_all(places: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """Entries whose claims hold, and why others are refused; of one cell the first counts."""
    entries: dict[tuple[tuple[str, str], str], Entry] = {}
    refused: list[str] = []
    for path in entry_files(places):
        try:
            entry = read_entry(path)
            check(entry)
        except ValueError as error:
            refused.append(str(error))
            continue
        same = entries.setdefault((entry.task, entry.name), entry)
        if same is not entry:
            refused.append(f"entry {entry.name} ({entry.path}) is refused: {same.path} is of the same cell")
    return list(entries.values()), refused


def standings_of(entries: Sequence[Entry]) -> list[Standing]:
    tasks = dict.fromkeys(entry.task for entry in entries)
    return [Standing(*task, sorted((one for one in entries if one.task == task), key=_place)) for task in tasks]


def answers_of(entries: Sequence[Entry]) -> list[SuiteAnswer]:
    """The answers to the suites' questions, of those with two or more of their cells, see `ORDER`."""
    answers = []
    for suite in dict.fromkeys(entry.form["suite"] for entry in entries):
        known = {entry.name: entry for entry in entries if entry.form["suite"] == suite}
        for question, cells in SUITES[suite].questions.items():
            found = sorted((known[cell.name] for cell in cells if cell.name in known), key=_place)
            words = [" / ".join(entry.parts) for entry in found[:1]]
            for better, worse in pairwise(found):
                words.append(f"{'<' if is_ahead(better, worse) else '~'} {' / '.join(worse.parts)}")
            if len(found) > 1:
                answers.append(SuiteAnswer(suite, question, " ".join(words)))
    return answers


def _place(entry: Entry) -> tuple[bool, float, str]:
    value = entry.claims["number"]
    return value is None, value or 0.0, entry.name


HEADINGS = ("rank", "generator", "algorithm", "number", "95 % interval", "avg", "all", "sent", "client s", "memory")
LEGEND = (
    "number: FID over that of real images, geometric mean over embeddings, avg and all; 1 is as good as real images",
    "rank: beyond intervals; sent: by all clients of a run; client s: of all clients' turns; memory: of the process",
)
ORDER = "<: ahead, the intervals do not overlap; ~: cannot be told apart"


def cells_of(standing: Standing, entry: Entry) -> tuple[str, ...]:
    claims = entry.claims
    low, high, parts = claims["low"], claims["high"], claims["parts"]
    return (
        standing.rank(entry),
        *(printable(part, 80) for part in entry.parts),
        figure(claims["number"]),
        "none" if low is None or high is None else f"{low:.3g} to {high:.3g}",
        *(figure(parts.get(name)) for name in ("avg", "all")),
        in_bytes(round(claims["sent_bytes"])),
        f"{claims['client_seconds']:.3g}",
        in_bytes(claims["peak_memory"]),
    )


def figure(value: float | None) -> str:
    """A number in three digits; "none" for none."""
    return "none" if value is None else f"{value:.3g}"


def task_lines(standing: Standing) -> tuple[str, str]:
    """Lines on what entries of a task share: the training that each gets, and real images' scores."""
    first = standing.entries[0]
    trainer, seeds = first.form["recipe"]["trainer"], len(first.form["seeds"])
    strategy = trainer["strategy"]["init_args"]
    clients = first.records[0][0].num_clients
    cohort = "all" if strategy["cohort_size"] is None else strategy["cohort_size"]
    training = f"{seeds} seed{'s' * (seeds > 1)}; {trainer['max_epochs']} rounds of"
    training += f" {strategy['communication_interval']} local iterations, {cohort} of {clients} clients in each"
    floors: dict[str, dict[str, list[float]]] = {}
    for record in (one for run in first.records for one in run if one.is_floor and one.score == NUMBER):
        floors.setdefault(record.embedding, {}).setdefault(record.aggregate, []).append(record.value)
    both = {one: [figure(statistics.mean(own[name])) for name in AGGREGATES] for one, own in floors.items()}
    shown = ", ".join(f"{embedding} {' and '.join(own)}" for embedding, own in both.items())
    return training, f"FID of real images in avg and all: {shown}"


def standing_table(standing: Standing) -> Table:
    title = escape(f"{standing.suite}: {standing.task}")
    caption = escape("\n".join([*task_lines(standing), *LEGEND]))
    table = Table(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    table.add_column("rank", justify="right", max_width=6)
    for heading in ("generator\nalgorithm", "number\ninterval", *HEADINGS[5:]):
        table.add_column(heading, justify="left" if "\n" in heading else "right", overflow="fold")
    for entry in standing.entries:
        rank, generator, algorithm, number, interval, *others = map(escape, cells_of(standing, entry))
        table.add_row(rank, f"{generator}\n{algorithm}", f"{number}\n{interval}", *others)
    return table


def leaderboard_texts(entries: Sequence[Entry]) -> list[RenderableType]:
    tables: list[RenderableType] = [standing_table(standing) for standing in standings_of(entries)]
    lines = [f"{answer.question}\n  {answer.order}" for answer in answers_of(entries)]
    return [*tables, *map(escape, [*lines, ORDER] if lines else [])]


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
    standings = standings_of(entries)
    pictured = [one for standing in standings for one in standing.entries if one.form["samples"] or one.form["nearest"]]
    sizes = [len(entry.form["samples"]) + len(entry.form["nearest"]) for entry in pictured]
    shown = [pictured[place].name for place in fitting(sizes, MOST_BYTES)]  # whose pictures a page has room for
    suites = dict.fromkeys(standing.suite for standing in standings)
    beside = f"{', '.join(BESIDE)}: in all, in the first embedding; more is better"
    return KIND.render(
        {},
        title=f"Federated generation: {', '.join(suites) or 'no entries'}",
        legend=[*LEGEND, beside, ABOUT_AUDIT, ABOUT_ATTACK],
        answers=answers_of(entries),
        order=ORDER,
        refused=[printable(reason, 1000) for reason in refused],
        headings=[*HEADINGS, *BESIDE, *AUDIT, ATTACK],
        origins=ORIGINS,
        standings=[_shown(standing, shown) for standing in standings],
    )


def write_leaderboard(entries: Sequence[Entry], refused: Sequence[str], path: Path) -> Path:
    KIND.require_own(path)
    return KIND.save(page_of(entries, refused), path)


def default_page(places: Sequence[Path]) -> Path:
    """The place of the page: in the folder of results, or beside the entry, that is named first."""
    first = places[0]
    return (first if first.is_dir() else first.parent) / f"{KIND.name}.html"


def _shown(standing: Standing, pictured: Sequence[str]) -> dict[str, Any]:
    found = {" / ".join(entry.parts): entry.form for entry in standing.entries if entry.name in pictured}
    return {
        "title": f"{standing.suite}: {standing.task}",
        "shared": task_lines(standing),
        "rows": [_row(standing, entry) for entry in standing.entries],
        "pictures": [{"name": name, "uri": uri} for name, form in found.items() if (uri := form["samples"])],
        "nearest": [{"name": name, "uri": uri} for name, form in found.items() if (uri := form["nearest"])],
        "attacks": _attacks(standing),
        "origins": [_origin(entry) for entry in standing.entries],
    }


def _row(standing: Standing, entry: Entry) -> list[dict[str, Any]]:
    """The cells of an entry, each with the number that it is sorted by: "" for none, None for a text."""
    claims = entry.claims
    more = [claims["beside"].get(name) for name in (*BESIDE, *AUDIT)]
    texts = [*cells_of(standing, entry), *map(figure, more), str(IntervalEstimate(**claims["attack"]))]
    for score in AUDIT:
        if (floor := claims["beside"].get(f"{score} floor")) is not None:
            texts[len(HEADINGS) + (*BESIDE, *AUDIT).index(score)] += f" ({figure(floor)})"
    parts = (claims["parts"].get(name) for name in ("avg", "all"))
    costs = claims["sent_bytes"], claims["client_seconds"], claims["peak_memory"]
    known = (claims["number"], claims["low"], *parts, *costs, *more, claims["attack"]["value"])
    numbers = [standing.ranks(entry)[0], None, None, *("" if value is None else value for value in known)]
    return [{"text": text, "sort": number} for text, number in zip(texts, numbers, strict=True)]


def _attacks(standing: Standing) -> dict[str, Any]:
    """The attack on every client by the first seed's models: a row a client, which the entries of a task share."""
    rows: dict[str, list[str]] = {}
    headings = ["client"]
    for place, entry in enumerate(standing.entries):
        membership = entry.form["runs"][0]["membership"]
        headings.append(f"{' / '.join(entry.parts)}, by its {membership['signal']}")
        for one in membership["clients"]:
            row = rows.setdefault(one["name"], [printable(one["name"], 80), *[""] * len(standing.entries)])
            row[place + 1] = str(IntervalEstimate(**one["advantage"]))
    return {"headings": headings, "rows": list(rows.values())}


def _origin(entry: Entry) -> list[str]:
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
