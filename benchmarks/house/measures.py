"""The measures of the package's shape, each with its goal and, where that is not met, the reason why not."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.house.journeys import JOURNEYS, ROOT, Journey
from benchmarks.house.source_counts import Lines, asked_by_name, classes, count_tests, lines_of, naming, trees
from fedgen.experiments import EXPERIMENTS

TESTS = ROOT.parent / "tests"
RECURRING = {"__init__", "__main__", "base"}  # names of files that say the same in every folder
GOALS = {"step": (12, 1300), "score": (12, 2000), "update": (7, 900)}  # files and lines of the journeys
PROBE = "coverage"  # a score whose name is no other word of the package


@dataclass(frozen=True)
class Measure:
    """One measure of the package's shape.

    Args:
        name: what is counted.
        today: the count.
        goal: the largest count that is good; "" where there is none.
        is_met: whether the count is within the goal.
        reason: the cost of meeting a goal that is not met, and why it is worth less than what it would displace.
    """

    name: str
    today: str
    goal: str
    is_met: bool
    reason: str = ""

    @classmethod
    def of_number(cls, name: str, today: int, goal: int, of: str = "", reason: str = "") -> "Measure":
        """Return the measure of one number.

        Args:
            name: what is counted.
            today: the count.
            goal: the largest that is good.
            of: what the count is of, where it is that of one thing.
            reason: as above.
        """
        return cls(name, f"{today} ({of})" if of else str(today), str(goal), today <= goal, reason)


def measures(journeys: Mapping[str, Journey]) -> list[Measure]:
    """Every measure as it is today.

    Args:
        journeys: of `trace`.
    """
    return [*of_journeys(journeys), *of_shape(), *of_names(), *of_lines()]


def of_journeys(journeys: Mapping[str, Journey]) -> Iterator[Measure]:
    """Files and lines that somebody reads who follows one thing through the kit."""
    joined = {
        "step": "rules for what becomes of a client's tensors, counters, switches and objects of its own",
        "score": "the distance, its standard errors, its remark on few images, the records and the writing of files",
        "update": "what clients keep, what travels, what the aggregator does and what the server's optimizer does",
    }
    for name, said in JOURNEYS.items():
        one, (files, lines) = journeys[name], GOALS[name]
        reason = (
            f"The {one.lines} lines are within their goal; they are {one.lines // one.files} a file, as a file holds"
            f" one concept. {files} files would join {joined[name]}: fewer to open, and each with several things to"
            " understand at once."
        )
        yield Measure(
            f"files / lines {said}",
            f"{one.files} / {one.lines}",
            f"{files} / {lines}",
            one.files <= files and one.lines <= lines,
            reason if one.lines <= lines else "",
        )


def of_shape() -> Iterator[Measure]:
    """The largest folder, class and file."""
    sources = trees(ROOT)
    fullest, most = Counter(path.parent.as_posix() for path in sources).most_common(1)[0]
    own = [node for path, node in classes(sources) if path.parts[0] != "experiments"]
    largest = max(own, key=lines_of)
    methods = sum(isinstance(node, ast.FunctionDef) for node in largest.body)
    yield Measure.of_number("most files in one folder", most, 16, fullest)
    found = f"{largest.name}, {methods} methods"
    yield Measure.of_number("lines of the largest class", lines_of(largest), 300, found)
    strategy = (ROOT / "federated" / "strategy.py").read_text(encoding="utf-8")
    yield Measure.of_number("lines of strategy.py", len(strategy.splitlines()), 300)


def of_names() -> Iterator[Measure]:
    """Names that stand in several places, and protocols that nobody declared."""
    sources = trees(ROOT)
    yield Measure.of_number("files beside its own that name a score", len(naming(sources, PROBE)), 0)
    yield Measure.of_number("attributes asked for by name", asked_by_name(sources), 25)
    yield Measure.of_number("type names with two meanings", len(repeated_types()), 0)
    yield Measure.of_number("names of files that recur", len(repeated_files()), 4)


def of_lines() -> Iterator[Measure]:
    """How much there is to read."""
    experiments, tests, package = (Lines.of(folder) for folder in (ROOT / "experiments", TESTS, ROOT))
    engine, functions = Lines.of(ROOT / "experiments" / "engine"), count_tests(trees(TESTS))
    lost = round(len(EXPERIMENTS) * (experiments.all - 8000) / (experiments.all - engine.all))
    yield Measure.of_number(
        "lines of experiments",
        experiments.all,
        8000,
        reason=f"{experiments.code} lines are code and {experiments.docstrings} docstrings, the help of `fedgen"
        f" reproduce` among them; {engine.all} of all are the engine that experiments share. 8,000 would cost {lost}"
        f" of the {len(EXPERIMENTS)} experiments, each of which answers a question of a page.",
    )
    yield Measure.of_number(
        "lines of tests",
        tests.all,
        40000,
        reason=f"{tests.code} lines are code alone, {tests.code // functions} for each of {functions} functions, and"
        f" few of them are repeated. 40,000 would cost {share(tests, 40000)} % of the tests, and so cases of hostile"
        " files and messages, of resumed runs, or comparisons with plain loops and other implementations, which make"
        " changes safe.",
    )
    yield Measure.of_number(
        "lines of the package",
        package.all,
        49000,
        reason=f"{package.code} lines are code, {package.docstrings} docstrings, which are the help of commands and"
        f" recipes and the site's reference, and {package.blank} empty. 49,000 would cost {share(package, 49000)} % of"
        f" what the kit does with its help; without one docstring there would be {package.all - package.docstrings}.",
    )
    pinned = sum(path.read_text(encoding="utf-8").count("match=") for path in TESTS.rglob("*.py"))
    yield Measure("messages pinned by tests", str(pinned), "", True)


def share(lines: Lines, goal: int) -> int:
    """The percentage of lines that a goal leaves no room for."""
    return round(100 * (lines.all - goal) / lines.all)


def repeated_types() -> list[str]:
    """The names of types that two classes have."""
    named = Counter(node.name for _, node in classes(trees(ROOT)) if not node.name.startswith("_"))
    return sorted(name for name, count in named.items() if count > 1)


def repeated_files() -> list[str]:
    """The names that two files have in different folders."""
    stems = Counter(path.stem for path in trees(ROOT) if path.stem not in RECURRING)
    return sorted(name for name, count in stems.items() if count > 1)


def reasons(found: Iterable[Measure]) -> list[str]:
    """A line for each measure whose goal is not met: the cost of meeting it, and why that is worth less.

    Raises:
        ValueError: for a measure that is not met and has no reason, naming it.
    """
    lines = []
    for measure in found:
        if not measure.is_met:
            if not measure.reason:
                raise ValueError(
                    f"{measure.name} is {measure.today} and its goal {measure.goal}: meet it, or give the measure in"
                    " benchmarks/house/measures.py a reason why not"
                )
            lines.append(f"{measure.name}: {measure.reason}")
    return lines
