"""Trainings of an experiment: recipes run by `fedgen fit`, each in a process and a folder of its own."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedgen.evaluation.names import LAST
from fedgen.experiments.engine.fit_process import run_fit, run_new_fit
from fedgen.experiments.engine.study import ArmsChoice, Numbers, ScoredArmsChoice, Study
from fedgen.io.files import read_yaml
from fedgen.progress import track


def read_recipe(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; run from the folder that holds recipes/, or say where by --recipe or --recipes"
        )
    return read_yaml(path)


def rounds_of(path: Path) -> int:
    return _number(path, "max_epochs, the rounds that it trains for", "trainer", "max_epochs")


def local_iterations(path: Path) -> int:
    return rounds_of(path) * of_strategy(path)


def of_strategy(path: Path, name: str = "communication_interval") -> int:
    return _number(path, f"the {name} of a FedAvgStrategy", "trainer", "strategy", "init_args", name)


def _number(path: Path, what: str, *keys: str) -> int:
    found = read_recipe(path)
    try:
        for key in keys:
            found = found[key]
        return int(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must say {what} ({error!r})") from error


def fingerprints(recipes: Iterable[Path]) -> dict[str, str]:
    """By file name a hash of what each recipe says, without comments."""
    return {path.name: fingerprint(read_recipe(path)) for path in recipes}


def fingerprint(settings: Any) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def start_of(recipe: Path) -> str:
    """Eight digits of a recipe's fingerprint, for the names of runs that go on from its own."""
    return fingerprints([recipe])[recipe.name][:8]


def component(class_path: str, **options: Any) -> dict[str, Any]:
    return {"class_path": class_path, **({"init_args": options} if options else {})}


def embedded_loss(loss: Numbers, embeddings: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """`generator_losses` as recipes have it: one loss in some embeddings, with more arguments of `EmbeddedLoss`."""
    return [component("fedgen.losses.EmbeddedLoss", loss=loss, embeddings=list(embeddings), **options)]


Control = Literal["local_only", "centralised"]
SHARE_HELD_OUT = 0.5  # of every client's images, so that there are as many to score against as were trained on


@dataclass(frozen=True)
class Training:
    recipe: Path  # the recipe's file
    folder: Path  # the run folder, see `place`; its output goes to `FOLDER.log` beside it
    seed: int  # of everything
    settings: tuple[str, ...] = ()  # more arguments of `fedgen fit`, e.g. ("--trainer.max_epochs", "400")
    control: Control | None = None  # the flag of `fedgen fit` that turns a federated recipe into one of its controls
    threads: int | None = None  # of the CPU at most; the recipe's own number, or all, if None
    # in a new process, whose costs are those of `fedgen fit`; otherwise in a fork where forks train
    measured: bool = False

    @property
    def place(self) -> Path:
        """The folder that the run is found in: `folder`, for a control with the control's name behind it."""
        return self.folder.with_name(f"{self.folder.name}-{self.control}") if self.control else self.folder

    def run(self) -> Path:
        """Trains unless the folder holds the finished run; a stopped one goes on. Returns `place`."""
        # a finished run leaves `FOLDER.done` beside its folder: it is known without starting a process for it
        log, done = (self.place.with_name(f"{self.place.name}.{end}") for end in ("log", "done"))
        asked = json.dumps([start_of(self.recipe), *self._arguments()])
        if (self.place / LAST).exists() and done.exists() and done.read_text() == asked:
            return self.place
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:  # what a run said while it trained stays when it is found finished
            status = (run_new_fit if self.measured else run_fit)(self._arguments(), file)
        if status:
            command = " ".join([sys.executable, "-m", "fedgen", "fit", *self._arguments()])
            tail = "\n".join(log.read_text().splitlines()[-5:])
            raise ChildProcessError(f"{command} failed with status {status}; the end of {log}:\n{tail}")
        done.write_text(asked)
        return self.place

    def _arguments(self) -> list[str]:
        given = ["--config", str(self.recipe), "--seed_everything", str(self.seed)]
        given += ["--trainer.default_root_dir", str(self.folder), *self.settings]
        if self.threads is not None:
            own = (read_recipe(self.recipe) or {}).get("threads") or self.threads
            given += ["--threads", str(min(self.threads, own))]
        return [*given, f"--{self.control}"] if self.control else given


@dataclass(frozen=True)
class Arm:
    name: str  # in tables; unique among an experiment's arms
    # what differs from the recipe, options of `fedgen fit` without dashes
    settings: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None  # of the recipe, "centralised"
    rounds: float = 1.0  # as a multiple of the recipe's


def arguments(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of `fedgen fit` from options, without their dashes, and values: texts and paths as they are."""
    texts = {key: str(value) if isinstance(value, str | Path) else json.dumps(value) for key, value in given.items()}
    return tuple(text for key, value in texts.items() for text in (f"--{key}", value))


def evaluated(rounds: int, **evaluation: Any) -> dict[str, Any]:
    """Options of `fedgen fit` for a run that is scored while it trains."""
    scored = component("fedgen.callbacks.FederatedEvaluation", **evaluation)
    return {"trainer.max_epochs": rounds, "trainer.callbacks": [scored], "trainer.logger": False}


def kept_rounds(
    rounds: int, every: int, split_seed: int, more: Mapping[str, Any], held_out: float | None = SHARE_HELD_OUT
) -> tuple[str, ...]:
    """Arguments of `fedgen fit` for a run whose checkpoints are scored later: nothing is scored while it trains."""
    given = {
        "trainer.max_epochs": rounds,
        "trainer.callbacks": [component("fedgen.callbacks.RoundCheckpoint", every_n_rounds=every)],
        "trainer.logger": False,
        "data.init_args.seed": split_seed,
    }
    own = {} if held_out is None else {"data.init_args.held_out": held_out}
    return arguments({**given, **own, **more})


def train_all(trainings: Sequence[Training], parallel: int = 1) -> list[Path]:
    """The run folders of trainings, some at once; after a failure or Ctrl-C no more start."""
    for recipe in {training.recipe for training in trainings}:
        read_recipe(recipe)
    threads = max(1, (os.cpu_count() or 1) // parallel) if parallel > 1 else None
    jobs = [replace(training, threads=threads) for training in trainings]
    pool = ThreadPoolExecutor(parallel)
    try:
        return list(track(pool.map(Training.run, jobs), "training", total=len(jobs), unit="runs"))
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class RecipeChoice(ArmsChoice):
    """Options common to experiments that train arms of one recipe; its fields are options of their commands.

    Args:
        recipe: of a federation.
    """

    recipe: Path = Path("recipes/quickstart.yaml")

    def __post_init__(self) -> None:
        super().__post_init__()
        local_iterations(self.recipe)

    def resolved(self) -> dict[str, Any]:
        return {"recipes": fingerprints([self.recipe])}


def slug(name: str) -> str:
    return "-".join(re.findall(r"\w+", name))


def train_arms(
    study: Study,
    step: str,
    choice: RecipeChoice,
    arms: Sequence[Arm],
    common: Mapping[str, Any],
    place: Callable[[Arm, int], Path] | None = None,
) -> dict[str, list[Training]]:
    place = place or (lambda arm, seed: study.path(f"{slug(arm.name)}-{seed}"))
    runs: dict[str, list[Training]] = {arm.name: [] for arm in arms}
    for arm, seed in product(arms, choice.seeds_of):
        given = arguments({**common, **arm.settings})
        runs[arm.name].append(Training(choice.recipe, place(arm, seed), seed, given, arm.control))
    if study.missing(step):  # the first seed's first: of a stopped experiment all arms have as many seeds
        train_all([run for one_seed in zip(*runs.values()) for run in one_seed], choice.parallel)
    return runs


QUICK = 20  # a quick run trains for 1 / 20 of the iterations


@dataclass(frozen=True)
class Series:
    name: str  # what it is called in tables and figures, e.g. "WGAN-GP"
    recipe: str  # file name, of a federation whose clients hold one class each
    # communication intervals, each with as many local iterations in all: the longer the interval, the fewer the rounds
    intervals: tuple[int, ...]
    settings: tuple[str, ...] = ()  # more arguments of `fedgen fit`
    variant: str = ""  # tells the runs of other settings from those of the recipe as it is, in their folders' names
    iterations: int | None = None  # of each client in all; the recipe's if None
    control: Control | None = None  # to train without exchange, or on the clients' pooled images
    seeds: int | None = None  # at most; the first of those that are asked for
    checkpoints: int | None = None  # about how many of each run, at most


@dataclass(frozen=True)
class Protocol:
    series: tuple[Series, ...]  # kinds of generators, of which the first comes with intervals to choose
    embedding: str  # to score checkpoints in
    network: str  # to score one-class generators in: a network's features, in which classes lie far apart
    num_images: int  # generated by a checkpoint; clients hold out as many, so that real images can be scored beside
    client_images: int | None = None  # of each client, at most, that a checkpoint is scored against; all if None
    held_out: float | None = None  # fraction of each client's images that no run trains on; the recipe's if None
    seeds: int = 3  # runs of each kind and interval: fewer where one takes long
    checkpoints: int = 20  # about how many of each run are kept and scored


LITE0 = "efficientnet-lite0"
INCEPTION = "inception-v3-compat"


def at_32_pixels(data: str, num_images: int, **options: Any) -> Protocol:
    # the DDPM is trained for half of its recipe's iterations, 40 to 60 minutes of CPU time
    ddpm = Series("DDPM", f"ddpm_{data}.yaml", (5,), iterations=1000, seeds=1, checkpoints=8)
    gan = Series("WGAN-GP", f"wgan_gp_{data}.yaml", (5, 20))
    return Protocol((gan, ddpm), LITE0, LITE0, num_images, seeds=1, **options)


PROTOCOLS: dict[str, Protocol] = {
    # 64 pixels: as few as can be told from 90 images of a client; 896 images: all that the clients hold out
    "digits": Protocol(
        (Series("WGAN-GP", "quickstart.yaml", (2, 8)), Series("DDPM", "ddpm_digits.yaml", (2,), checkpoints=10)),
        "pixels",
        f"{LITE0}-32",
        896,
        held_out=0.5,
    ),
    "mnist5k": at_32_pixels("mnist5k", 2000, held_out=0.5),
    "fashion-mnist": at_32_pixels("fashion_mnist", 10_000, client_images=1000, checkpoints=10),
    # the paper's: interval 160, Inception, every image that a client trains on
    "cifar10": Protocol(
        (Series("WGAN-GP", "wgan_gp_cifar10.yaml", (160,)), Series("DDPM", "ddpm_cifar10.yaml", (160,), seeds=1)),
        INCEPTION,
        INCEPTION,
        10_000,
    ),
}


def protocol_of(data: str) -> Protocol:
    if data not in PROTOCOLS:
        raise ValueError(f"no recipe for data {data!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[data]


def require_each_once(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = tuple(known)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(f"{what}={list(names)}: give one or more of {', '.join(known)}, each once")


def require_intervals(intervals: Sequence[int]) -> None:
    if not intervals or min(intervals) < 1 or len(set(intervals)) < len(intervals):
        raise ValueError(f"intervals={list(intervals)}: give one or more, each once and at least 1")


@dataclass(frozen=True)
class TrainedRun:
    series: str
    seed: int
    interval: int
    rounds: int
    training: Training

    @property
    def name(self) -> str:
        """For example "WGAN-GP, interval 2, seed 0", "WGAN-GP, local only, seed 0"."""
        control = self.training.control
        way = control.replace("_", " ") if control else f"interval {self.interval}"
        return f"{self.series}, {way}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.training.place


def runs_of(
    series: Series, held_out: float | None, choice: ScoredArmsChoice, checkpoints: int = 20, quick: bool = False
) -> list[TrainedRun]:
    """The runs of a series, every interval with every seed, of which about so many checkpoints are kept."""
    recipe, split, found = choice.recipes / series.recipe, choice.seed, []
    own = local_iterations(recipe)
    whole, whose = (own, f"{recipe}'s {own}") if series.iterations is None else (series.iterations, series.iterations)
    iterations = whole // (QUICK if quick else 1)
    stem = f"{recipe.stem}-{series.variant}" if series.variant else recipe.stem
    for interval in series.intervals:
        if 2 * interval > whole:
            raise ValueError(f"interval {interval} is too long: two rounds need more than {whose} iterations")
        rounds = max(2, iterations // interval)
        more = {"trainer.strategy.init_args.communication_interval": interval}
        every = spacing_of(rounds, min(checkpoints, series.checkpoints or checkpoints))
        kept = kept_rounds(rounds, every, split, more, held_out)
        for seed in choice.seeds_of[: series.seeds]:
            name = f"{stem}-split{split}-interval{interval}-rounds{rounds}-seed{seed}"
            training = Training(recipe, choice.folder / name, seed, (*kept, *series.settings), series.control)
            found.append(TrainedRun(series.name, seed, interval, rounds, training))
    return found


def spacing_of(rounds: int, checkpoints: int) -> int:
    """Rounds from one kept checkpoint to the next, so that about so many are kept, the last one among them."""
    every = max(1, rounds // checkpoints)
    return min(every, every + 1, key=lambda one: abs(-(-rounds // one) - checkpoints))


def train_runs(runs: Sequence[TrainedRun], choice: ScoredArmsChoice) -> None:
    try:
        train_all([run.training for run in runs], choice.parallel)
    except ChildProcessError as error:
        remedy = f"a run that {choice.folder} holds with other settings, e.g. --checkpoints, wants another --runs"
        raise ChildProcessError(f"{error}\n{remedy}") from error
