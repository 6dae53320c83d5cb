"""1-Wasserstein distance of class generators by trained critics, avg and all, beside the sliced distance.

A critic's value is a lower bound of the distance. How low is measured first, where the distance is known; so this is a
comparison of what critics find, and a critic that finds less at a client than at the pool inverts pairs by itself.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import Rows, agreement_table, compare, expectation, inversion_lines
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.feature_federation import rows_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.experiments.ranking.classes.class_generators_figure import draw_kinds
from fedgen.experiments.ranking.classes.class_scores import CLIENTS, dealings_over, measure_all, rows_over
from fedgen.experiments.ranking.classes.critic_calibration import calibrate
from fedgen.scores import CriticOptions, SlicedReference, WassersteinReference, wasserstein_critic

RELU, SORTED, SLICED = "w1 relu", "w1 groupsort", "sw1"
TITLES = {RELU: "W1, ReLU critic", SORTED: "W1, GroupSort critic", SLICED: "sliced W1"}
LOOKS = {RELU: ("#c4560b", "o"), SORTED: ("#1f5fa8", "s"), SLICED: ("#3a8a3a", "^")}
MEANS = "means"  # the distance of the means, which a linear critic finds
TOTAL_IMAGES = 10_000  # of all clients together: every direction of the sliced distance sorts them
PATIENCE = 3  # checks: with 5 training takes half as long again for the same values
QUICK_STEPS = 60
FIGURE = "wasserstein.png"


@quickly(count=6, controls=1, projections=50)
def wasserstein(
    output: Path | None = None,
    count: int = 16,
    last_activation: bool = True,
    tolerance: float = 0.01,
    projections: int = 500,
    controls: int = 2,
    **options: Any,
) -> None:
    """Trains a critic of each network for every client and the pool against each generator; prints and draws the rest.

    The papers' setting is `--components 0 --data cifar10 --generators cifar100 --embedding inception-v3-compat`.

    Args:
        output: folder of results.json and wasserstein.png.
        count: of the generators, evenly from all kinds; at most six with --quick.
        last_activation: whether the papers' network also ends in a ReLU.
        tolerance: of the critics' stop rule.
        projections: of the sliced distance; at most 50 with --quick.
        controls: IID dealings of the clients' images.
        options: the fields of `ClassChoice`.
    """
    choice = ClassChoice(total_images=TOTAL_IMAGES, **options)
    if count < 2 or controls < 1 or choice.components < 0 or projections < 2:
        raise ValueError(
            f"count={count}, controls={controls}, components={choice.components}, projections={projections}: a ranking "
            "needs 2 generators, its evidence 1 control, components are 0 (all features) or more, projections 2 or more"
        )
    own = {"count": count, "last_activation": last_activation, "tolerance": tolerance, "projections": projections}
    study = Study("wasserstein", output, {**choice.settings(), **own, "controls": controls})
    critics = critics_of(last_activation, tolerance, choice)
    about = measure_all(
        study, choice, "calibration", lambda places: CriticMeasure(places, critics, projections, controls), count
    )
    scores, shares = study.numbers["scores"], study.numbers["calibration"]
    kinds, names = about["kinds"], list(about["kinds"])
    found = study.step("found", lambda: summarise(scores, names, controls))
    heading = f"{about['heading']}; {space(choice)}"
    tables: list[Table | str] = [
        calibration_table(shares),
        agreement_table({TITLES[name]: row for name, row in found["scores"].items()}, heading),
        values_table(scores, names),
        *outcomes(found, shares),
    ]
    rows = rows_over(scores, CLIENTS, names)
    study.report(tables, draw(rows, found["scores"], kinds, shares, scores[REAL][CLIENTS], heading, study.path(FIGURE)))


class CriticMeasure:
    """Critics and sliced distances of a generator to clients and to IID dealings of their images."""

    def __init__(
        self, places: ClassFederation, critics: Mapping[str, CriticOptions], projections: int, controls: int
    ) -> None:
        self.places, self.critics, self.projections = places, critics, projections
        federation = places.federation
        dealt = [federation, *(federation.iid(places.choice.seed, number) for number in range(controls))]
        self.parts = {
            CLIENTS if number == 0 else f"IID {number - 1}": [self.reduced(part) for part in one.parts()]
            for number, one in enumerate(dealt)
        }
        self.references = {name: self._references(parts) for name, parts in self.parts.items()}

    def reduced(self, features: Tensor) -> Tensor:
        """Features on the public principal components, float32; as they are where all features are asked for."""
        return self.places.projection.project(features).float() if self.places.choice.components else features

    def once(self) -> dict[str, dict[str, float]]:
        """Shares of known distances, found on the clients' images, of which as many as generators draw are moved."""
        seed, projections = self.places.choice.seed, self.projections

        def by_slices(generated: Tensor, real: Tensor) -> float:
            reference = SlicedReference.from_features([real], projections=projections, seed=seed)
            return reference.score(generated, errors=False).values["all"]

        by_critic = {name: partial(_by_critic, options) for name, options in self.critics.items()}
        pool = torch.cat(self.parts[CLIENTS])
        number = min(self.places.num_images, len(pool) // 2)
        return calibrate(pool, number, {**by_critic, SLICED: by_slices}, seed, sliced=[SLICED])

    def __call__(self, name: str) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of a generator, or of the real floor."""
        generated = self.reduced(self.places.floor() if name == REAL else self.places.draw(name))
        found: dict[str, Any] = {}
        for where, references in self.references.items():
            scores = [replace(reference.score(generated), name=score) for score, reference in references.items()]
            found[where] = rows_of(scores) | {MEANS: distance_of_means(self.parts[where], generated)}
        return found

    def _references(self, parts: list[Tensor]) -> dict[str, WassersteinReference | SlicedReference]:
        critics = {name: WassersteinReference.from_features(parts, options) for name, options in self.critics.items()}
        sliced = SlicedReference.from_features(parts, projections=self.projections, seed=self.places.choice.seed)
        return {**critics, SLICED: sliced}


def _by_critic(options: CriticOptions, generated: Tensor, real: Tensor) -> float:
    return wasserstein_critic(generated, real, options)[0]


def distance_of_means(parts: list[Tensor], generated: Tensor) -> dict[str, float]:
    """|E g - E t| to the clients, avg (by images), and to their pool: a lower bound of W1 that needs no training."""
    counts = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    weights, centre = counts / counts.sum(), generated.double().mean(0)
    means = torch.stack([part.double().mean(0) for part in parts])
    return {"avg": float(weights @ (means - centre).norm(dim=1)), "all": float((weights @ means - centre).norm())}


def summarise(scores: Mapping[str, Any], names: list[str], controls: int) -> dict[str, Any]:
    """Return what `compare` finds of each score, and its mean share of the distance of the means, which W1 is never
    below.
    """
    rows, dealings = rows_over(scores, CLIENTS, names), dealings_over(scores, names, controls)
    shares = {
        score: {how: statistics.mean(row[score][how] / row[MEANS][how] for row in rows.values())
                for how in ("avg", "all")}
        for score in TITLES
    }  # fmt: skip
    return {"scores": {score: compare(rows, dealings, score) for score in TITLES}, "of means": shares}


def critics_of(last_activation: bool, tolerance: float, choice: ClassChoice) -> dict[str, CriticOptions]:
    """Both networks' options by score; narrow and 60 steps of a quick run."""
    shared: dict[str, Any] = {"tolerance": tolerance, "patience": PATIENCE, "seed": choice.seed}
    if choice.quick:
        shared |= {"max_steps": QUICK_STEPS, "hidden": 32}
    return {
        RELU: CriticOptions("relu", last_activation=last_activation, **shared),
        SORTED: CriticOptions("groupsort", **shared),
    }


def space(choice: ClassChoice) -> str:
    """In what distances are measured, for titles."""
    components, embedding = choice.components, choice.embedding
    return f"{components} public components of {embedding}" if components else f"all features of {embedding}"


def calibration_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Cases by scores."""
    table = Table(
        title="share of a known distance that is found",
        caption="shift: real images moved by that part of their spread; width: Gaussian images whose widest axis is"
        " that many times as wide. A critic is measured on images it never saw; elsewhere its values are lower bounds",
        caption_justify="left",
    )
    for heading in ("case", *TITLES.values()):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, row in shares.items():
        table.add_row(case, *(f"{row[score]:.2f}" if score in row else "-" for score in TITLES))
    return table


def values_table(scores: Mapping[str, Any], names: list[str]) -> Table:
    """Mean scores of the generators and of held-out real images, beside the distance of the means."""
    table = Table(title="means over the generators, and held-out images of the clients' classes")
    for heading in ("score", "avg", "all", "real avg", "real all"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for score, title in {**TITLES, MEANS: "distance of the means"}.items():
        means = [statistics.mean(scores[name][CLIENTS][score][how] for name in names) for how in ("avg", "all")]
        real = [scores[REAL][CLIENTS][score][how] for how in ("avg", "all")]
        table.add_row(title, *(f"{value:.4g}" for value in (*means, *real)))
    return table


def outcomes(found: Mapping[str, Any], shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what was expected and whether it was seen."""
    least = {score: min(row[score] for case, row in shares.items() if case.startswith("shift")) for score in TITLES}
    wide = {score: max(row[score] for row in shares.values() if score in row and SLICED not in row) for score in LOOKS
            if score != SLICED}  # fmt: skip
    lines = [
        expectation(f"the GroupSort critic finds {least[SORTED]:.2f} of a shift at least", least[SORTED] > 0.9),
        expectation(
            f"the ReLU critic finds {wide[RELU]:.2f} of a width at most; half is its bound", wide[RELU] <= 0.55
        ),
    ]
    for score in (RELU, SORTED):
        lines += inversion_lines(TITLES[score], found["scores"][score])
        share = found["of means"][score]
        text = f"{TITLES[score]}: finds {share['avg']:.2f} (avg) and {share['all']:.2f} (all) of the distance of the"
        lines.append(expectation(f"{text} means, which W1 is never below", min(share.values()) >= 1))
    return lines + inversion_lines(TITLES[SLICED], found["scores"][SLICED])


def draw(
    rows: Rows,
    found: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, str],
    shares: Mapping[str, Mapping[str, float]],
    real: Mapping[str, Mapping[str, Any]],
    heading: str,
    path: Path,
) -> Path:
    """avg against all of both critics and of the sliced distance, real images too, and the calibration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 8), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    for axes, (score, title) in zip(panels, TITLES.items()):
        draw_kinds(axes, rows, score, title, kinds, found[score], real[score])
    draw_shares(panels[3], shares)
    figure.suptitle(heading.replace("; ", "\n"), fontsize=9)
    return save_figure(figure, path)


def draw_shares(axes: Any, shares: Mapping[str, Mapping[str, float]]) -> None:
    """Share of the known distance by case, a mark each score."""
    axes.axhline(1, color="0.5", linewidth=1)
    for score, (colour, marker) in LOOKS.items():
        known = {place: row[score] for place, row in enumerate(shares.values()) if score in row}
        axes.plot(
            list(known), list(known.values()), color=colour, marker=marker, linestyle="none", label=TITLES[score]
        )  # fmt: skip
    axes.set_xticks(range(len(shares)), [case.replace(" ", "\n") for case in shares])
    axes.set_ylim(0, 1.55)
    axes.set_ylabel("share of the known distance")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="upper left")
