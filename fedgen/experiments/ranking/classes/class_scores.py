"""Scores of class generators over the clients and over IID dealings of their images, measured one by one."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import CLIENTS, ScoredRows
from fedgen.experiments.engine.feature_federation import FeatureFederation
from fedgen.experiments.engine.rankings.ranking_study import RankingStudy
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.experiments.ranking.classes.class_recipes import spread_out


class Measurement(Protocol):
    """A measurement over one of the federations, and what it computes once, before the first generator."""

    def once(self) -> Any:
        """Numbers that are no generator's."""

    def __call__(self, generated: Tensor) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of generated features [num_images, D]."""


def measure_all(
    study: Study,
    choice: ClassChoice,
    titles: Mapping[str, str],
    first: str,
    make: Callable[[ClassFederation, dict[str, FeatureFederation]], Measurement],
    controls: int,
    count: int | None = None,
) -> RankingStudy:
    """Steps "generators", `first` and "scores". Where all numbers are known no data is read.

    Args:
        study: keeps the numbers.
        choice: of clients and generators.
        titles: of the scores.
        first: the name of the step that is measured once.
        make: gives what measures, over the clients and the dealings.
        controls: IID dealings.
        count: generators, evenly from all kinds; all if None.

    Raises:
        ValueError: for fewer than two generators, and as `ClassFederation`.
    """
    about: dict[str, Any] | None = study.numbers.get("generators")
    if about is None or len(study.numbers.get("scores", {})) < 1 + len(about["kinds"]):  # and real images
        places = ClassFederation(choice)
        names = spread_out(list(places.recipes), count or len(places.recipes))
        if len(names) < 2:
            raise ValueError(f"{places.describe()}: a ranking needs two generators")
        about = study.step("generators", lambda: places.about(names))
        measure = make(places, places.federation.dealt(choice.seed, controls))
        study.step(first, measure.once)

        def run(name: str) -> dict[str, Any]:
            return measure(places.floor() if name == REAL else places.draw(name))

        study.each("scores", {name: name for name in (REAL, *names)}, run, "generators")
    scores, kinds = study.numbers["scores"], about["kinds"]
    rows = ScoredRows({name: scores[name] for name in kinds})
    return RankingStudy(rows, titles, about["heading"], scores[REAL][CLIENTS], kinds)
