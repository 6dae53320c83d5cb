"""Which score is asked for: its name and its options, checked before any long work."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from fedgen.class_paths import is_class_path
from fedgen.embeddings import ClassifierOptions
from fedgen.evaluation.metric_choice import PATH, make_metric, name_of_metric
from fedgen.evaluation.records import HIGHER_IS_BETTER
from fedgen.scores import CriticOptions, PolynomialKernel, RBFKernel
from fedgen.scores.kernel.mmd import Estimator
from fedgen.scores.manifold import manifold

Needs = Literal["summaries", "features", "logits", "points", "held out", "labels", "model"]


@dataclass(frozen=True)
class Kind:
    """What is known of a score by its name.

    Args:
        family: scores of one family and the same options are computed in one pass.
        defaults: its options.
        needs: "summaries" of features will do, "features", "logits" of generated images alone, real "points" and a
            model's density, the clients' "held out" features besides, or in place of features images with "labels", or
            images for the "model".
        check: raises ValueError for options that it cannot take.
    """

    family: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    needs: Needs = "features"
    check: Callable[[Mapping[str, Any]], object] = bool


def polynomial(options: Mapping[str, Any]) -> PolynomialKernel:
    """The kernel of options."""
    return PolynomialKernel(options["degree"], options["gamma"], options["coef0"])


def rbf(options: Mapping[str, Any]) -> RBFKernel:
    """The kernel of options."""
    return RBFKernel(options["sigma"])


def _check_polynomial(options: Mapping[str, Any]) -> None:
    _check_estimator(options)
    for name in ("degree", "coef0") if options["gamma"] is None else ("degree", "gamma", "coef0"):
        _check_finite(options, name)
    polynomial(options)


def _check_rbf(options: Mapping[str, Any]) -> None:
    _check_estimator(options)
    if options["sigma"] is not None:
        _check_finite(options, "sigma")
    rbf(options)


def _check_finite(options: Mapping[str, Any], name: str) -> None:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _check_whole(options: Mapping[str, Any], name: str, least: int) -> None:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_estimator(options: Mapping[str, Any]) -> None:
    if options["estimator"] not in get_args(Estimator):
        raise ValueError(f"estimator must be 'u' or 'v', got {options['estimator']!r}")


def _check_manifold(options: Mapping[str, Any]) -> None:
    _check_whole(options, "k", 1)
    if not isinstance(options["strict"], bool):
        raise ValueError(f"strict must be true or false, got {options['strict']!r}")


def _check_projections(options: Mapping[str, Any]) -> None:
    _check_whole(options, "projections", 2)
    _check_whole(options, "seed", 0)


def _check_ddof(options: Mapping[str, Any]) -> None:
    if options["ddof"] not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {options['ddof']!r}")


_sliced = {"projections": 1000, "seed": 0}

KINDS: dict[str, Kind] = {
    "fid": Kind("fid", {"ddof": 1}, "summaries", _check_ddof),
    "kid": Kind("kid", {"estimator": "u", **asdict(PolynomialKernel())}, check=_check_polynomial),
    "kid-rbf": Kind("kid-rbf", {"estimator": "u", **asdict(RBFKernel())}, check=_check_rbf),
    **{name: Kind("manifold", {"k": 5, "strict": False}, check=_check_manifold) for name in manifold.NAMES},
    "sw1": Kind("sw1", _sliced, check=_check_projections),
    "sw2": Kind("sw2", _sliced, check=_check_projections),
    "w1": Kind("w1", asdict(CriticOptions()), check=lambda options: CriticOptions(**options)),
    "is": Kind("is", needs="logits"),
    "ll": Kind("ll", needs="points"),
    "memorisation": Kind("memorisation", needs="held out"),
    "loss": Kind("loss", needs="model"),
    "metric": Kind("metric", {PATH: ""}, "model", make_metric),
    "utility": Kind("utility", asdict(ClassifierOptions()), "labels", lambda options: ClassifierOptions(**options)),
}


@dataclass(frozen=True)
class ScoreChoice:
    """One score as it was asked for.

    Args:
        name: what records and columns call it.
        kind: which score it is, one of `KINDS`.
        options: all its options.
        scale: what its values are multiplied by.
    """

    name: str
    kind: str
    options: Mapping[str, Any]
    scale: float = 1.0

    @property
    def settings(self) -> dict[str, Any]:
        """The options that are not the kind's defaults, as records keep them."""
        defaults = KINDS[self.kind].defaults
        found = {key: value for key, value in self.options.items() if key not in defaults or value != defaults[key]}
        return found | ({"scale": self.scale} if self.scale != 1 else {})

    @property
    def needs(self) -> Needs:
        """What it is computed from."""
        return KINDS[self.kind].needs

    @property
    def higher_is_better(self) -> bool:
        """Whether a better model has a larger value."""
        if self.kind == "metric":
            return bool(make_metric(self.options).higher_is_better)
        return self.kind in HIGHER_IS_BETTER

    @property
    def has_powers(self) -> bool:
        """Whether power means of it say something: values differ by client, and none is below 0."""
        return (
            self.kind not in ("w1", "ll", "is", "memorisation", "loss", "metric")
            and self.options.get("estimator") != "u"
        )

    @property
    def least(self) -> int:
        """The images that a client and a generated set must have."""
        return self.options["k"] + 1 if KINDS[self.kind].family == "manifold" else 2

    def same_pass(self, other: "ScoreChoice") -> bool:
        """Whether both come out of one computation."""
        return KINDS[self.kind].family == KINDS[other.kind].family and self.options == other.options


ScoreLike = str | Mapping[str, Any] | ScoreChoice


def choose(score: ScoreLike, name: str | None = None, scale: float = 1.0) -> ScoreChoice:
    """The score of a name, of {"name": ..., options}, or of a choice, which it is already.

    A name may be the class path of a torchmetrics class, such as "torchmetrics.text.Perplexity", with its arguments as
    options; the score is then called "perplexity".

    Args:
        score: what is asked for.
        name: what records call it; its own name by default.
        scale: what its values are multiplied by.

    Raises:
        ValueError: for an unknown score or option, or an option out of range.
    """
    if isinstance(score, ScoreChoice):
        return score
    given = dict(score) if isinstance(score, Mapping) else {"name": score}
    kind = given.pop("name", None)
    if kind is None:
        raise ValueError(f"a score given by options needs its name, got {sorted(given)}")
    if isinstance(kind, str) and is_class_path(kind):
        options = {PATH: kind, **given}
        make_metric(options)
        return ScoreChoice(name or name_of_metric(kind), "metric", options, scale)
    known = [one for one in KINDS if one != "metric"]
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"unknown score {kind!r}; known: {', '.join(known)}, and torchmetrics classes by their class paths"
        )
    defaults = KINDS[kind].defaults
    for option in given:
        if option not in defaults:
            its = ", ".join(defaults) or "none"
            raise ValueError(f"score {kind} has no option {option!r}; its options: {its}")
    options = {**defaults, **given}
    try:
        KINDS[kind].check(options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"score {kind}: {error}") from error
    return ScoreChoice(name or kind, kind, options, scale)


def choose_scores(scores: ScoreLike | Sequence[ScoreLike]) -> tuple[ScoreChoice, ...]:
    """The choices of one or several scores; ValueError as `choose`, for none, and for a name given twice."""
    several = [scores] if isinstance(scores, (str, Mapping, ScoreChoice)) else list(scores)
    choices = tuple(choose(score) for score in several)
    check_distinct("score", [choice.name for choice in choices])
    return choices


def check_distinct(what: str, names: Sequence[str]) -> None:
    """Nothing, for at least one name and none given twice; ValueError otherwise."""
    if not names:
        raise ValueError(f"an evaluation needs at least one {what}")
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(
                f"{what} {name!r} is given twice, and scores are stored by name: measure the second in an evaluation of"
                " its own"
            )
