"""Scores of class generators over the clients and over IID dealings of their images, measured one by one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedgen.experiments.engine.aggregate_rankings import Rows
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.experiments.ranking.classes.class_recipes import spread_out

CLIENTS = "clients"


class Measurement(Protocol):
    """A measurement that scores generators, and what it computes once, before the first of them."""

    def once(self) -> Any:
        """Numbers that are no generator's."""

    def __call__(self, name: str) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of a generator, or of the real floor."""


def measure_all(
    study: Study,
    choice: ClassChoice,
    first: str,
    make: Callable[[ClassFederation], Measurement],
    count: int | None = None,
) -> dict[str, Any]:
    """Steps "generators", `first` and "scores"; what `ClassFederation.about` says of the generators.

    Where all numbers are known no data is read.

    Args:
        study: keeps the numbers.
        choice: of clients and generators.
        first: the name of the step that is measured once.
        make: gives what measures.
        count: generators, evenly from all kinds; all if None.

    Raises:
        ValueError: for fewer than two generators, and as `ClassFederation`.
    """
    about: dict[str, Any] | None = study.numbers.get("generators")
    if about is not None and len(study.numbers.get("scores", {})) == 1 + len(about["kinds"]):  # and real images
        return about
    places = ClassFederation(choice)
    names = spread_out(list(places.recipes), count or len(places.recipes))
    if len(names) < 2:
        raise ValueError(f"{places.describe()}: a ranking needs two generators")
    about = study.step("generators", lambda: places.about(names))
    lines = {name: name for name in (REAL, *names)}
    if len(study.numbers.get("scores", {})) < len(lines):
        measure = make(places)
        study.step(first, measure.once)
        study.each("scores", lines, measure, "generators")
    return about


def rows_over(scores: Mapping[str, Any], where: str, names: Sequence[str]) -> Rows:
    """Each generator's scores over the clients, or over an IID dealing."""
    return {name: scores[name][where] for name in names}


def dealings_over(scores: Mapping[str, Any], names: Sequence[str], controls: int) -> list[Rows]:
    """The same over each IID dealing."""
    return [rows_over(scores, f"IID {number}", names) for number in range(controls)]
