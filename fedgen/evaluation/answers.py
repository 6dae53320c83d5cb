"""Answers of a model about real examples, for the scores that ask it: its own losses, and predictions for a metric."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import isclass, isroutine, signature
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.lazy_examples import CHUNK, LazyInputs
from fedgen.data.optional_attributes import optional
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.images import from_uint8
from fedgen.models.optional_hooks import GenerativeModel
from fedgen.models.sampling import evaluating
from fedgen.progress import track
from fedgen.scores import Density
from fedgen.seeds import derive


def require_method(model: Any, method: str, gives: str, score: str) -> None:
    """Says so if a model lacks a method that a score needs."""
    if not callable(getattr(model, method.partition("(")[0], None)):
        name = model.__name__ if isclass(model) or isroutine(model) else type(model).__name__
        raise TypeError(f"{name} has no method {method}, which gives {gives}; add one, or leave the score {score} out")


Inputs = Tensor | LazyInputs
"""Images uint8 [N, C, H, W], points float32 [N, D], texts int64 [N, T], or items of any structure, to be read."""
Part = tuple[Any, Tensor | None, int]  # some examples as models take them, their labels, and their number


@dataclass(frozen=True)
class Answers:
    """A model that is asked about examples by its `example_losses` and `predictions` (examples, labels, seed)."""

    # Both get images [N, C, H, W] in [-1, 1], points [N, D] or texts [N, T], and labels if the model has classes; of
    # other data batches of at most 64 items, as `training_step` gets them. Images on disk come by 64, too. What is
    # drawn follows from the seed and the place of an example alone, so that sets of one size are compared at common
    # draws: each chunk has another seed, unless `example_losses` takes `start`, the place of a chunk's first example.

    model: Any
    seed: int
    has_losses: bool = True
    has_predictions: bool = False

    @classmethod
    def of(cls, model: Any, choices: Sequence[ScoreChoice], seed: int) -> "Answers | None":
        """The answers that scores need of a model; None where none needs some."""
        asking = {choice.kind: choice.name for choice in choices if choice.needs == "model"}
        if "loss" in asking:
            require_method(model, "example_losses(images, labels, seed)", "losses [N] of images [N, C, H, W]", "loss")
        if "metric" in asking:
            gives = "what the metric's update takes"
            require_method(model, "predictions(images, labels, seed)", gives, asking["metric"])
        return cls(model, seed, "loss" in asking, "metric" in asking) if asking else None

    def losses(self, examples: Inputs, labels: Tensor | None) -> Tensor:
        """The model's losses float64 [N] of examples: of all at once, or where they lie on disk, chunk by chunk."""
        if isinstance(examples, Tensor):
            own = self.model.example_losses(_as_given(examples), self._labels(labels), seed=self.seed)
            return _checked(own, len(examples), "images")
        knows_places = "start" in signature(self.model.example_losses).parameters
        found: list[Tensor] = []
        for place, (given, own_labels, count) in enumerate(self._parts(examples, labels, "the model's own losses")):
            draws = {"seed": derive(self.seed, "losses", place)}
            if knows_places:
                draws = {"seed": self.seed, "start": sum(map(len, found))}
            found.append(_checked(self.model.example_losses(given, own_labels, **draws), count, "items"))
        return torch.cat(found)

    def predictions(self, examples: Inputs, labels: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """Yield what a metric's `update` takes, of at most 64 examples at a time, on the CPU."""
        for place, (given, own_labels, _) in enumerate(self._parts(examples, labels, "the model's predictions")):
            found = self.model.predictions(given, own_labels, seed=derive(self.seed, "predictions", place))
            found = found if isinstance(found, tuple) else (found,)
            yield tuple(part.detach().cpu() if isinstance(part, Tensor) else part for part in found)

    def try_out(self, examples: Inputs, labels: Tensor | None) -> list[Tensor]:
        """The model's answers about a few examples, as tensors."""
        found = [self.losses(examples, labels)] if self.has_losses else []
        parts = self.predictions(examples, labels) if self.has_predictions else ()
        return [*found, *(one for part in parts for one in part if isinstance(one, Tensor))]

    def _parts(self, examples: Inputs, labels: Tensor | None, doing: str) -> Iterator[Part]:
        """The examples in chunks, read in their turn where they are on disk."""
        return track(self._chunks(examples, labels), doing, len(examples), "examples", lambda part: part[2])

    def _chunks(self, examples: Inputs, labels: Tensor | None) -> Iterator[Part]:
        if isinstance(examples, LazyInputs) and not examples.has_images:
            from lightning.fabric.utilities import move_data_to_device  # its models have Lightning loaded

            device = optional(self.model, GenerativeModel, "device")
            for batch, count in examples.batches():
                yield move_data_to_device(batch, device), None, count
            return
        given, start = self._labels(labels), 0
        for chunk in examples.split(CHUNK):
            end = start + len(chunk)
            yield _as_given(chunk), None if given is None else given[start:end], len(chunk)
            start = end

    def _labels(self, labels: Tensor | None) -> Tensor | None:
        return labels if optional(self.model, GenerativeModel, "num_classes") is not None else None


def _as_given(examples: Tensor) -> Tensor:
    return from_uint8(examples) if examples.dtype == torch.uint8 else examples


def _checked(losses: Tensor, count: int, what: str) -> Tensor:
    if losses.shape != (count,):
        raise ValueError(f"example_losses of {count} {what} must be [{count}], got {list(losses.shape)}")
    return losses.detach().double().cpu()


class ModuleDensity:
    """The log-density of a module in eval mode, on its device and in its precision, without gradients."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @torch.no_grad()
    def log_prob(self, points: Tensor, /) -> Tensor:
        own = next((tensor for tensor in self.module.parameters() if tensor.is_floating_point()), points)
        with evaluating(self.module):
            return self.module.log_prob(points.to(own.device, own.dtype)).double().cpu()


def density_of(model: Any) -> Density:
    require_method(model, "log_prob(points)", "the log-density [N] at points [N, D]", "ll")
    return ModuleDensity(model) if isinstance(model, nn.Module) else model
