"""The declared suites."""

import difflib

from fedgen.benchmark.parts import AVERAGING
from fedgen.benchmark.suite import Budget, Cell, Suite, SuiteQuestion

_TRY = Budget(rounds=30, interval=2, cohort=5)
TINY = Suite(
    "tiny",
    "three cells of 8 x 8 digits, two seeds: a try of the command, too short for generators to be good",
    seeds=(0, 1),
    cells=tuple(Cell("digits", "by-class", "wgan-gp", name, _TRY) for name in (AVERAGING, "local", "centralised")),
    questions=(
        SuiteQuestion(
            "What does training together bring, and what does it cost beside pooled data?",
            tuple(f"digits/by-class/wgan-gp/{name}" for name in (AVERAGING, "local", "centralised")),
        ),
    ),
)


def _cells(task: str, budget: Budget, *parts: str) -> tuple[Cell, ...]:
    """Cells of a task, "data/partition", by "generator/algorithm"."""
    data, partition = task.split("/")
    pairs = (part.split("/") for part in parts)
    return tuple(Cell(data, partition, generator, algorithm, budget) for generator, algorithm in pairs)


def _question(text: str, cells: tuple[Cell, ...]) -> SuiteQuestion:
    return SuiteQuestion(text, tuple(cell.name for cell in cells))


_GENERATORS = _cells(
    "digits/by-class", Budget(rounds=600, interval=2, cohort=5), "stylegan2/fedavg", "ddpm/fedavg", "flow/fedavg"
)
_WRITERS = _cells("styles/natural", Budget(rounds=200, interval=4, cohort=10), "flow/fedavg", "flow/fedprox")
_ALGORITHMS = _cells(
    "mnist5k/by-class",
    Budget(rounds=300, interval=5, cohort=5),
    *("wgan-gp/fedavg", "wgan-gp/fedadam", "wgan-gp/scaffold"),
)
_PHOTOS = _cells(
    "photos/natural", Budget(rounds=100, interval=5, batch_size=16), "flow/fedavg", "flow/local", "flow/centralised"
)
_CLOTHES = _cells(
    "fashion/dirichlet", Budget(rounds=200, interval=5, cohort=5, batch_size=16), "wgan-gp/fedavg", "flow/fedavg"
)
SMALL = Suite(
    "small",
    "13 cells, three seeds, 39 runs: three to four hours on two cores with --parallel 2",
    seeds=(0, 1, 2),
    cells=(*_GENERATORS, *_WRITERS, *_ALGORITHMS, *_PHOTOS, *_CLOTHES),
    questions=(
        _question("Which generator is nearest to real digits after as many rounds, a class a client?", _GENERATORS),
        _question("Does a proximal term help over natural clients, writers of one style each?", _WRITERS),
        _question("What do FedAdam and SCAFFOLD change where clients hold one class each?", _ALGORITHMS),
        _question("Is training together better than alone where no two clients' images are alike?", _PHOTOS),
        _question("Is flow matching ahead of a GAN on clothes, clients of a few classes each?", _CLOTHES),
    ),
)

SUITES = {suite.name: suite for suite in (TINY, SMALL)}


def find_suite(name: str) -> Suite:
    """The suite of a name.

    Raises:
        ValueError: for an unknown name, with the nearest.
    """
    if name not in SUITES:
        close = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"there is no suite {name!r}; {hint}known: {', '.join(SUITES)}")
    return SUITES[name]
