"""The scores that are asked for, by name or by class path, with their options: checked before any long work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedgen.class_paths import import_by_path, is_class_path
from fedgen.scores import Kernel
from fedgen.scores.definition import Needs, ScoreDefinition, definitions
from fedgen.scores.of_model.metric_score import MetricScore


@dataclass(frozen=True)
class ScoreChoice:
    """One score as it was asked for.

    Args:
        name: in records and columns.
        definition: the score with its options.
        scale: a factor of its values.
    """

    name: str
    definition: ScoreDefinition
    scale: float = 1.0

    @property
    def kind(self) -> str:
        """The definition's name, under which its values are computed."""
        return self.definition.name

    @property
    def options(self) -> dict[str, Any]:
        """All options as plain values."""
        return self.definition.options

    @property
    def settings(self) -> dict[str, Any]:
        """The options that are not the definition's defaults, as records keep them."""
        return self.definition.settings | ({"scale": self.scale} if self.scale != 1 else {})

    @property
    def needs(self) -> Needs:
        """The score's input; see `ScoreDefinition`."""
        return self.definition.needs

    @property
    def kernel(self) -> Kernel:
        """The kernel of a score of kernel means.

        Raises:
            TypeError: for another score.
        """
        if self.definition.kernel is None:
            raise TypeError(f"score {self.name} has no kernel")
        return self.definition.kernel

    @property
    def is_of_summaries(self) -> bool:
        """Whether summaries of the clients' features give it: a deployment's clients tell them once."""
        return self.definition.needs == "summaries"

    @property
    def higher_is_better(self) -> bool:
        """Whether a better model has a larger value."""
        return self.definition.higher_is_better


ScoreLike = str | Mapping[str, Any] | ScoreDefinition | ScoreChoice


def choose(score: ScoreLike, name: str | None = None, scale: float = 1.0) -> ScoreChoice:
    """The score of a name, of {"name": ..., options}, of a definition, or of a choice, which it is already.

    A name may be a class path with its arguments as options: of a `ScoreDefinition` of your own, or of a torchmetrics
    class such as "torchmetrics.text.Perplexity", whose score is then called "perplexity".

    Args:
        score: asked for.
        name: in records; its own name by default.
        scale: a factor of its values.

    Raises:
        ValueError: for an unknown score or option, or an option out of range.
    """
    if isinstance(score, ScoreChoice):
        return score
    if isinstance(score, ScoreDefinition):
        return ScoreChoice(name or score.name, score, scale)
    given = dict(score) if isinstance(score, Mapping) else {"name": score}
    kind = given.pop("name", None)
    if kind is None:
        raise ValueError(f"a score given by options needs its name, got {sorted(given)}")
    if isinstance(kind, str) and is_class_path(kind):
        named = import_by_path(kind)
        if isinstance(named, type) and issubclass(named, ScoreDefinition):
            return ScoreChoice(name or named.name, _define(named, given), scale)
        return ScoreChoice(name or kind.rsplit(".", 1)[-1].lower(), MetricScore(kind, given), scale)
    known = known_scores()
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"unknown score {kind!r}; known: {', '.join(known)}, and your own and torchmetrics classes by class paths"
        )
    return ScoreChoice(name or kind, _define(known[kind], given), scale)


def known_scores() -> dict[str, type[ScoreDefinition]]:
    """The kit's scores by the names that ask for them; a metric is asked for by its class path."""
    return {name: definition for name, definition in definitions().items() if definition is not MetricScore}


def _define(definition: type[ScoreDefinition], given: Mapping[str, Any]) -> ScoreDefinition:
    own = [field.name for field in fields(definition)]
    for option in given:
        if option not in own:
            its = ", ".join(own) or "none"
            raise ValueError(f"score {definition.name} has no option {option!r}; its options: {its}")
    try:
        return definition(**given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"score {definition.name}: {error}") from error


def choose_scores(scores: ScoreLike | Sequence[ScoreLike]) -> tuple[ScoreChoice, ...]:
    """The choices of one or several scores; ValueError as `choose`, for none, and for a name given twice."""
    several = [scores] if isinstance(scores, (str, Mapping, ScoreDefinition, ScoreChoice)) else list(scores)
    choices = tuple(choose(score) for score in several)
    check_distinct("score", [choice.name for choice in choices])
    return choices


def check_distinct(what: str, names: Sequence[str]) -> None:
    """Raise ValueError for no name, and for a name given twice."""
    if not names:
        raise ValueError(f"an evaluation needs at least one {what}")
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(
                f"{what} {name!r} is given twice, and scores are stored by name: measure the second in an evaluation of"
                " its own"
            )
