"""A hundred generators of known kind against clients that hold a class each: how FID and KID rank them in two ways.

The generators are classes that no client holds, mixtures of such classes, and neighbourhoods of an image; or the
classes of other data, as in the papers: CIFAR-100's on clients with a class of CIFAR-10 each.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings import BOTH, CLIENTS, FLAT, RankingStudy, best_of, gap_of
from fedgen.experiments.engine.scored_checkpoints import PCA, title_of
from fedgen.experiments.engine.study import Numbers, at_least, expectation, make_table, quickly
from fedgen.experiments.ranking.class_federation import CLIENTS_IMAGES, KINDS, ClassChoice, measure_all
from fedgen.scores import FrechetReference, KernelReference
from fedgen.statistics import Projection

SCORES = ("fid", PCA, "kid")


@quickly(controls=1)
def class_generators(controls: int = 3, **options: Any) -> None:
    """Scores the generators by FID, FID on few components and KID, avg and all; prints and draws how they are ranked.

    The papers' settings are `--data cifar10 --generators cifar100` and `--data imagenet32 --generators cifar100`, with
    `--embedding inception-v3-compat`.

    Args:
        controls: IID dealings of the clients' images.
    """
    choice = ClassChoice(total_images=CLIENTS_IMAGES, **options)
    at_least(1, controls=controls, components=choice.components)
    study = choice.study("class-generators", controls=controls)
    titles = {score: title_of(score, choice.components) for score in SCORES}
    ranking = measure_all(
        study, choice, titles, "kernel", lambda places, dealt: ClassMeasure(places.projection, dealt), controls
    )
    found, kernel = study.step("found", lambda: summarise(ranking)), study.numbers["kernel"]["mean"]
    mean = found["mean term"]
    text = f"FID's mean term has one gap for all generators, to {mean['spread'] / mean['mean']:.1e} of it: the rest is"
    tables: list[Table | str] = [
        ranking.table(found["scores"]),
        floor_table(ranking),
        *ranking.lines(found["scores"], kernel),
        expectation(f"{text} the covariances'", mean["spread"] < FLAT * mean["mean"]),
    ]
    study.report(tables, ranking.draw(found["scores"], study.figure))


class ClassMeasure:
    """Every score of a generator, over the clients and over IID dealings of their images."""

    def __init__(self, projection: Projection, dealt: Mapping[str, FeatureFederation]) -> None:
        self.projection = projection
        projected = projection.project(dealt[CLIENTS].features)
        self.few = {
            where: FrechetReference.from_features(replace(one, features=projected).parts())
            for where, one in dealt.items()
        }
        self.frechet = {where: FrechetReference.from_features(one.parts()) for where, one in dealt.items()}
        self.kernel = KernelReference.from_features(dealt[CLIENTS].parts())

    def once(self) -> dict[str, float]:
        """The mean kernel within the pool, and KID's gap, which are one number for all generators."""
        return {"mean": self.kernel.within_pool, "gap": self.kernel.gap}

    def __call__(self, generated: Tensor) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of generated features."""
        reduced = self.projection.project(generated)
        clients = rows_of([self.frechet[CLIENTS].score(generated), self.kernel.score(generated)])
        found = {}
        for where, few in self.few.items():
            plain = clients if where == CLIENTS else {"fid": dealt(self.frechet[where], generated, clients["fid"])}
            found[where] = plain | rows_of([replace(few.score(reduced), name=PCA)])
        return found


def dealt(control: FrechetReference, generated: Tensor, row: Numbers) -> dict[str, Any]:
    """FID over IID clients: avg is computed; all, and the errors of both, are those of the clients' pool."""
    # to first order an IID client is the pool, and errors cost three times the distance (measured: within 1 percent)
    avg, error = float(control.weights @ control.per_client(generated)), row["errors"]["all"]
    return {"avg": avg, "all": row["all"], "errors": {"avg": error, "all": error}}


def summarise(ranking: RankingStudy) -> dict[str, Any]:
    """Return what `compare` finds of each score, the gap of FID's mean term, and pairs beyond error by kinds."""
    rows, kinds, found = ranking.rows.clients, list((ranking.kinds or {}).values()), ranking.compared()
    means = {name: {"mean term": row["fid"]["terms"]["mean"]} for name, row in rows.items()}
    whose: dict[str, dict[str, int]] = {}
    for score in ("fid", PCA):
        pairs = [sorted((kinds[i], kinds[j]), key=KINDS.index) for i, j in found[score]["evidence"]]
        titles = [" and ".join(dict.fromkeys(pair)) for pair in pairs]
        whose[score] = {title: titles.count(title) for title in sorted(set(titles))}
    return {"scores": found, "mean term": gap_of(means, "mean term"), "kinds": whose}


def floor_table(ranking: RankingStudy) -> Table:
    """The real floor's scores, and the best generator's by avg and by all."""
    rows, real = ranking.rows.clients, ranking.real

    def cells(score: str) -> list[Any]:
        best = {how: best_of(rows, score, how) for how in BOTH}
        return [real[score][how] for how in best] + [
            cell for how, name in best.items() for cell in (name, rows[name][score][how])
        ]

    return make_table(
        "held-out images of the clients' classes, and the best of the generators",
        ("score", "real avg", "real all", "best by avg", "its avg", "best by all", "its all"),
        [[title, *cells(score)] for score, title in ranking.titles.items()],
        names=("score", "best by avg", "best by all"),
    )
