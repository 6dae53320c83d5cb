"""A score of the images of one class: of a conditional generator against the clients that hold the class."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, resolve_weights
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.frechet.corrected import FewImagesError

LEAST = 2  # images of the class, which an unbiased covariance needs


@dataclass(frozen=True)
class ClassScore(ScoreDefinition):
    """A score of features, of one class alone: images that were asked for as of the class against real ones of it.

    The option `of_class` of other scores makes one, {"name": "fid", "of_class": "cat"}; the mean over all classes is
    the intra-class FID of Miyato and Koyama (2018, arXiv 1802.05637). avg and all are over the clients that hold two or
    more images of the class, weighed by their images of it where weights are "examples"; single clients' scores are
    not given.

    Args:
        score: whose option this is.
        of_class: the class's name, as the data have it.

    Raises:
        ValueError: for a score of anything but features.
    """

    name: ClassVar[str] = "of_class"
    needs: ClassVar[Needs] = "classes"
    has_distribution: ClassVar[bool] = False

    score: ScoreDefinition
    of_class: str

    def __post_init__(self) -> None:
        if self.score.needs not in ("summaries", "features"):
            raise ValueError(f"of_class is an option of scores of images' features, and {self.score.name} is none")

    @property
    def options(self) -> dict[str, Any]:
        return {"name": self.score.name, **self.score.options, "of_class": self.of_class}

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.score.settings, "of_class": self.of_class}

    @property
    def label(self) -> str:
        return f"{self.score.label}_of_{re.sub(r'[^a-zA-Z0-9]+', '-', self.of_class)}"

    @property
    def higher_is_better(self) -> bool:
        return self.score.higher_is_better

    def least_images(self, dim: int) -> int:
        return self.score.least_images(dim)

    def check_classes(self, classes: Sequence[str]) -> None:
        if self.of_class not in classes:
            raise ValueError(f"of_class={self.of_class!r} is none of the data's classes: {', '.join(classes)}")

    def prepare(self, clients: ClientSide) -> tuple[int, list[int], int, FittedScore]:
        if clients.labels is None:
            raise ValueError(f"score {self.label} needs the labels of every client's images; none are given")
        self.check_classes(clients.classes)
        place = list(clients.classes).index(self.of_class)
        own = [part[labels.to(part.device) == place] for part, labels in zip(clients.features, clients.labels)]
        held = [number for number, part in enumerate(own) if len(part) >= LEAST]
        if not held:
            raise ValueError(f"score {self.label}: no client has {LEAST} images of class {self.of_class!r}")
        weights = clients.weights
        if not isinstance(weights, str):
            weights = resolve_weights(weights, clients.counts)[held].tolist()
        side = replace(clients, parts=[own[number] for number in held], weights=weights, asked=(self.score.name,))
        try:
            fitted = self.score.fit(replace(side, held_out=None, labels=None, classes=()))
        except FewImagesError as error:  # of the client of this number among those that hold the class
            raise error.of_client([f"client {number}" for number in held], held) from None
        return place, [len(own[number]) for number in held], len(own), fitted

    def compare(
        self, prepared: tuple[int, list[int], int, FittedScore], generated: GeneratedSet, errors: bool
    ) -> FederatedScore:
        place, counts, clients, fitted = prepared
        if generated.labels is None:
            raise ValueError(
                f"score {self.label} needs the labels that generated images were asked for; none are given"
            )
        rows = generated.rows[generated.labels.to(generated.rows.device) == place]
        if len(rows) < LEAST or (problem := self.score.too_few(len(rows), "the set of them")):
            few = f"{len(rows)} of {len(generated.rows)} images are of class {self.of_class!r}"
            raise ValueError(f"score {self.label}: {few}; generate more{f' ({problem})' if len(rows) >= LEAST else ''}")
        found = fitted.score(GeneratedSet(rows, real=generated.real), errors)[self.score.name]
        said = f"{len(rows)} images of class {self.of_class}, which {len(counts)} of {clients} clients hold"
        remark = self.score.remark(self.label, rows.shape[1], len(rows), counts)
        return _over_holders(found, tuple(filter(None, (*found.notes, said, remark))))


def _over_holders(found: FederatedScore, notes: tuple[str, ...]) -> FederatedScore:
    """A score without those of single clients, whose places are not those of all clients."""

    def kept(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in ("avg", "all")}

    return replace(
        found,
        per_client=torch.empty(0, dtype=torch.float64),
        values=kept(found.values),
        errors=kept(found.errors),
        error_parts={side: kept(part) for side, part in found.error_parts.items()},
        client_errors=None,
        client_error_parts=dict[str, Tensor](),
        notes=notes,
    )
