"""Scores of images under several embeddings, against images trained on and held out; and of arms over paired seeds."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import Embedding, embed, network_of
from fedgen.evaluation.marks import mark_in, say_marks
from fedgen.experiments.engine.arm_panels import ArmPanel
from fedgen.experiments.engine.paired_seeds import CELL, Claim, Row, cell, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.scored_checkpoints import clients_of
from fedgen.experiments.engine.study import make_table
from fedgen.scores import frechet_distance
from fedgen.scores.manifold.manifold import ManifoldReference
from fedgen.statistics import Gaussian, summarize

SEEN = {"classifier-mnist5k": "mnist5k"}  # network -> data that it was trained on, clients' held-out images among them


def require_unrelated(embedding: str, optimised: Sequence[str], data: str | None = None) -> None:
    """Refuses to judge by an embedding whose network a loss used, or that has seen the images scored against."""
    network = network_of(embedding)
    for used in optimised:
        if network == network_of(used):
            which = "is the one" if embedding == used else f"has the network of {used}, the one"
            raise ValueError(f"embedding={embedding!r} {which} that FID is optimised in; name another to judge by")
    if data is not None and SEEN.get(network) == data:
        raise ValueError(f"embedding={embedding!r} was trained on images of {data}; name another to judge by")


HELD_OUT = "fid, held out"
SCORES = ("fid", HELD_OUT, "recall", "coverage", "trace")
TRAINING = ("fid", "trace")  # are measured against the images trained on, the others against held-out ones
HIGHER = ("recall", "coverage")  # of these more is better
TITLES = {
    "fid": "FID, training images",
    HELD_OUT: "FID, held-out images",
    "recall": "recall, held-out images",
    "coverage": "coverage, held-out images",
    "trace": "trace of covariance / the data's",
}

Scored = Mapping[str, Mapping[str, float]]  # embedding -> score -> value, as `ImageScores.score` gives them


class ImageScores:
    """The real images' side of `score`, in several embeddings."""

    def __init__(self, training: Tensor, held_out: Tensor, embeddings: Sequence[Embedding]) -> None:
        self._sides, self.floor = list[tuple[Embedding, Gaussian, Gaussian, ManifoldReference]](), {}
        for embedding in embeddings:
            text = f"embedding real images with {embedding.name}"
            own, other = (embed(embedding, images, description=text) for images in (training, held_out))
            sides = summarize(own), summarize(other), ManifoldReference.from_features([other], k=5)
            self._sides.append((embedding, *sides))
            # what a perfect generator would score: real images that were not those scored against
            self.floor[embedding.name] = _score(own, *sides) | {"fid": frechet_distance(sides[1], sides[0])[0]}

    def score(self, images: Tensor) -> dict[str, dict[str, float]]:
        """SCORES of generated images uint8 [m, C, H, W], by embedding."""
        found = {}
        for embedding, training, held_out, neighbours in self._sides:
            features = embed(embedding, images, description=f"embedding samples with {embedding.name}")
            found[embedding.name] = _score(features, training, held_out, neighbours)
        return found


def real_side(
    runs: Sequence[Path], embeddings: Sequence[Embedding], num_images: int | None = None
) -> tuple[ImageScores, Tensor]:
    """Scores against the clients of some runs, and as many held-out images uint8 [n, C, H, W] as were trained on."""
    data = clients_of(runs)
    training, held_out = (data.examples.inputs[data.pooled(part)] for part in ("train", "held_out"))
    count = min(len(training), len(held_out), num_images or len(training))
    training, held_out = (  # evenly spaced, as they lie client by client
        images[torch.linspace(0, len(images) - 1, count).round().long()] for images in (training, held_out)
    )
    return ImageScores(training, held_out, embeddings), held_out


def badness(score: str) -> Callable[[float], float]:
    """By which number less is better: FID itself, recall and coverage negated, how far a trace is from the data's."""
    if score == "trace":
        return lambda value: abs(value - 1)
    return (lambda value: -value) if score in HIGHER else float


def mark_of(score: str, embedding: str, optimised: Collection[str]) -> str:
    """The mark of one of SCORES in an embedding, of an arm whose losses used some embeddings, or none."""
    return mark_in(embedding, optimised, held_out=score not in TRAINING)


def _score(features: Tensor, training: Gaussian, held_out: Gaussian, neighbours: ManifoldReference) -> dict[str, float]:
    made, found = summarize(features), neighbours.score(features, errors=False)
    return {
        "fid": frechet_distance(made, training)[0],
        HELD_OUT: frechet_distance(made, held_out)[0],
        "recall": found["recall"].values["all"],
        "coverage": found["coverage"].values["all"],
        "trace": float(made.trace() / training.trace()),
    }


REAL_IMAGES = "real images"
Line = tuple[Sequence[str], str]  # what a line of a table is called, and its arm; or `REAL_IMAGES`


def states_in(
    scores: Mapping[str, Scored],
    places: Mapping[str, Iterable[int]],
    seeds: Sequence[int],
    key: Callable[[str, int, int], str],
) -> dict[str, dict[int, list[Scored]]]:
    """The `states` of `ScoredArms` from scores that were kept by checkpoint."""
    return {
        arm: {place: [scores[key(arm, seed, place)] for seed in seeds] for place in own} for arm, own in places.items()
    }


@dataclass(frozen=True)
class ScoredArms:
    """Scores of arms at places of their training, and of real images in a generator's place."""

    # arm -> place (steps, rounds, images shown) -> scores, one a seed
    states: Mapping[str, Mapping[int, Sequence[Scored]]]
    floor: Sequence[Scored]  # scores of real images: of all seeds together, or one a seed
    titles: Mapping[str, str]  # score -> heading, of those shown
    # arm -> the embeddings that its losses used; none for those left out
    used: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # arm -> the arm and its place (the last if None) that it is compared with; none for those left out
    beside: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    # of a score in an embedding, by the embeddings that an arm used
    mark: Callable[[str, str, Collection[str]], str] = mark_of

    def at(self, arm: str, place: int | None = None) -> Sequence[Scored]:
        """An arm's scores at a place, the last if None, by seed; those of real images for `REAL_IMAGES`."""
        if arm == REAL_IMAGES:
            return self.floor
        return self.states[arm][max(self.states[arm]) if place is None else place]

    def values(self, arm: str, embedding: str, score: str, place: int | None = None) -> list[float]:
        return [scores[embedding][score] for scores in self.at(arm, place)]

    def row(self, arm: str, embedding: str, score: str, since: int | None = None) -> Row:
        """An arm's last values beside its control's, as `compare_pairs` gives them; alone if it has none."""
        own, control = self.values(arm, embedding, score), self.beside.get(arm)
        if since is not None:
            control = (arm, since)
        if control is None:
            return {"values": own}
        return compare_pairs(self.values(control[0], embedding, score, control[1]), own, badness(score))

    def rows(self, arm: str) -> dict[str, dict[str, Row]]:
        return {
            embedding: {score: self.row(arm, embedding, score) for score in scores}
            for embedding, scores in self.at(arm)[0].items()
        }

    def mean(self, arm: str, embedding: str, score: str) -> float:
        return mean_of(self.row(arm, embedding, score))

    def verdict(self, text: str, arm: str, embedding: str, score: str, claim: Claim, since: int | None = None) -> str:
        return verdict(text, self.row(arm, embedding, score, since), claim)

    def table(
        self,
        title: str,
        embedding: str,
        names: Sequence[str],
        lines: Iterable[Line | None],
        control: str,
        notes: Sequence[str] = (),
    ) -> Table:
        rows: list[Sequence[str]] = []
        marks, told = set(), False
        for line in lines:
            if line is None:
                rows.append(())
                continue
            cells = []
            for score in self.titles:
                row, mark = self.row(line[1], embedding, score), self.mark(score, embedding, self.used.get(line[1], ()))
                cells.append(cell(row, mark))
                marks.add(mark)
                told |= "interval" in row
            rows.append((*line[0], *cells))
        said = [*notes, *([f"{CELL}, beside {control}"] if told else []), *say_marks(marks)]
        return make_table(title, [*names, *self.titles.values()], rows, said, len(names), max_width=18)

    def panel(
        self, arms: Iterable[str], embedding: str, score: str, unit: Mapping[str, float] | float = 1, **more: Any
    ) -> ArmPanel:
        units = unit if isinstance(unit, Mapping) else dict.fromkeys(self.states, unit)
        curves = {
            arm: {place / units[arm]: self.values(arm, embedding, score, place) for place in self.states[arm]}
            for arm in arms
        }
        levels = {REAL_IMAGES: [mean_of({"values": self.values(REAL_IMAGES, embedding, score)})]}
        return ArmPanel(curves, **{"levels": levels, **more})
