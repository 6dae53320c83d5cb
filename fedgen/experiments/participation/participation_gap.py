"""Does a federated model serve clients that it never saw, and does the answer depend on who the clients are?

The same images are split over as many clients in four ways: natural (by writer), semantic (by looks), Dirichlet over
labels, at random. "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216,
Figures 1, 4, 5, 10) says of classifiers that partitions by labels hide the participation gap that natural and semantic
ones show. As controls a classifier (Table 1) and a character model: signs and orderings are compared, not values.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.clients.partitions import Semantic
from fedgen.embeddings import load_embedding, network_of
from fedgen.evaluation import Evaluator, ScoreRecord
from fedgen.evaluation.marks import GAPS, gap_title
from fedgen.evaluation.names import PERCENTILES
from fedgen.evaluation.records import FLOOR, MEMORISER, MODEL, PARTICIPANTS
from fedgen.evaluation.tables.table import SPLITS
from fedgen.experiments.engine import gaps
from fedgen.experiments.engine.paired_seeds import Claim, by_chance, verdict_on
from fedgen.experiments.engine.study import Numbers, make_table, panels
from fedgen.experiments.engine.trainings import Arm, Control, component, read_recipe
from fedgen.reports.figures.curves import SPLIT_COLOURS

NATURAL, SEMANTIC, LABELS, RANDOM = "natural", "semantic", "Dirichlet", "random"
PARTITIONS = "fedgen.clients.partitions"
KINDS = {"Natural": NATURAL, "Semantic": SEMANTIC, "Dirichlet": LABELS, "CoarseDirichlet": LABELS, "IID": RANDOM}
CONTROL: Control = "centralised"
SHOWN = (FLOOR, MEMORISER, PARTICIPANTS)  # controls whose gaps are found before training


@dataclass(frozen=True)
class PartitionChoice(gaps.GapChoice):
    """The same images split in several ways; the other fields are those of `GapChoice`.

    Args:
        clients: of the partitions that are not the recipe's own; by default as many as that has.
        alpha: of Dirichlet over labels, in all; the released code's by default.
        partition_embedding: in which the semantic partition finds images alike; scores are in another one.
    """

    clients: int | None = None
    alpha: float = 10.0
    partition_embedding: str = "pixels"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_embedding("partition_embedding", self.partition_embedding)

    def _check_embedding(self, source: str, split_in: str) -> None:
        if network_of(split_in) == network_of(self.embedding):
            raise ValueError(
                f"embedding={self.embedding} is the network of {source}={split_in}: scores would see the features that"
                " made the clients"
            )

    @cached_property
    def own(self) -> str:
        """The arm that is the recipe's own partition: "natural", ..., or the class's name if it is none of them."""
        path = read_recipe(self.recipe)["data"]["init_args"]["partition"]["class_path"].split(".")
        return next((KINDS[part] for part in path if part in KINDS), path[-1])

    @cached_property
    def arms(self) -> list[Arm]:
        """The recipe's own partition and the others; natural clients only if they are its own."""
        federation = self.federation(Arm(str(self.recipe)))
        if isinstance(federation.partition, Semantic):
            self._check_embedding("the recipe's partition", load_embedding(federation.partition.embedding).name)
        count = self.clients or len(federation.everyone)
        others = {
            SEMANTIC: component(f"{PARTITIONS}.Semantic", num_clients=count, embedding=self.partition_embedding),
            LABELS: component(f"{PARTITIONS}.Dirichlet", num_clients=count, alpha=self.alpha),
            RANDOM: component(f"{PARTITIONS}.IID", num_clients=count),
        }
        arms = [Arm(name, {"data.init_args.partition": one}) for name, one in others.items() if name != self.own]
        return [Arm(self.own), *arms]


def participation_gap(**options: Any) -> None:
    """Gaps on unseen images and unseen clients, under four partitions of the same images, federated and centralised."""
    choice = PartitionChoice(**options)
    study = choice.study("participation-gap")
    arms = choice.arms + [Arm(f"{arm.name}, {CONTROL}", arm.settings, CONTROL) for arm in choice.arms]
    first = study.step("detectable", lambda: detectable(choice, arms))
    study.console.print(detectable_table(first))
    found = gaps.run_arms(study, choice, arms)
    gaps.report_arms(study, found, "clients that never train", outcomes(found))


def detectable(choice: gaps.GapChoice, arms: list[Arm]) -> dict[str, list[Any]]:
    """By partition and repetition: the gaps of real images in a generator's place; of all scores that need no model."""
    embedding = load_embedding(choice.embedding, weights=choice.weights)

    def controls(arm: Arm, seed: int) -> Any:
        data, scores = choice.federation(arm, seed), ("kid", "fid")
        judge = Evaluator(data, [embedding], choice.num_images, scores, seed=seed, controls=True)
        return gaps.controls_of(judge.floor())

    return {arm.name: [controls(arm, seed) for seed in choice.seeds_of] for arm in arms if arm.control is None}


def detectable_table(found: Mapping[str, Sequence[Any]]) -> Table:
    rows = []
    for partition, seeds in found.items():
        for column in seeds[0][FLOOR]:
            own = {name: [one[name][column] for one in seeds if name in one] for name in SHOWN}
            values = {name: [one[gaps.PARTICIPATION] for one in controls] for name, controls in own.items()}
            means = [f"{statistics.mean(each):+.3g}" if len(each) == len(seeds) else "" for each in values.values()]
            pairs, smallest, beyond = own[FLOOR][0]["clients"], [], ""
            for name in (FLOOR, MEMORISER):
                errors = [one[f"{gaps.PARTICIPATION} error"] for one in own[name]]
                if None not in errors:
                    smallest.append(gaps.smallest_gap(values[name], errors, own[name][0]["clients"]))
            if len(seeds) > 2:  # by what repetitions differ by
                less = [memory - floor for memory, floor in zip(values[MEMORISER], values[FLOOR])]
                beyond = f"{gaps.smallest_gap(less, (), pairs):.3g}"
            rows.append((partition, column, f"{max(smallest):.3g}" if smallest else "", beyond, *means))
    note = (
        "smallest: found with 80 % power at 5 %, if models' gaps scatter as the memoriser's or the floor's do,"
        " whichever more; beyond the floor:\nif they scatter as the memoriser's less the floor's do over three seeds or"
        " more; floor: real images of all clients; memoriser: the images of part_train,\nparticipants: further images"
        " of clients that train, if there are any: the gap of a generator that has learnt them all, for scale"
    )
    title = f"before training: participation gaps, mean of {len(next(iter(found.values())))} seed(s)"
    headings = ("partition", "score", "smallest", "beyond the floor", *SHOWN)
    return make_table(title, headings, rows, note, left=2)


def outcomes(found: gaps.GapScores) -> list[str]:
    """Say what the paper says of classifiers, and whether it is so here; of KID by gaps beyond the floor's."""
    lines = []
    for column in gaps.AVERAGES:
        own: dict[str, list[float]] = {}
        for arm in found.curves:
            hidden = arm.split(",")[0] in (LABELS, RANDOM)
            lines.append(found.outcome(arm, gaps.PARTICIPATION, column, hidden))
            (own[arm],) = found.values(column, gaps.PARTICIPATION, arm)
            if column != gaps.MAIN:
                lines.append(found.beyond_outcome(arm, column, hidden))
                own[arm] = found.beyond(arm, column)
        what = f"the participation gap in {column}{'' if column == gaps.MAIN else ' beyond the floor'}"
        for shows, hides in product((NATURAL, SEMANTIC), (LABELS, RANDOM)):
            if own.get(shows) and own.get(hides):
                text = f"{shows}: {what} is above that of {hides}"
                lines.append(verdict_on(text, (own[hides], own[shows]), "more"))
    for arm, place, column in product(found.curves, (SPLITS[2], gaps.OUT_OF_SAMPLE, gaps.PARTICIPATION), gaps.AVERAGES):
        if (central := f"{arm}, {CONTROL}") in found.curves:
            title = gap_title(place) if place in GAPS else f"score on {place}"
            text = f"{central}: {title} in {column} beside {arm}"
            lines.append(verdict_on(text, found.values(column, place, arm, central)))
    return [*lines, by_chance(len(lines))]


SCORES = ("loss", "kid")
TAIL = "pct95"  # of scores by which less is better, where the badly served are
Spread = Mapping[str, Mapping[str, Any]]  # arm -> seed -> score -> split -> percentile -> value by evaluation


def client_percentiles(**options: Any) -> None:
    """Percentiles over clients of scores on seen and unseen clients, by partition."""
    choice = PartitionChoice(**options)
    study, arms = choice.study("client-percentiles"), choice.arms
    gaps.run_arms(study, choice, arms)
    spread = study.step("spread", lambda: spreads_of(choice, arms, SCORES))
    floors = study.step("floors", lambda: spreads_of(choice, arms, SCORES[1:], FLOOR))
    tables: list[Table | str] = [percentile_table(spread, score) for score in SCORES]
    figure = draw_percentiles(spread, SCORES[0], study.figure)
    study.report([*tables, *tails(spread, floors)], figure)


def tails(spread: Spread, floors: Spread) -> list[str]:
    """Say whether unseen clients have the longer tail, also beyond that of real images of all clients."""
    lines = []
    for (arm, by_seed), score in product(spread.items(), SCORES):
        text = f"{arm}: the 95th percentile of {score} is larger over unseen clients"
        lines.append(verdict_on(text, tails_of(by_seed, score), "more"))
        if all(score in one and one[score][SPLITS[2]][TAIL] for one in floors[arm].values()):
            floor, own = ([b - a for a, b in zip(*tails_of(of, score))] for of in (floors[arm], by_seed))
            lines.append(verdict_on(f"{text}, by more than the floor's", (floor, own), "more"))
    return [*lines, by_chance(len(lines))]


def spreads_of(
    choice: gaps.GapChoice, arms: Sequence[Arm], scores: Sequence[str], generator: str = MODEL
) -> dict[str, Any]:
    return {
        arm.name: {str(seed): spread_of(choice.records(arm, seed), scores, generator) for seed in choice.seeds_of}
        for arm in arms
    }


def tails_of(by_seed: Numbers, score: str, percentile: str = TAIL) -> list[list[float]]:
    """The last percentile over seen and over unseen clients, by seed."""
    return [[one[score][split][percentile][-1] for one in by_seed.values()] for split in SPLITS[1:]]


def spread_of(records: Sequence[ScoreRecord], scores: Sequence[str], generator: str = MODEL) -> dict[str, Any]:
    found: dict[str, Any] = {score: {} for score in scores}
    for score, split in product(scores, SPLITS):
        own = [r for r in records if (r.generator, r.score, r.split) == (generator, score, split)]
        own.sort(key=lambda record: record.round or 0)
        found[score][split] = {name: [one.value for one in own if one.aggregate == name] for name in PERCENTILES}
    return found


def percentile_table(spread: Spread, score: str) -> Table:
    rows: list[Sequence[str]] = []
    for arm, by_seed in spread.items():
        for split in SPLITS:
            values = [statistics.mean(one[score][split][name][-1] for one in by_seed.values()) for name in PERCENTILES]
            rows.append((arm, split, *(f"{value:.3g}" for value in values)))
        rows.append(())
    title = f"{score} of single clients after the last round, mean over seeds"
    return make_table(title, ("partition", "split", *PERCENTILES), rows, left=2)


def draw_percentiles(spread: Spread, score: str, path: Path) -> Path:
    """A panel a partition: bands from the 5th to the 95th and from the 25th to the 75th percentile, and the median."""
    with panels(path, (3.4 * len(spread) + 0.8, 3.6), 1, len(spread), sharey=True) as (_, (row,)):
        for axes, (partition, by_seed) in zip(row, spread.items()):
            for split, colour in list(SPLIT_COLOURS.items())[1:]:
                curves = [one[score][split] for one in by_seed.values()]
                lines = {name: list(map(statistics.mean, zip(*(one[name] for one in curves)))) for name in PERCENTILES}
                checks = range(1, len(lines["pct50"]) + 1)
                for low, high, alpha in (("pct5", "pct95", 0.15), ("pct25", "pct75", 0.25)):
                    axes.fill_between(checks, lines[low], lines[high], color=colour, alpha=alpha, linewidth=0)
                axes.plot(checks, lines["pct50"], color=colour, label=split)
            axes.set_title(partition, fontsize=10)
            axes.set_xlabel("evaluation")
            axes.set_xticks(checks)
        row[0].set_ylabel(f"{score} of single clients")
        row[0].legend(fontsize=8)
    return path


SCORE = "loss"  # what a model's `example_losses` are scored as
CENTRAL = f"{NATURAL}, {CONTROL}"


@dataclass(frozen=True)
class NaturalChoice(PartitionChoice):
    """Options of `PartitionChoice` for a model whose own losses alone are scored."""

    scores: ClassVar[tuple[str, ...]] = (SCORE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own != NATURAL:
            raise ValueError(f"{self.recipe} must have natural clients (data.init_args.partition: Natural)")


def report_gaps(
    name: str, choice: NaturalChoice, title: str, plural: str, outcomes: Callable[[gaps.GapScores], list[str]]
) -> None:
    study, arms = choice.study(name), choice.arms
    found = gaps.run_arms(study, choice, arms)
    spread = study.step("spread", lambda: spreads_of(choice, arms, (SCORE,)))
    figure = draw_percentiles(spread, SCORE, study.path("percentiles.png"))
    tables: list[Table | str] = [percentile_table(spread, SCORE), f"percentiles: {figure}"]
    gaps.report_arms(study, found, title, [*tables, *verdicts(found, outcomes), *natural_tails(spread, plural)])


def verdicts(found: gaps.GapScores, outcomes: Callable[[gaps.GapScores], list[str]]) -> list[str]:
    lines = []
    for arm in found.curves:
        lines.append(found.outcome(arm, gaps.OUT_OF_SAMPLE, gaps.MAIN, hidden=False))
        lines.append(found.outcome(arm, gaps.PARTICIPATION, gaps.MAIN, hidden=arm in (LABELS, RANDOM)))
    lines += outcomes(found)
    return [*lines, by_chance(len(lines))]


def said(found: gaps.GapScores, text: str, control: str, treated: str, place: str, claim: Claim | None = None) -> str:
    return verdict_on(text, found.values(gaps.MAIN, place, control, treated), claim)


def natural_tails(spread: Spread, plural: str) -> list[str]:
    """Say whether unseen clients are served worse: Table 2 of the paper."""
    percentiles = {TAIL: "95th percentile", "pct50": "median"}
    return [
        verdict_on(
            f"{arm}: the {text} of the clients' {plural} is larger over unseen clients",
            tails_of(spread[arm], SCORE, name),
            "more",
        )
        for arm, (name, text) in product((NATURAL, CENTRAL), percentiles.items())
    ]


PLAIN = f"{NATURAL}, FedAvg"
SERVER = "trainer.strategy.init_args.server_optimizer"


@dataclass(frozen=True)
class ClassifierChoice(NaturalChoice):
    """Options of `PartitionChoice` for a classifier: its error rate alone is scored.

    Args:
        recipe: of a model whose `example_losses` are errors, with a server optimizer, natural clients and a `split`.
        seeds: repetitions, each with another split, other draws and other first weights, the same for all arms.
    """

    recipe: Path = Path("recipes/classifier_style_shift.yaml")
    seeds: int = 5

    @cached_property
    def arms(self) -> list[Arm]:
        """The partitions with the recipe's FedAvgM; of natural clients also FedAvg and training on pooled images."""
        return [*super().arms, Arm(PLAIN, {SERVER: None}), Arm(CENTRAL, {}, CONTROL)]


def classifier_control(**options: Any) -> None:
    """A small classifier's errors on seen and unseen clients beside the signs and orderings of the published tables."""
    choice = ClassifierChoice(**options)
    report_gaps("classifier-control", choice, "error rate of a classifier", "errors", classifier_outcomes)


def classifier_outcomes(found: gaps.GapScores) -> list[str]:
    lines = []
    for split in SPLITS[1:]:
        lines.append(said(found, f"centralised, fewer errors on {split}", NATURAL, CENTRAL, split, "less"))
        lines.append(said(found, f"FedAvgM, fewer errors than FedAvg on {split}", PLAIN, NATURAL, split, "less"))
    for arm, real in product((LABELS, RANDOM), (NATURAL, SEMANTIC)):
        text = f"a larger participation gap of {real} clients than of {arm} ones"
        lines.append(said(found, text, arm, real, gaps.PARTICIPATION, "more"))
    return [*lines, said(found, "FedAvgM: the participation gap beside FedAvg", PLAIN, NATURAL, gaps.PARTICIPATION)]


@dataclass(frozen=True)
class TextChoice(NaturalChoice):
    """Options of `PartitionChoice` for texts: the model's own loss alone is scored, and nothing is embedded.

    Args:
        recipe: of a model with `example_losses`, natural clients, a `split`, and labels for an arm split by these.
    """

    recipe: Path = Path("recipes/bible_text.yaml")

    @cached_property
    def arms(self) -> list[Arm]:
        """The recipe's owners, the same windows by label and at random, and training on the pooled windows."""
        labelled = self.federation(Arm(NATURAL)).examples.is_labelled
        left_out = (SEMANTIC,) if labelled else (SEMANTIC, LABELS)
        return [*(arm for arm in super().arms if arm.name not in left_out), Arm(CENTRAL, {}, CONTROL)]


def text_gap(**options: Any) -> None:
    """Gaps of a character model on unseen text and on unseen books, and percentiles over books, by partition."""
    report_gaps("text-gap", TextChoice(**options), "loss of a character model", "losses", text_outcomes)


def text_outcomes(found: gaps.GapScores) -> list[str]:
    lines = []
    for arm in (arm for arm in (LABELS, RANDOM) if arm in found.curves):
        text = f"a larger participation gap of {NATURAL} clients than of {arm} ones"
        lines.append(said(found, text, arm, NATURAL, gaps.PARTICIPATION, "more"))
    for split in SPLITS[1:]:
        lines.append(said(found, f"{CONTROL}, a smaller loss on {split}", NATURAL, CENTRAL, split, "less"))
    return lines
