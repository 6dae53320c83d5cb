"""What a model says of real examples, for the scores that ask it: its own losses, and predictions for a metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.data.lazy import CHUNK, LazyInputs
from fedgen.evaluation.methods import require_method
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.images import from_uint8
from fedgen.seeds import derive

Inputs = Tensor | LazyInputs
"""Images uint8 [N, C, H, W], points float32 [N, D], texts int64 [N, T], or items of any structure, to be read."""


@dataclass(frozen=True)
class Answers:
    """A model that is asked by its methods `example_losses(examples, labels, seed)`, which gives losses [N], and
    `predictions(examples, labels, seed)`, which gives what a metric's `update` takes.

    Both get images [N, C, H, W] in [-1, 1], points [N, D] or texts [N, T], and their labels if the model has classes
    (`num_classes`), otherwise None. Of data without images they get batches of at most 64 items in their place, of the
    structure that `training_step` gets and on the module's device, without labels. What is drawn follows from the seed
    and the place of an example alone, so that sets of one size are compared at common draws.

    Args:
        model: with those methods that are asked for.
        has_losses: whether a score needs its losses.
        has_predictions: whether one needs its predictions.
    """

    model: Any
    has_losses: bool = True
    has_predictions: bool = False

    @classmethod
    def of(cls, model: Any, choices: Sequence[ScoreChoice]) -> "Answers | None":
        """What scores ask a model; None where none asks.

        Raises:
            TypeError: if it lacks a method that a score needs, naming both.
        """
        asking = {choice.kind: choice.name for choice in choices if choice.needs == "model"}
        if "loss" in asking:
            require_method(model, "example_losses(images, labels, seed)", "losses [N] of images [N, C, H, W]", "loss")
        if "metric" in asking:
            gives = "what the metric's update takes"
            require_method(model, "predictions(images, labels, seed)", gives, asking["metric"])
        return cls(model, "loss" in asking, "metric" in asking) if asking else None

    def losses(self, examples: Inputs, labels: Tensor | None, seed: int) -> Tensor:
        """The model's losses float64 [N] of examples.

        Raises:
            ValueError: if it gives another number of them.
        """
        if not _is_read_here(examples):
            given, count = _as_given(examples), len(examples)
            return _checked(self.model.example_losses(given, self._labels(labels), seed=seed), count, "images")
        found = []
        for place, (batch, count) in enumerate(self._batches(examples)):
            own = self.model.example_losses(batch, None, seed=derive(seed, "losses", place))
            found.append(_checked(own, count, "items"))
        return torch.cat(found)

    def predictions(self, examples: Inputs, labels: Tensor | None, seed: int) -> Iterator[tuple[Any, ...]]:
        """What a metric's `update` takes, of at most 64 examples at a time, on the CPU."""
        for place, (part, own) in enumerate(self._parts(examples, labels)):
            found = self.model.predictions(part, own, seed=derive(seed, "predictions", place))
            told = found if isinstance(found, tuple) else (found,)
            yield tuple(one.detach().cpu() if isinstance(one, Tensor) else one for one in told)

    def try_out(self, examples: Inputs, labels: Tensor | None, seed: int) -> list[Tensor]:
        """All that the model says of a few examples, as tensors."""
        found = [self.losses(examples, labels, seed)] if self.has_losses else []
        if self.has_predictions:
            parts = self.predictions(examples, labels, seed)
            found += [one for part in parts for one in part if isinstance(one, Tensor)]
        return found

    def _parts(self, examples: Inputs, labels: Tensor | None) -> Iterator[tuple[Any, Tensor | None]]:
        if _is_read_here(examples):
            yield from ((batch, None) for batch, _ in self._batches(examples))
            return
        asked = self._labels(labels)
        for start in range(0, len(examples), CHUNK):
            own = slice(start, start + CHUNK)
            yield _as_given(examples[own]), None if asked is None else asked[own]

    def _batches(self, items: Any) -> Iterator[tuple[Any, int]]:
        from lightning.fabric.utilities import move_data_to_device  # its models have Lightning loaded

        device = getattr(self.model, "device", "cpu")
        yield from ((move_data_to_device(batch, device), count) for batch, count in items.batches())

    def _labels(self, labels: Tensor | None) -> Tensor | None:
        return labels if getattr(self.model, "num_classes", None) is not None else None


@dataclass(frozen=True)
class SeededAnswers:
    """Answers at the draws of one seed.

    Args:
        answers: of a model.
        seed: of what is drawn.
    """

    answers: Answers
    seed: int

    def losses(self, examples: Inputs, labels: Tensor | None) -> Tensor:
        """See `Answers`."""
        return self.answers.losses(examples, labels, self.seed)

    def predictions(self, examples: Inputs, labels: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """See `Answers`."""
        return self.answers.predictions(examples, labels, self.seed)


def _is_read_here(examples: Inputs) -> bool:
    return isinstance(examples, LazyInputs) and not examples.has_images


def _as_given(examples: Inputs) -> Tensor:
    """Inputs as models take them."""
    found = examples[:]
    return from_uint8(found) if found.dtype == torch.uint8 else found


def _checked(losses: Tensor, count: int, what: str) -> Tensor:
    if losses.shape != (count,):
        raise ValueError(f"example_losses of {count} {what} must be [{count}], got {list(losses.shape)}")
    return losses.detach().double().cpu()
