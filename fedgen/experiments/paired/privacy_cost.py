"""The cost of differential privacy for whole clients: a WGAN-GP's scores against noise, beside their epsilon.

The plain mean, updates clipped, and clipped with noise (`PrivateMean`, McMahan et al. 2018, arXiv 1710.06963).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run
from fedgen.evaluation.names import REPORT
from fedgen.evaluation.records import FLOOR, MODEL
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, Styles, draw_panels
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.scored_arms import REAL_IMAGES
from fedgen.experiments.engine.study import Study, expectation, make_table
from fedgen.federated.aggregators.private_mean import Participations
from fedgen.statistics.private import federated_epsilon

PLAIN, CLIPPED, NOISY = "plain mean", "clipped", "clipped and noisy"
SCORES = {"fid_avg": "FID-avg", "fid_all": "FID-all", "kid_all": "KID-all"}
AGGREGATOR = "trainer.strategy.init_args.aggregator"
STYLES: Styles = {
    NOISY: {"color": "#1f5fa8", "marker": "o"},
    CLIPPED: {"color": "#b35c00", "linewidth": 1},
    PLAIN: {"color": "#3a8a3a", "linewidth": 1},
    REAL_IMAGES: REAL,
}
Found = Mapping[str, Sequence[Mapping[str, float]]]
"""arm -> one for each seed: score -> value"""


@dataclass(frozen=True)
class PrivacyChoice(trainings.RecipeChoice):
    """Options of privacy-cost; its fields are options of the command.

    Args:
        noise: standard deviations of the noise over `max_norm`.
        max_norm: the longest update allowed.
        delta: at which epsilon is stated.
        recipe: with a PrivateMean, client_weights uniform and a cohort_size.
        rounds: of every run; the recipe's by default.
        num_images: generated for the scores.
        runs: folder of the run folders.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"rounds": 2, "seeds": 1, "num_images": 60}

    noise: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    max_norm: float = 0.5
    delta: float = 1e-3
    recipe: Path = Path("recipes/wgan_gp_digits_private.yaml")
    rounds: int | None = None
    num_images: int = 1000
    runs: Path = Path("checkpoints/runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise or min(self.noise) <= 0:
            raise ValueError(f"noise={list(self.noise)}: give one or more positive multiples of max_norm")

    @property
    def total(self) -> int:
        return self.rounds or trainings.rounds_of(self.recipe)

    def resolved(self) -> dict[str, Any]:
        return {"rounds": self.total, "recipe": trainings.start_of(self.recipe)}


def privacy_cost(**options: Any) -> None:
    """Scores of a generator trained with clipped updates and more and more noise, and the epsilon that each spent."""
    choice = PrivacyChoice(**options)
    recipe, delta, noise = choice.recipe, choice.delta, choice.noise
    study, evaluation = choice.study("privacy-cost"), {"every_n_rounds": choice.total, "num_images": choice.num_images}
    common = trainings.evaluated(choice.total, **evaluation, embeddings=["efficientnet-lite0-32"], grid=64)
    arms = [trainings.Arm(name, {AGGREGATOR: one}) for name, one in arms_of(noise, choice.max_norm, delta).items()]

    def place(arm: trainings.Arm, seed: int) -> Path:
        own = trainings.fingerprint({**common, **arm.settings})[:8]
        return choice.runs / f"{recipe.stem}-{trainings.start_of(recipe)}-{own}-seed{seed}"

    trained = trainings.train_arms(study, "scores", choice, arms, common, place)
    found = study.step(
        "scores", lambda: {name: [_last_scores(run.place) for run in own] for name, own in trained.items()}
    )
    real = study.step("real", lambda: _last_scores(trained[PLAIN][0].place, FLOOR))
    study.numbers.pop("epsilon", None)  # worked out and not measured: of a finished experiment too, as it is done now
    spent = study.step("epsilon", lambda: epsilons(recipe, noise, delta, choice.total, choice.seeds_of))
    study.report([table_of(found, real, spent, delta), *lines_of(found, spent)], draw(study))


def arms_of(noise: Sequence[float], max_norm: float, delta: float) -> dict[str, dict[str, Any]]:
    found = {PLAIN: trainings.component("fedgen.federated.Mean")}
    for multiplier in (0.0, *noise):
        options = {"max_norm": max_norm, "noise_multiplier": multiplier, "delta": delta}
        found[named(multiplier)] = trainings.component("fedgen.federated.PrivateMean", **options)
    return found


def named(multiplier: float) -> str:
    return f"noise {multiplier:g}" if multiplier else CLIPPED


def epsilons(recipe: Path, noise: Sequence[float], delta: float, rounds: int, seeds: Sequence[int]) -> dict[str, float]:
    """Return what each noise has spent after so many rounds, by the seed that draws a client most."""
    settings = trainings.read_recipe(recipe)
    clients = int(settings["data"]["init_args"]["partition"]["init_args"]["num_clients"])
    cohort = int(settings["trainer"]["strategy"]["init_args"]["cohort_size"])
    counts = [Participations(clients, cohort, seed) for seed in seeds]
    for count in counts:
        count.reach(rounds)
    most = max(count.most for count in counts)
    return {named(z): federated_epsilon(z, most, delta) for z in noise}


def _last_scores(folder: Path, generator: str = MODEL) -> dict[str, float]:
    """The last round's scores against held-out images, of the model or of real images."""
    records = [one for one in Run(folder).records if one.generator == generator and one.split == REPORT]
    last = max((one.round for one in records if one.round is not None), default=None)
    return {one.name: one.value for one in records if one.round == last and one.name in SCORES}


def table_of(found: Found, real: Mapping[str, float], spent: Mapping[str, float], delta: float) -> Table:
    rows: list[Sequence[str]] = []
    for name, seeds in found.items():
        means = [f"{mean_of({'values': [one[score] for one in seeds]}):.3g}" for score in SCORES]
        change = change_of(compare_of(found, CLIPPED, name)) if name in spent else ""
        rows.append((name, f"{spent[name]:.3g}" if name in spent else "none", *means, change))
    rows += [(), (REAL_IMAGES, "", *(f"{real[score]:.3g}" for score in SCORES), "")]
    headings = ("aggregation", f"epsilon, delta {delta:g}", *SCORES, "kid_all beside clipping alone")
    title = f"a hundred clients of digits, mean of {len(found[PLAIN])} seed(s), against held-out images"
    return make_table(title, headings, rows)


def lines_of(found: Found, spent: Mapping[str, float]) -> list[str]:
    rows = {name: compare_of(found, CLIPPED, name) for name in spent}
    lines = [verdict("clipping alone is worse than the plain mean: kid_all", compare_of(found, PLAIN, CLIPPED), "more")]
    for name, row in rows.items():
        lines.append(verdict(f"{name}, epsilon {spent[name]:.3g}, is worse than clipping alone: kid_all", row, "more"))
    ordered = list(map(mean_of, rows.values()))
    return [*lines, expectation("kid_all rises with the noise", ordered == sorted(ordered))]


def compare_of(found: Found, control: str, treated: str) -> dict[str, Any]:
    usual, own = ([one["kid_all"] for one in found[arm]] for arm in (control, treated))
    return compare_pairs(usual, own)


def draw(study: Study) -> Path:
    found, spent, real = (study.numbers[key] for key in ("scores", "epsilon", "real"))

    def panel(score: str) -> ArmPanel:
        values = {name: [one[score] for one in seeds] for name, seeds in found.items()}
        noisy = {spent[name]: values[name] for name in sorted(spent, key=lambda name: spent[name])}
        levels = {CLIPPED: values[CLIPPED], PLAIN: values[PLAIN], REAL_IMAGES: [real[score]]}
        label = f"{SCORES[score]}, held-out images"
        return ArmPanel({NOISY: noisy}, levels, label=label, log="xy" if score == "fid_all" else "x")

    title = "What privacy for whole clients costs: a hundred clients of digits"
    across = f"epsilon at delta {study.settings['delta']:g}: less is more private"
    panels = [[panel("fid_all"), panel("kid_all")]]
    return draw_panels(panels, STYLES, study.figure, title, across, (4.5, 3.2))
