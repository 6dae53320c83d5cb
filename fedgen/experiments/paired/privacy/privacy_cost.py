"""The cost of differential privacy for whole clients in a federated generator: scores against noise, beside their
epsilon.

A WGAN-GP over a hundred clients of digits: the plain mean, updates clipped alone, and clipped with more and more noise
(`PrivateMean`, McMahan et al. 2018, arXiv 1710.06963), from equal first weights and draws.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation import Run
from fedgen.evaluation.record_names import REPORT
from fedgen.evaluation.records import FLOOR, MODEL
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.recipe_file import component, fingerprint, read_recipe, rounds_of, start_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, by_seed, train_all, trainings_of
from fedgen.federated.aggregators.participations import Participations
from fedgen.statistics.accounting import federated_epsilon

PLAIN, CLIPPED = "plain mean", "clipped"
SCORES = ("fid_avg", "fid_all", "kid_all")
FIGURE = "privacy_cost.png"
AGGREGATOR = "trainer.strategy.init_args.aggregator"


@quickly(rounds=2, seeds=1, num_images=60)
def privacy_cost(
    output: Path | None = None,
    noise: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0),
    max_norm: float = 0.5,
    delta: float = 1e-3,
    recipe: Path = Path("recipes/wgan_gp_digits_private.yaml"),
    rounds: int | None = None,
    seeds: int = 3,
    num_images: int = 1000,
    runs: Path = Path("checkpoints/runs"),
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Scores of a generator trained with clipped updates and more and more noise, and the epsilon that each has spent.

    Args:
        output: folder of results.json and the figure.
        noise: standard deviations of the noise over `max_norm`.
        max_norm: the longest update allowed.
        delta: at which epsilon is stated.
        recipe: with a PrivateMean, client_weights uniform and a cohort_size.
        rounds: of every run; the recipe's by default, 2 with --quick.
        seeds: runs of each arm; 1 with --quick.
        num_images: generated for the scores.
        runs: folder of the run folders.
        parallel: runs at once.
        seed: of the first runs.
        quick: takes a minute, to see that it runs.
    """
    if not noise or min(noise) <= 0 or seeds < 1:
        raise ValueError(f"noise={list(noise)} are positive multiples of max_norm, and seeds={seeds} count from 1")
    total = rounds or rounds_of(recipe)
    settings = {"noise": list(noise), "max_norm": max_norm, "delta": delta, "rounds": total, "seeds": seeds}
    settings |= {"num_images": num_images, "recipe": start_of(recipe), "seed": seed, "quick": quick}
    study = Study("privacy-cost", output, settings)
    arms = [Arm(name, {AGGREGATOR: one}) for name, one in arms_of(noise, max_norm, delta).items()]
    every, common = list(range(seed, seed + seeds)), common_settings(total, num_images)

    def place(arm: Arm, own: int) -> Path:
        return runs / f"{recipe.stem}-{start_of(recipe)}-{fingerprint({**common, **arm.settings})[:8]}-seed{own}"

    trained = trainings_of(recipe, arms, every, place, common)
    if study.missing("scores"):
        train_all(by_seed(trained), parallel)
    found = study.step(
        "scores", lambda: {name: [_last_scores(run.place) for run in own] for name, own in trained.items()}
    )
    real = study.step("real", lambda: _last_scores(trained[PLAIN][0].place, FLOOR))
    study.numbers.pop("epsilon", None)  # worked out and not measured: of a finished experiment too, as it is done now
    spent = study.step("epsilon", lambda: epsilons(recipe, noise, delta, total, every))
    study.report([table_of(found, real, spent, delta), *lines_of(found, spent)], draw(study))


def arms_of(noise: Sequence[float], max_norm: float, delta: float) -> dict[str, dict[str, Any]]:
    """The aggregator of each arm, by its name."""
    found = {PLAIN: component("fedgen.federated.Mean")}
    for multiplier in (0.0, *noise):
        options = {"max_norm": max_norm, "noise_multiplier": multiplier, "delta": delta}
        found[named(multiplier)] = component("fedgen.federated.PrivateMean", **options)
    return found


def named(multiplier: float) -> str:
    """An arm's name by its noise."""
    return f"noise {multiplier:g}" if multiplier else CLIPPED


def epsilons(recipe: Path, noise: Sequence[float], delta: float, rounds: int, seeds: Sequence[int]) -> dict[str, float]:
    """Return what each noise has spent after so many rounds of a recipe's federation, by the seed that draws a client
    most.
    """
    settings = read_recipe(recipe)
    clients = int(settings["data"]["init_args"]["partition"]["init_args"]["num_clients"])
    cohort = int(settings["trainer"]["strategy"]["init_args"]["cohort_size"])
    most = max(participations(rounds, clients, cohort, seed).most for seed in seeds)
    return {named(z): federated_epsilon(z, most, delta) for z in noise}


def participations(rounds: int, clients: int, cohort: int, seed: int) -> Participations:
    """Count how often each client takes part in so many rounds."""
    found = Participations(clients, cohort, seed)
    found.reach(rounds)
    return found


def common_settings(rounds: int, num_images: int) -> dict[str, Any]:
    """Return the settings of all arms' runs, which are scored at their end."""
    evaluation = {"every_n_rounds": rounds, "num_images": num_images, "embeddings": ["efficientnet-lite0-32"]}
    return {
        "trainer.max_epochs": rounds,
        "trainer.callbacks": [component("fedgen.callbacks.FederatedEvaluation", **evaluation, grid=64)],
        "trainer.logger": False,
    }


def _last_scores(folder: Path, generator: str = MODEL) -> dict[str, float]:
    """The last round's scores against held-out images, of the model or of real images."""
    records = [one for one in Run(folder).records if one.generator == generator and one.split == REPORT]
    last = max((one.round for one in records if one.round is not None), default=None)
    return {one.name: one.value for one in records if one.round == last and one.name in SCORES}


def table_of(
    found: Mapping[str, Sequence[Mapping[str, float]]],
    real: Mapping[str, float],
    spent: Mapping[str, float],
    delta: float,
) -> Table:
    """A row an arm: what it has spent, its scores, and how far they are from those of clipping alone."""
    table = Table(title=f"a hundred clients of digits, mean of {len(found[PLAIN])} seed(s), against held-out images")
    for heading in ("aggregation", f"epsilon, delta {delta:g}", *SCORES, "kid_all beside clipping alone"):
        table.add_column(heading, justify="left" if heading == "aggregation" else "right")
    for name, seeds in found.items():
        means = [f"{statistics.mean(one[score] for one in seeds):.3g}" for score in SCORES]
        change = change_of(_pairs(found, name, "kid_all")) if name in spent else ""
        table.add_row(name, f"{spent[name]:.3g}" if name in spent else "none", *means, change)
    table.add_section()
    table.add_row("real images", "", *(f"{real[score]:.3g}" for score in SCORES), "")
    return table


def lines_of(found: Mapping[str, Sequence[Mapping[str, float]]], spent: Mapping[str, float]) -> list[str]:
    """Say whether clipping and noise cost what is expected of them."""
    lines = [
        verdict("clipping alone is worse than the plain mean: kid_all", compare_of(found, PLAIN, CLIPPED), "more"),
    ]
    for name in spent:
        row = _pairs(found, name, "kid_all")
        lines.append(verdict(f"{name}, epsilon {spent[name]:.3g}, is worse than clipping alone: kid_all", row, "more"))
    ordered = [mean_of(_pairs(found, name, "kid_all")) for name in spent]
    lines.append(expectation("kid_all rises with the noise", ordered == sorted(ordered)))
    return lines


def compare_of(
    found: Mapping[str, Sequence[Mapping[str, float]]], control: str, treated: str, score: str = "kid_all"
) -> dict[str, Any]:
    """One arm beside another over seeds."""
    return compare_pairs([one[score] for one in found[control]], [one[score] for one in found[treated]])


def _pairs(found: Mapping[str, Sequence[Mapping[str, float]]], name: str, score: str) -> dict[str, Any]:
    return compare_of(found, CLIPPED, name, score)


def draw(study: Study) -> Path:
    """FID-all and KID-all against epsilon, a point a seed; lines for clipping alone, the plain mean and real images."""
    from matplotlib.figure import Figure

    found, spent, real = (study.numbers[key] for key in ("scores", "epsilon", "real"))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, score in zip(figure.subplots(1, 2), ("fid_all", "kid_all")):
        points = [(spent[name], one[score]) for name in spent for one in found[name] if math.isfinite(spent[name])]
        axes.scatter(*zip(*points), color="#1f5fa8", s=18, zorder=3, label="clipped and noisy")
        means = [(spent[name], statistics.mean(one[score] for one in found[name])) for name in spent]
        axes.plot(*zip(*sorted(means)), color="#1f5fa8", linewidth=1)
        for name, colour in ((CLIPPED, "#b35c00"), (PLAIN, "#3a8a3a")):
            mean = statistics.mean(one[score] for one in found[name])
            axes.axhline(mean, color=colour, linewidth=1, label=name)
        axes.axhline(real[score], color="black", linestyle="--", linewidth=1, label="real images")
        axes.set_xscale("log")
        if score == "fid_all":
            axes.set_yscale("log")
        axes.set_xlabel(f"epsilon at delta {study.settings['delta']:g}: less is more private")
        axes.set_ylabel(f"{score.replace('_', '-').upper().replace('ALL', 'all')}, held-out images")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    figure.suptitle("What privacy for whole clients costs: a hundred clients of digits", fontsize=11)
    return save_figure(figure, study.path(FIGURE))
