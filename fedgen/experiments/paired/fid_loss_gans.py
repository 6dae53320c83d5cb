"""GANs without and with FID as a second loss, and what that changes on images nobody trained on.

A federated WGAN-GP of digits, the same recipe with and without the loss, over paired seeds: a lower score under the
embedding that was trained on is what the loss was asked for, so another one is asked too. Then SNGAN, DCGAN and SAGAN
after section 3 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075), whose settings are recipes
(sngan_cifar10_fid.yaml, ...): the batch's FID, and those of a queue and an exponential average of features, on digits;
all weigh as much as the adversarial loss. One longer pair of each network on MNIST, for its pictures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation import Run, ScoreRecord, by_column
from fedgen.evaluation.marks import direction_of, mark_of, say_marks, title_of
from fedgen.evaluation.names import REPORT, SELECT
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, Picture, draw_panels, draw_pictures, pairs_panel
from fedgen.experiments.engine.features import CACHE
from fedgen.experiments.engine.paired_seeds import by_chance, change_of, compare_pairs, mean_of, verdict_on
from fedgen.experiments.engine.scored_arms import (
    HELD_OUT,
    HIGHER,
    REAL_IMAGES,
    Line,
    ScoredArms,
    badness,
    real_side,
    require_unrelated,
)
from fedgen.experiments.engine.scored_checkpoints import generated_images
from fedgen.experiments.engine.study import Numbers, ScoredArmsChoice, Study, make_table
from fedgen.images import save_png, tile

LOSSES = "model.init_args.generator_losses"
ARMS = (trainings.Arm("without", {LOSSES: None}), trainings.Arm("with"))
IMAGES = {SELECT: "training images", REPORT: "held-out images"}
LOWER = "lower is better"
QUICK = {"trainer.callbacks.init_args.num_images": 100, "trainer.callbacks.init_args.embeddings": ["pixels"]}
PAIR_STYLES = {arm.name: {"color": colour, "marker": "o"} for arm, colour in zip(ARMS, ("0.35", "#1f5fa8"))}
Scores = Mapping[str, ScoreRecord]  # column -> record, of one run


@dataclass(frozen=True)
class DigitsChoice(trainings.RecipeChoice):
    """Options of digits-fid-loss; its fields are options of the command.

    Args:
        recipe: a recipe with `generator_losses`.
        rounds: of each run, of which the last is scored; the recipe's by default.
        quick: two pairs of 20 rounds at most, scored by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 20}
    LEAST: ClassVar[Mapping[str, float]] = {**trainings.RecipeChoice.LEAST, "seeds": 2}  # a comparison needs two pairs

    recipe: Path = Path("recipes/wgan_gp_digits_fid.yaml")
    seeds: int = 5
    rounds: int | None = None


def digits_fid_loss(**options: Any) -> None:
    """Trains the recipe with and without its generator losses for each seed and compares the last checkpoints."""
    choice = DigitsChoice(**options)
    study = choice.study("digits-fid-loss")
    common = ({} if choice.rounds is None else {"trainer.max_epochs": choice.rounds}) | (QUICK if choice.quick else {})
    runs = trainings.train_arms(study, "compared", choice, ARMS, common)

    def measure() -> dict[str, Any]:
        return compare(*([last_scores(run.folder, choice.rounds) for run in own] for own in runs.values()))

    compared = study.step("compared", measure)
    study.report([table_of(compared)], draw_pairs(compared, study.path("pairs.png")))


def last_scores(folder: Path, rounds: int | None = None) -> dict[str, ScoreRecord]:
    last = {column: records[-1] for column, records in by_column(Run(folder).records).items()}
    for record in last.values():
        if rounds is not None and record.round != rounds - 1:
            raise ValueError(
                f"{folder} holds a run of {(record.round or 0) + 1} rounds, not {rounds}; choose another --output"
            )
    return last


def compare(control: Sequence[Scores], treated: Sequence[Scores]) -> dict[str, Any]:
    """Every column of two arms as `compare_pairs` has it, with "without" (the control's values), "title" and marks."""
    found: dict[str, Any] = {}
    for column, record in treated[0].items():

        def badness(value: float, like: ScoreRecord = record) -> float:
            return replace(like, value=value).badness

        without, own = ([run[column].value for run in arm] for arm in (control, treated))
        found[column] = {
            "without": without,
            **compare_pairs(without, own, badness),
            "title": f"{title_of(record.score)}-{record.aggregate}\n{record.embedding}, {IMAGES[record.split]}",
            "mark": mark_of(record),
            "better": direction_of(record),
        }
    return found


def table_of(compared: Numbers) -> Table:
    count = len(next(iter(compared.values()))["values"])
    rows = []
    for column, row in compared.items():
        name = column if row["better"] == LOWER else f"{column}, {row['better']}"
        means = (f"{mean_of({'values': row[arm]}):.4g}" for arm in ("without", "values"))
        rows.append((f"{name} {row['mark']}".rstrip(), *means, change_of(row), f"{row['improved']} of {count}"))
    title = f"last checkpoint, mean of {count} seeds; {LOWER} unless a score says otherwise"
    headings = ("score", "without", "with", "difference (95 %)", "seeds improved")
    return make_table(title, headings, rows, say_marks(row["mark"] for row in compared.values()))


def draw_pairs(compared: Numbers, path: Path) -> Path:
    panels = []
    for row in (row for column, row in compared.items() if column.endswith("_all")):
        title = row["title"] + ("\n(trained on)" if row["mark"] else "")
        values = {arm.name: row[key] for arm, key in zip(ARMS, ("without", "values"))}
        bottom = 0 if min(*row["without"], *row["values"]) >= 0 else None
        panels.append(pairs_panel(values, title=title, bottom=bottom))
    across = min(4, len(panels))
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    rows[-1] += [ArmPanel({})] * (across - len(rows[-1]))
    title = "Digits, ten clients of one class: the generator's loss without and with FID"
    return draw_panels(rows, PAIR_STYLES, path, title, size=(2.7, 2.7))


WITHOUT, MINIBATCH, QUEUE, EMA = "without", "minibatch", "queue", "ema"
FORMS = (MINIBATCH, QUEUE, EMA)
QUICK_IMAGES = 300  # of each kind
NETWORKS = {"sngan": 200, "dcgan": 300, "sagan": 150}
"""pairs of networks, as recipes are named ("sngan_digits.yaml") -> rounds of 20 iterations on MNIST-5k"""


@dataclass(frozen=True)
class Bench:
    """A data set that they are trained on, and FID's settings there."""

    data: str  # as recipes are named
    title: str  # what it is called
    optimised: str  # the embedding that FID is a loss in
    decay: float  # of the exponential average, a batch of 32: at 0.9 about 600 images count, at 0.98 about 3,200
    queue: int  # images in the queue, as many
    refresh_every: int = 1  # see `FastFIDLoss`


DIGITS = Bench("digits", "digits", "pixels", 0.9, 608)
# 1,280 features: more images must count than that, and roots are dear
PICTURES = Bench("mnist5k", "MNIST 5k", "efficientnet-lite0-32", 0.98, 3168, refresh_every=16)
BENCHES = (DIGITS, PICTURES)


def losses_of(arm: str, bench: Bench) -> list[dict[str, Any]] | None:
    if arm == WITHOUT:
        return None
    moments = {
        QUEUE: trainings.component("fedgen.losses.QueueMoments", size=bench.queue),
        EMA: trainings.component("fedgen.losses.EMAMoments", decay=bench.decay),
    }
    options = {"moments": moments[arm], "refresh_every": bench.refresh_every} if arm in moments else {}
    fid, weight = trainings.component("fedgen.losses.FastFIDLoss", **options), "fedgen.losses.AdaptiveWeight"
    return trainings.embedded_loss(fid, [bench.optimised], weight=trainings.component(weight), cache=str(CACHE))


@dataclass(frozen=True)
class GanChoice(ScoredArmsChoice):
    """Options of fid-loss-gans; its fields are options of the command.

    Args:
        networks: sngan, dcgan, sagan.
        arms: forms of the loss beside the control without it: minibatch (the paper's), queue, ema.
        embedding: to score digits in besides pixels; no loss uses it.
        rounds: of each run on digits; the recipe's by default.
        pictures: whether each network is trained on MNIST-5k too, without the loss and with its form ema.
        picture_rounds: of each of those runs; 200, 300 and 150 by default.
        quick: less than a minute, to see that it runs: the first of the networks, a few iterations.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "networks": lambda names: names[:1], "seeds": 1, "rounds": 1, "picture_rounds": 1, "parallel": lambda _: 2
    }  # fmt: skip
    LEAST: ClassVar[Mapping[str, float]] = {**ScoredArmsChoice.LEAST, "picture_rounds": 1}
    APART: ClassVar[tuple[str, ...]] = ("networks", "arms", "seeds", "pictures")  # what is measured of some joins

    networks: tuple[str, ...] = tuple(NETWORKS)
    arms: tuple[str, ...] = FORMS
    embedding: str = "classifier-mnist5k"
    seeds: int = 5
    rounds: int | None = None
    pictures: bool = True
    picture_rounds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        trainings.require_each_once("networks", self.networks, NETWORKS)
        trainings.require_each_once("arms", self.arms, FORMS)
        require_unrelated(self.embedding, [DIGITS.optimised], DIGITS.data)

    @property
    def trained(self) -> tuple[str, ...]:
        return (WITHOUT, *(arm for arm in FORMS if arm in self.arms))

    def resolved(self) -> dict[str, Any]:
        return {"recipes": trainings.fingerprints(self.recipe_of(one, bench) for bench in BENCHES for one in NETWORKS)}

    def recipe_of(self, network: str, bench: Bench) -> Path:
        return self.recipes / f"{network}_{bench.data}.yaml"

    def training(self, bench: Bench, network: str, arm: str, seed: int) -> trainings.Training:
        """An arm's run: the recipe, with other losses. Nothing is scored while it trains; the last round is kept."""
        recipe = self.recipe_of(network, bench)
        usual, asked = trainings.rounds_of(recipe), self.rounds
        if bench is not DIGITS:
            usual, asked = NETWORKS[network], self.picture_rounds
        rounds = asked or usual
        name = f"{recipe.stem}-{arm}-split{self.seed}-rounds{rounds}-seed{seed}"
        losses = {LOSSES: losses_of(arm, bench)}
        settings = trainings.kept_rounds(rounds, rounds, self.seed, more=losses)
        return trainings.Training(recipe, self.folder / name, seed, settings)


HEADINGS = {"fid": "FID", HELD_OUT: "FID, held out", "recall": "recall", "coverage": "coverage", "trace": "trace"}
COLOURS = {WITHOUT: "0.35", MINIBATCH: "#c4560b", QUEUE: "#3a8a3a", EMA: "#1f5fa8"}
MEAN = {"marker": "_", "markersize": 22, "markeredgewidth": 2.5}
STYLES = {**{arm: {"color": colour, **MEAN} for arm, colour in COLOURS.items()}, REAL_IMAGES: REAL}
PAIR = (WITHOUT, EMA)  # the arms of the pictures


def key_of(network: str, arm: str, seed: int | None = None) -> str:
    """Return the key of an arm, or a run of it, in results.json: "sngan, ema", "sngan, ema, seed 0"."""
    return f"{network}, {arm}" + ("" if seed is None else f", seed {seed}")


def name_of(arm: str) -> str:
    return "EMA" if arm == EMA else arm


def scored(
    study: Study, bench: Bench, networks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> ScoredArms:
    known = study.numbers[bench.data]
    pairs = {key_of(network, arm): (network, arm) for network in networks for arm in arms}
    return ScoredArms(
        {key: {0: [known[key_of(*one, seed)] for seed in seeds]} for key, one in pairs.items()},
        [study.numbers[f"floor of {bench.data}"]],
        HEADINGS,
        {key: (bench.optimised,) for key, (_, arm) in pairs.items() if arm != WITHOUT},
        {key: (key_of(network, WITHOUT), None) for key, (network, arm) in pairs.items() if arm != WITHOUT},
    )


def tables_of(found: ScoredArms, bench: Bench, networks: Sequence[str], arms: Sequence[str]) -> list[Table | str]:
    count = len(found.at(key_of(networks[0], WITHOUT)))
    note = "FID: FID-all, to the images trained on and to held-out ones; recall and coverage: of held-out ones; trace:"
    note += " of the covariance, over that of the images trained on; real images: those trained on, as if generated"
    lines: list[Line | None] = [((REAL_IMAGES, ""), REAL_IMAGES)]
    for network in networks:
        titles = [network.upper(), *[""] * len(arms)]
        lines += [None, *(((title, name_of(arm)), key_of(network, arm)) for title, arm in zip(titles, arms))]
    tables: list[Table | str] = []
    for embedding in found.floor[0]:
        used = "in which FID was a loss" if embedding == bench.optimised else "which no loss used"
        title = f"{bench.title}, {embedding}, {used}: mean of {count} seed{'s' * (count > 1)}"
        tables.append(found.table(title, embedding, ("network", "FID as a loss"), lines, WITHOUT, [note]))
    return tables


def outcomes(found: ScoredArms, bench: Bench, judge: str, networks: Sequence[str], arms: Sequence[str]) -> list[str]:
    lines, optimised = [], bench.optimised
    for network in networks:
        for arm in arms[1:]:
            name, key = f"{network.upper()}, {name_of(arm)}", key_of(network, arm)
            there = f"(in {optimised}, optimised: {change_of(found.row(key, optimised, HELD_OUT))})"
            text = f"{name}: FID to held-out images falls in {judge}, which no loss used {there}"
            lines.append(found.verdict(text, key, judge, HELD_OUT, "less"))
            for score in HIGHER:
                lines.append(found.verdict(f"{name}: {score} does not fall in {judge}", key, judge, score, "not less"))
        lines += _traces(found, optimised, network, arms) if MINIBATCH in arms else []
    return [*lines, by_chance(len(lines))]


def _traces(found: ScoredArms, optimised: str, network: str, arms: Sequence[str]) -> list[str]:
    """Say what a batch's bias does to the spread of images, and a longer memory not."""
    title, keys = network.upper(), {arm: key_of(network, arm) for arm in arms}
    means = {arm: found.mean(key, optimised, "trace") for arm, key in keys.items()}
    far = {arm: list(map(badness("trace"), found.values(key, optimised, "trace"))) for arm, key in keys.items()}
    what = f"trace in {optimised} {means[MINIBATCH]:.3g} beside {means[WITHOUT]:.3g}"
    text = f"{title}, minibatch: images spread less than without, {what}"
    lines = [found.verdict(text, keys[MINIBATCH], optimised, "trace", "less")]
    for arm in arms:
        if arm not in (WITHOUT, MINIBATCH):
            text = f"{title}, {name_of(arm)}: trace {means[arm]:.3g} is nearer to the data's than minibatch's"
            lines.append(verdict_on(text, (far[MINIBATCH], far[arm]), "less"))
    return lines


def pair_outcomes(found: ScoredArms, judge: str, networks: Sequence[str]) -> list[str]:
    lines = []
    for network in networks:
        before, after = (found.mean(key_of(network, arm), judge, HELD_OUT) for arm in PAIR)
        text = f"{network.upper()}, {name_of(EMA)}, {PICTURES.title}: FID to held-out images falls in {judge},"
        text += f" which no loss used, {before:.3g} to {after:.3g}"
        lines.append(found.verdict(text, key_of(network, EMA), judge, HELD_OUT, "less"))
    return lines


def grid_of(network: str, arm: str = "") -> str:
    return f"samples-{network}-{arm}.png" if arm else f"samples-{network}.png"


def draw_scores(found: ScoredArms, judge: str, networks: Sequence[str], arms: Sequence[str], path: Path) -> Path:
    rows = [
        (judge, HELD_OUT, f"FID-all, held-out images\n{judge}\n(no loss used it)"),
        (DIGITS.optimised, HELD_OUT, f"FID-all, held-out images\n{DIGITS.optimised}\n(optimised)"),
        (DIGITS.optimised, "trace", f"trace of covariance /\nthe data's, {DIGITS.optimised}\n(optimised)"),
    ]
    panels = [
        [
            pairs_panel(
                {arm: found.values(key_of(network, arm), embedding, score) for arm in arms},
                {EMA: name_of(EMA)},
                levels={REAL_IMAGES: [1.0] if score == "trace" else found.values(REAL_IMAGES, embedding, score)},
                title=network.upper(),
                label=label if network == networks[0] else "",
                bottom=0,
            )
            for network in networks
        ]
        for embedding, score, label in rows
    ]
    return draw_panels(panels, STYLES, path, f"GANs of {DIGITS.title} without and with FID as a loss")


def draw_samples(found: ScoredArms, networks: Sequence[str], folder: Path, path: Path) -> Path:
    """A row a network: samples of the first seed without and with the loss, and their scores; real ones below."""

    def picture(network: str, arm: str) -> Picture:
        key = key_of(network, arm)
        title = f"{network.upper()}, {'without' if arm == WITHOUT else f'with FID ({name_of(arm)})'}"
        fids = (f"{found.mean(key, name, HELD_OUT):.3g} in {name}" for name in (UNRELATED, PICTURES.optimised))
        text = f"{title}\nFID-all, held out: {', '.join(fids)}; trace {found.mean(key, UNRELATED, 'trace'):.2f}"
        return folder / grid_of(network, arm), text, COLOURS[arm]

    real = [(folder / grid_of("real"), f"real images of {PICTURES.title}", "black")]
    about = f"{PICTURES.title}: FID as a loss in {PICTURES.optimised}; trace of covariance in {UNRELATED}"
    return draw_pictures([*([picture(one, arm) for arm in PAIR] for one in networks), real], path, about, (4.7, 2.75))


UNRELATED = "pixels"  # to the pictures' loss; the classifier was trained on images of the very data
GRID, REAL_GRID = (10, 5), (20, 2)  # pictures across and down


def fid_loss_gans(**options: Any) -> None:
    """Trains GANs of digits without and with FID in three forms, and pairs on MNIST-5k for pictures; scores them all.

    66 runs of one to fifteen minutes each: about two hours with --parallel 2. What was measured of some networks, arms
    or seeds joins what is measured of others later.
    """
    choice = GanChoice(**options)
    for network in choice.networks:  # refuses recipes that are not there before any training
        for bench in (DIGITS, PICTURES) if choice.pictures else (DIGITS,):
            choice.training(bench, network, WITHOUT, choice.seed)
    judge = load_embedding(choice.embedding, weights=choice.weights)
    study = choice.study("fid-loss-gans")
    for seed in choice.seeds_of:  # a stopped experiment has all arms of the first seeds
        measure(study, choice, DIGITS, choice.trained, seed, [load_embedding(DIGITS.optimised), judge])
    about = choice.networks, choice.trained
    found, report = compared(study, DIGITS, *about, choice.seeds_of)
    report += outcomes(found, DIGITS, choice.embedding, *about) if choice.seeds > 1 else []
    if choice.pictures:
        embeddings = [load_embedding(PICTURES.optimised), load_embedding(UNRELATED)]
        measure(study, choice, PICTURES, PAIR, choice.seed, embeddings, grids=True)
        pairs, lines = compared(study, PICTURES, choice.networks, PAIR, [choice.seed])
        samples = draw_samples(pairs, choice.networks, study.folder, study.path("fid_loss_gans_samples.png"))
        report += [*lines, *pair_outcomes(pairs, UNRELATED, choice.networks), f"samples: {samples}"]
    study.report(report, draw_scores(found, choice.embedding, *about, study.figure))


def compared(
    study: Study, bench: Bench, networks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> tuple[ScoredArms, list[Table | str]]:
    found = scored(study, bench, networks, arms, seeds)
    name = f"compared on {bench.data}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    study.each(name, {key: key for key in found.states}, found.rows, "arms")
    return found, tables_of(found, bench, networks, arms)


def measure(
    study: Study,
    choice: GanChoice,
    bench: Bench,
    arms: Sequence[str],
    seed: int,
    embeddings: Sequence[Embedding],
    grids: bool = False,
) -> None:
    data, known = bench.data, study.numbers.get(bench.data, {})
    missing = {
        (network, arm): choice.training(bench, network, arm, seed)
        for network in choice.networks
        for arm in arms
        if key_of(network, arm, seed) not in known or (grids and not study.path(grid_of(network, arm)).exists())
    }
    if not missing:
        return
    trainings.train_all(list(missing.values()), choice.parallel)
    number = QUICK_IMAGES if choice.quick else None
    scores, held_out = real_side([one.folder for one in missing.values()], embeddings, number)
    count = len(held_out)
    study.step(f"images of {data}", lambda: count)
    study.step(f"floor of {data}", lambda: scores.floor)
    folders = {key_of(*one, seed): training.folder for one, training in missing.items()}
    study.each(data, folders, lambda one: scores.score(generated_images(one, count, choice.seed)), "generators")
    if grids:
        for one, training in missing.items():
            images = generated_images(training.folder, math.prod(GRID), choice.seed)
            save_png(study.path(grid_of(*one)), tile(images, GRID[0]))
        spread = torch.linspace(0, count - 1, math.prod(REAL_GRID)).long()  # they lie class by class
        save_png(study.path(grid_of("real")), tile(held_out[spread], REAL_GRID[0]))
