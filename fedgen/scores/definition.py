"""One class a score: its name, its options, what it needs, which way is better, and how clients and models meet in it.

Records, tables, figures, selection, stored folders and deployments ask a score's definition and keep no facts of their
own. A new score is one file anywhere in `fedgen/scores` with a subclass of `ScoreDefinition`; a custom one may lie
anywhere and is asked for by its class path.
"""

import math
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, Self

from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, Weights
from fedgen.scores.kernel.kernels import Kernel
from fedgen.statistics import Gaussian

Needs = Literal[
    "summaries", "features", "logits", "points", "held out", "prompts", "classes", "labels", "model", "texts"
]
BY_CLASS: tuple[Needs, ...] = ("labels", "prompts", "classes")
"""Needs of images that a model is asked for by their class."""
TextFeatures = Callable[[Sequence[str]], Tensor]
"""Texts to their features [N, D], in the space of images' features."""


class Density(Protocol):
    """A generator with a density; `torch.distributions` are such objects.

    Examples:
        >>> import torch
        >>> from fedgen.scores import LikelihoodReference
        >>> uniform = torch.distributions.Uniform(torch.zeros(1), torch.full((1,), 2.0))
        >>> density = torch.distributions.Independent(uniform, 1)
        >>> reference = LikelihoodReference.from_points([torch.tensor([[0.5], [1.5]])])
        >>> round(reference.score(density, errors=False).values["all"], 4)  # log(1 / 2)
        -0.6931
    """

    def log_prob(self, points: Tensor, /) -> Tensor:
        """Natural logarithm of the density, [N], at points [N, D]; -inf where the density is zero."""
        ...


class ModelAnswers(Protocol):
    """A model that is asked about real examples, at the draws of one seed."""

    def losses(self, examples: Any, labels: Tensor | None) -> Tensor: ...

    def predictions(self, examples: Any, labels: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Yield what a metric's `update` takes, a batch at a time."""


@dataclass(frozen=True, eq=False)
class ClientSide:
    """The clients in one embedding.

    Args:
        parts: features [n_i, D] of each; a summary where only that is known. Rows of one tensor are not copied. Images
            uint8 [n_i, C, H, W] for a score that needs labels; for one that asks the model also points, texts, or items
            of any structure. Data on disk are a `LazyInputs`, read in chunks at every score.
        weights: shared by all scores and by avg and all.
        held_out: features of images that each client did not train on, where a score needs them.
        labels: int64 [n_i] of each client's images, where a score needs them.
        num_classes: of those labels.
        texts: features of texts beside those of images, where the embedding has some.
        asked: names of the scores that are asked for, of those that one pass gives; all of them by default.
        classes: names of the labels' classes.

    Examples:
        >>> import torch
        >>> from fedgen.scores import ClientSide
        >>> clients = ClientSide([torch.zeros(30, 2), torch.zeros(10, 2)], weights="examples")
        >>> clients.counts
        [30, 10]
    """

    parts: Sequence[Any]
    weights: Weights
    held_out: Sequence[Tensor] | None = None
    labels: Sequence[Tensor] | None = None
    num_classes: int = 0
    texts: TextFeatures | None = None
    asked: tuple[str, ...] = ()
    classes: Sequence[str] = ()

    @property
    def features(self) -> list[Tensor]:
        """The features of each client.

        Raises:
            TypeError: if one is known by its summary alone.
        """
        found = [part for part in self.parts if isinstance(part, Tensor)]
        if len(found) < len(self.parts):
            raise TypeError("this score needs features of every client, and of some only a summary is known; use fid")
        return found

    @property
    def counts(self) -> list[float]:
        """The number of images of each client."""
        return [part.count if isinstance(part, Gaussian) else len(part) for part in self.parts]


@dataclass(frozen=True, eq=False)
class GeneratedSet:
    """A model's side of a score.

    Args:
        features: of generated images [m, D], or their summary, or the images themselves uint8 [m, C, H, W].
        density: the model's, where a score needs it.
        labels: int64 [m], which the images were asked for.
        answers: of the model about real examples.
        real: whether these are real images in a generator's place, which may be the held-out ones.

    Examples:
        >>> import torch
        >>> from fedgen.scores import GeneratedSet
        >>> GeneratedSet(torch.zeros(5, 2)).rows.shape
        torch.Size([5, 2])
    """

    features: Tensor | Gaussian
    density: Density | None = None
    labels: Tensor | None = None
    answers: ModelAnswers | None = None
    real: bool = False

    @property
    def rows(self) -> Tensor:
        """The features.

        Raises:
            TypeError: if only their summary is known.
        """
        if isinstance(self.features, Gaussian):
            raise TypeError("this score needs features of the generated set, and only a summary is known; use fid")
        return self.features


class FittedScore(Protocol):
    """A score's clients, with what is computed of them once.

    Examples:
        >>> import torch
        >>> from fedgen.scores import ClientSide, FittedScore, GeneratedSet
        >>> from fedgen.scores.frechet.frechet import FrechetScore
        >>> fitted: FittedScore = FrechetScore().fit(ClientSide([torch.tensor([[-1.0], [1.0]])], "examples"))
        >>> fitted.score(GeneratedSet(torch.tensor([[2.0], [4.0]])), errors=False)["fid"].values["all"]  # 3^2
        9.0
    """

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        """Return the scores of a generated set by name: several where one pass gives several."""


@dataclass(frozen=True)
class ScoreDefinition(ABC):
    """A score. Fields of subclasses are its options; `__post_init__` refuses those out of range by ValueError.

    Attributes:
        name: in recipes, records and columns.
        needs: "summaries" of features will do; "features"; "logits" of generated images alone; real "points" and a
            model's density; the clients' "held out" features besides; features with labels of "classes", and those of
            the labels' "prompts"; in place of features images with "labels", images that the "model" is asked about, or
            "texts" as their bytes.
        family: scores of one family and equal options come out of one pass; its own name by default.
        shares_out: whether processes that are `together` share its work; of another, one process does all.
        knows_weights: whether clients' weights count in `all`.
        has_distribution: whether clients differ in it, so that percentiles and power means say something.

    Examples:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from fedgen.scores import ClientSide, GeneratedSet, ScoreDefinition
        >>> from fedgen.scores.aggregate import combine, resolve_weights
        >>> @dataclass(frozen=True)
        ... class MeanShift(ScoreDefinition):  # the largest difference of the features' means
        ...     name = "mean_shift"
        ...     def prepare(self, clients):
        ...         means = torch.stack([part.mean(0) for part in clients.features]).double()
        ...         return means, resolve_weights(clients.weights, clients.counts)
        ...     def compare(self, prepared, generated, errors):
        ...         means, weights = prepared
        ...         off = generated.rows.double().mean(0) - means
        ...         return combine("mean_shift", off.abs().amax(1), float((weights @ off).abs().max()), weights)
        >>> clients = ClientSide([torch.tensor([[-1.0]]), torch.tensor([[1.0]])], "examples")
        >>> found = MeanShift().fit(clients).score(GeneratedSet(torch.tensor([[0.0]])), errors=False)["mean_shift"]
        >>> found.values["avg"], found.values["all"]
        (1.0, 0.0)
    """

    name: ClassVar[str]
    needs: ClassVar[Needs] = "features"
    family: ClassVar[str] = ""
    shares_out: ClassVar[bool] = False
    knows_weights: ClassVar[bool] = True
    has_distribution: ClassVar[bool] = True

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if cls.prepare is ScoreDefinition.prepare and cls.fit is ScoreDefinition.fit:
            raise TypeError(f"{cls.__name__} needs a method prepare(clients)")  # when it is chosen, before long work
        return super().__new__(cls)

    def prepare(self, clients: ClientSide) -> Any:
        """Compute of the clients what every generated set is compared with.

        Raises:
            ValueError: if the clients lack something that the score needs.
        """
        raise NotImplementedError

    def compare(
        self, prepared: Any, generated: GeneratedSet, errors: bool
    ) -> FederatedScore | Mapping[str, FederatedScore]:
        """Return the score of a generated set, or several by name where one pass gives several.

        Args:
            prepared: of the clients; by default it has a method `score(features, errors)`.
            generated: the model's side.
            errors: whether standard errors are asked for.
        """
        return prepared.score(generated.rows, errors)

    def fit(self, clients: ClientSide) -> FittedScore:
        """Return the score fitted to the clients, which scores generated sets."""
        return _Fitted(self, self.prepare(clients))

    @property
    def options(self) -> dict[str, Any]:
        """All options as plain values."""
        return asdict(self)

    @property
    def settings(self) -> dict[str, Any]:
        """The options that are not the defaults, as records keep them."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in self.options.items() if value != defaults[name]}

    @property
    def label(self) -> str:
        """The name of its columns, where it is asked for by `name` and options."""
        return self.name

    @property
    def higher_is_better(self) -> bool:
        """Whether a better model has a larger value."""
        return False

    @property
    def has_floor(self) -> bool:
        """Whether real images, which are no model and may be the held-out ones, have a value in a generator's place."""
        return self.needs not in ("points", "held out", "model")

    @property
    def has_powers(self) -> bool:
        """Whether power means of it say something: values differ by client, and none is below 0."""
        return self.has_distribution

    @property
    def kernel(self) -> Kernel | None:
        """The kernel, of a score that is made of kernel means: clients of a deployment tell those."""
        return None

    @property
    def is_deployed(self) -> bool:
        """Whether clients who keep their images can answer for it, by summaries or by kernel means."""
        return self.needs == "summaries" or self.kernel is not None

    def too_few(self, count: float, whose: str) -> str:
        """Return why a set of `count` images is too small, and the remedy; "" if it is large enough.

        Args:
            count: images of one client, or generated ones.
            whose: they are, for the message.
        """
        return ""

    def least_images(self, dim: int) -> int:
        """Return how many images suffice in any D features where fewer may not, of clients and generated alike."""
        return 0

    def check_classes(self, classes: Sequence[str]) -> None:  # noqa: B027 - most scores take any
        """Raise ValueError for options that do not fit the data's classes, of a score that needs labels."""

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        """Return what a reader must know beside the value, given the sizes of the sets; "" for nothing.

        Args:
            name: what the score is called.
            dim: D, the number of features.
            generated: number of generated images; None where nobody says.
            clients: likewise of each client's real images.
        """
        return ""

    def same_pass(self, other: "ScoreDefinition") -> bool:
        """Whether both come out of one computation."""
        return (self.family or self.name) == (other.family or other.name) and self.options == other.options


class _Fitted:
    def __init__(self, definition: ScoreDefinition, prepared: Any) -> None:
        self._definition, self._prepared = definition, prepared

    def score(self, generated: GeneratedSet, errors: bool) -> Mapping[str, FederatedScore]:
        found = self._definition.compare(self._prepared, generated, errors)
        return found if isinstance(found, Mapping) else {self._definition.name: found}


def require_finite(**values: Any) -> None:
    """Raise ValueError for a value that is no finite number, naming it."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")


def require_whole(least: int, **values: Any) -> None:
    """Raise ValueError for a value that is no whole number of at least `least`, naming it."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
