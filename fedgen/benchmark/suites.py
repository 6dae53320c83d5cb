"""The declared suites."""

import difflib
from dataclasses import replace

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
    "13 cells, three seeds, 39 runs: about four hours on two cores with --parallel 2",
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

_GPU = Budget(rounds=2000, interval=20, batch_size=64, accelerator="auto")
_CIFAR10 = _cells(
    "cifar10/by-class",
    _GPU,
    *("wgan-gp-large/fedavg", "stylegan2-large/fedavg", "ddpm-large/fedavg", "flow-large/fedavg"),
    *("flow-large/local", "flow-large/centralised"),
)
_CIFAR10_DIRICHLET = _cells("cifar10/dirichlet", _GPU, "flow-large/fedavg", "flow-large/fedadam", "flow-large/scaffold")
_FEMNIST = _cells("femnist/natural-300", replace(_GPU, cohort=20), "flow-large/fedavg", "flow-large/fedprox")
_CELEBA = _cells("celeba/natural-30", replace(_GPU, cohort=20), "wgan-gp-large/fedavg", "flow-large/fedavg")
_PATHMNIST = _cells("pathmnist/dirichlet", _GPU, "wgan-gp-large/fedavg", "flow-large/fedavg")
_HOSPITALS = [
    _cells(task, _GPU, "flow-large/fedavg", "flow-large/local", "flow-large/centralised")
    for task in ("camelyon17/natural", "fed-isic2019/natural")
]
_IMAGENET = _cells("imagenet64/by-class", replace(_GPU, cohort=10), "stylegan2-large/fedavg", "flow-large/fedavg")
FULL = Suite(
    "full",
    "23 cells of published data sets, three seeds, 69 runs: days of a GPU; files that need an account are looked for",
    seeds=(0, 1, 2),
    cells=(
        *_CIFAR10,
        *_CIFAR10_DIRICHLET,
        *_FEMNIST,
        *_CELEBA,
        *_PATHMNIST,
        *_HOSPITALS[0],
        *_HOSPITALS[1],
        *_IMAGENET,
    ),
    questions=(
        _question(
            "Which generator is nearest to CIFAR-10, a class a client, and what does pooled data bring?", _CIFAR10
        ),
        _question("What do FedAdam and SCAFFOLD change where clients hold a few classes each?", _CIFAR10_DIRICHLET),
        _question("Does a proximal term help over writers?", _FEMNIST),
        _question("Is flow matching ahead of a GAN over people, some thirty faces each?", _CELEBA),
        _question("Is flow matching ahead of a GAN on tissue of a few kinds a client?", _PATHMNIST),
        _question("Is training together better than alone for five hospitals of one stain each?", _HOSPITALS[0]),
        _question("Is training together better than alone for six centres of very unequal sizes?", _HOSPITALS[1]),
        _question("Is flow matching ahead of a GAN on a hundred classes, one a client?", _IMAGENET),
    ),
)

SUITES = {suite.name: suite for suite in (TINY, SMALL, FULL)}


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
