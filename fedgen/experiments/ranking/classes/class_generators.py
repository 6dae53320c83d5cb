"""A hundred generators of known kind against clients that hold a class each: how FID and KID rank them in two ways.

The generators are classes that no client holds, mixtures of such classes, and neighbourhoods of an image; or the
classes of other data, as in the papers: CIFAR-100's on clients with a class of CIFAR-10 each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import agreement_table, compare, expectation, gap_of, inversion_lines
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.feature_federation import rows_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import CLIENTS_IMAGES, ClassChoice, ClassFederation
from fedgen.experiments.ranking.classes.class_generators_figure import draw
from fedgen.experiments.ranking.classes.class_recipes import KINDS
from fedgen.experiments.ranking.classes.class_scores import CLIENTS, dealings_over, measure_all, rows_over
from fedgen.scores import FrechetReference, KernelReference

PROJECTED = "fid pca"  # FID on principal components of public images
TITLES = {"fid": "FID", PROJECTED: "FID, PCA", "kid": "KID"}
ROUNDING = 1e-9  # of the mean kernel: a gap that varies by less is constant
FIGURE = "class_generators.png"


@quickly(controls=1)
def class_generators(output: Path | None = None, controls: int = 3, **options: Any) -> None:
    """Scores the generators by FID, FID on few components and KID, avg and all; prints and draws how they are ranked.

    The papers' settings are `--data cifar10 --generators cifar100` and `--data imagenet32 --generators cifar100`, with
    `--embedding inception-v3-compat`.

    Args:
        output: folder of results.json and class_generators.png.
        controls: IID dealings of the clients' images.
        options: the fields of `ClassChoice`.
    """
    if controls < 1:
        raise ValueError(f"controls={controls}: without an IID control nothing tells heterogeneity from bias")
    choice = ClassChoice(total_images=CLIENTS_IMAGES, **options)
    if choice.components < 1:
        raise ValueError(f"components={choice.components}: FID on few components needs at least 1")
    study = Study("class-generators", output, {**choice.settings(), "controls": controls})
    about = measure_all(study, choice, "kernel", lambda places: ClassMeasure(places, controls))
    heading, kinds = about["heading"], about["kinds"]
    scores, kernel = study.numbers["scores"], study.numbers["kernel"]["mean"]
    found = study.step("found", lambda: summarise(scores, kinds, controls))
    components = choice.components
    tables: list[Table | str] = [
        agreement_table({title(name, components): row for name, row in found["scores"].items()}, heading),
        floor_table(scores, list(kinds), components),
        *outcomes(found, kernel, components),
    ]
    rows, dealings = (rows_over(scores, CLIENTS, list(kinds)), dealings_over(scores, list(kinds), controls))
    titles = {name: title(name, components) for name in TITLES}
    real = scores[REAL][CLIENTS]
    figure = draw(rows, dealings, found["scores"], kinds, titles, real, heading, study.path(FIGURE))
    study.report(tables, figure)


class ClassMeasure:
    """Every score of a generator, over the clients and over IID dealings of their images.

    Over the dealings, FID's errors are those of the pool, which is the same: to first order an IID client is the pool,
    and the error over generated images costs three times the distance itself (measured: within 1 percent of it).
    """

    def __init__(self, places: ClassFederation, controls: int) -> None:
        self.places = places
        federation, self.projection = places.federation, places.projection
        dealt = [federation, *(federation.iid(places.choice.seed, number) for number in range(controls))]
        projected = self.projection.project(federation.features)
        few = [replace(one, features=projected).parts() for one in dealt]
        self.few = [FrechetReference.from_features(parts) for parts in few]
        parts = federation.parts()
        self.kernel = KernelReference.from_features(parts)
        self.frechet = FrechetReference.from_features(parts)
        self.controls = [FrechetReference.from_features(one.parts()) for one in dealt[1:]]

    def once(self) -> dict[str, float]:
        """The mean kernel within the pool, and KID's gap, which are one number for all generators."""
        return {"mean": self.kernel.within_pool, "gap": self.kernel.gap}

    def __call__(self, name: str) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of a generator, or of the real floor."""
        generated = self.places.floor() if name == REAL else self.places.draw(name)
        reduced = self.projection.project(generated)
        rows = rows_of([self.frechet.score(generated), self.kernel.score(generated)])
        rows |= self._few(self.few[0], reduced)
        found = {CLIENTS: rows}
        for number, (control, few) in enumerate(zip(self.controls, self.few[1:])):
            found[f"IID {number}"] = {"fid": dealt(control, generated, rows["fid"]), **self._few(few, reduced)}
        return found

    def _few(self, reference: FrechetReference, reduced: Tensor) -> dict[str, Any]:
        return rows_of([replace(reference.score(reduced), name=PROJECTED)])


def dealt(control: FrechetReference, generated: Tensor, row: Mapping[str, Any]) -> dict[str, Any]:
    """FID over IID clients: avg is computed; all, and the errors of both, are those of the clients' pool."""
    avg, error = float(control.weights @ control.per_client(generated)), row["errors"]["all"]
    return {"avg": avg, "all": row["all"], "errors": {"avg": error, "all": error}}


def summarise(scores: Mapping[str, Any], kinds: Mapping[str, str], controls: int) -> dict[str, Any]:
    """Return what `compare` finds of each score, for all generators, and inverted pairs beyond error by kinds of
    generators.

    KID has no control: its gap is one number for every generator over any clients.
    """
    names = list(kinds)
    rows = rows_over(scores, CLIENTS, names)
    dealings = dealings_over(scores, names, controls)
    found = {name: compare(rows, [] if name == "kid" else dealings, name) for name in TITLES}
    means = {name: {"mean term": {how: row["fid"]["terms"]["mean"][how] for how in ("avg", "all")}}
             for name, row in rows.items()}  # fmt: skip
    whose: dict[str, dict[str, int]] = {}
    for name in ("fid", PROJECTED):
        pairs = [sorted((kinds[names[i]], kinds[names[j]]), key=KINDS.index) for i, j in found[name]["evidence"]]
        titles = [" and ".join(dict.fromkeys(pair)) for pair in pairs]
        whose[name] = {title: titles.count(title) for title in sorted(set(titles))}
    return {"scores": found, "mean term": gap_of(means, "mean term"), "kinds": whose}


def title(score: str, components: int) -> str:
    """A score's name for readers."""
    return f"{TITLES[score]}-{components}" if score == PROJECTED else TITLES[score]


def floor_table(scores: Mapping[str, Any], names: Sequence[str], components: int) -> Table:
    """The real floor's scores, and the best generator's by avg and by all."""
    table = Table(title="held-out images of the clients' classes, and the best of the generators")
    for heading in ("score", "real avg", "real all", "best by avg", "its avg", "best by all", "its all"):
        table.add_column(heading, justify="left" if heading in ("score", "best by avg", "best by all") else "right")
    for score in TITLES:
        cells = [f"{scores[REAL][CLIENTS][score][how]:.4g}" for how in ("avg", "all")]
        for how in ("avg", "all"):
            best = min(names, key=lambda name: scores[name][CLIENTS][score][how])
            cells += [best, f"{scores[best][CLIENTS][score][how]:.4g}"]
        table.add_row(title(score, components), *cells)
    return table


def outcomes(found: Mapping[str, Any], kernel: float, components: int) -> list[str]:
    """Return what the papers found, and whether it was seen."""
    lines = []
    for name in ("fid", PROJECTED):
        row, own = found["scores"][name], title(name, components)
        control = max(one["spread"] for one in row["control gap"])
        text = f"{own}: avg - all is {row['gap']['min']:.4g} to {row['gap']['max']:.4g}, its spread that of IID clients"
        text += f" {row['gap']['spread'] / control:.3g} times"
        lines.append(expectation(text, row["gap"]["spread"] > control))
        lines += inversion_lines(own, row)
    spread, mean = found["mean term"]["spread"], found["mean term"]["mean"]
    text = f"FID's mean term has one gap for all generators, to {spread / mean:.1e} of it: the rest is the covariances'"
    lines.append(expectation(text, spread < ROUNDING * mean))
    row = found["scores"]["kid"]
    text = f"KID: avg - all is one number, to {row['gap']['spread'] / kernel:.1e} of the mean kernel"
    lines.append(expectation(text, row["gap"]["spread"] < ROUNDING * kernel))
    text = f"KID: avg and all order {len(row['inverted'])} pairs differently"
    lines.append(expectation(text, not row["inverted"]))
    return lines
