"""The evaluation of a federation whose images the server never sees: the callback, and the clients' side of scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fedgen.callbacks import FederatedEvaluation
from fedgen.deploy.flower_strategy import FlowerStrategy
from fedgen.deploy.messages import Asked
from fedgen.deploy.remote_data import RemoteClients
from fedgen.deploy.statistics import panels_of, sketch_of
from fedgen.evaluation import Evaluator
from fedgen.evaluation.aggregates import with_further
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import Plan
from fedgen.evaluation.real_side import RealSide
from fedgen.evaluation.reference import Reference, scaled
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.scorers import Losses
from fedgen.evaluation.splits import LEAST, REPORT, SELECT, Split
from fedgen.scores import Density, FederatedScore, FrechetReference
from fedgen.scores.aggregate import combine
from fedgen.scores.federated_kid import kid_from_messages
from fedgen.statistics import FourierSketch, Gaussian, add, gaussian_from_message
from fedgen.statistics.fourier import FourierMoments
from fedgen.statistics.messages import Message, MessageError
from fedgen.statistics.sketches import KernelMoments


class RemoteEvaluation(FederatedEvaluation):
    """FederatedEvaluation where clients keep their images: fid, kid and kid-rbf.

    When training starts each client sends the summary of its features, once: FID's scores of all clients, avg and all
    follow from them and are those of the same federation simulated, to rounding (their errors take real features for
    normal). For KID the server sends the generated images' features and each client its own score: avg is exact, and
    all is avg minus a constant of the federation, which a random sketch estimates, the same for every checkpoint. There
    is no floor, as it needs images. Arguments as for `FederatedEvaluation`; clients weigh by examples.

    Raises:
        ValueError: for a score that needs more of clients than they tell, or other weights.
        MessageError: before training, if a client does not tell its summary.
    """

    def _make_evaluator(self, trainer: Trainer) -> Evaluator:
        data, strategy = getattr(trainer, "datamodule", None), trainer.strategy
        if not isinstance(data, RemoteClients) or not isinstance(strategy, FlowerStrategy):
            raise TypeError(f"RemoteEvaluation scores against clients elsewhere, and data is {type(data).__name__}")
        if self.settings["weights"] != "examples":
            raise ValueError("clients elsewhere weigh by examples; leave `weights` of the evaluation out")
        panels_of(self.settings)
        return RemoteEvaluator(data, strategy, device=strategy.root_device, **self.settings)


class RemoteEvaluator(Evaluator):
    """An `Evaluator` whose clients answer for themselves.

    Args:
        data: names and numbers of their images.
        strategy: which reaches them.
        settings: as for `Evaluator`.
    """

    def __init__(self, data: RemoteClients, strategy: FlowerStrategy, **settings: Any) -> None:
        super().__init__(splits_of(data), **settings)
        self._real = _RemoteSide(self.plan, self.seed, strategy, settings.get("batch_size", 64), self.device)


def splits_of(data: RemoteClients) -> list[Split]:
    """The splits "train" and, where every client holds out two images, "report", of images that are not here."""
    names, found = tuple(client.name for client in data.clients), []
    for name, part in ((SELECT, "train"), (REPORT, "held_out")):
        counts = tuple(len(getattr(client, part)) for client in data.clients)
        if name == SELECT or min(counts) >= LEAST:
            # of any number, without the memory
            images = torch.zeros(1, *data.image_shape, dtype=torch.uint8).expand(sum(counts), *data.image_shape)
            source = "elsewhere" if name == SELECT else "elsewhere held out"
            found.append(Split(name, images, counts, source, names))
    return found


class _RemoteSide(RealSide):
    """The clients' side of scores: summaries, which they tell once, and sketches."""

    def __init__(
        self,
        plan: Plan,
        seed: int,
        strategy: FlowerStrategy,
        batch_size: int,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(plan, seed, None, batch_size, device)
        self._strategy = strategy

    def prepare(self) -> None:
        if not self._references:
            self._references = {
                (split.name, panel.embedding.name): _RemoteReference(self.plan, split, panel, self._strategy)
                for panel in self.plan.panels
                for split in self.plan.splits
                if self.plan.choices(split, panel)
            }


class _RemoteReference(Reference):
    """Clients in one embedding and split, by what they tell."""

    def __init__(self, plan: Plan, split: Split, panel: Panel, strategy: FlowerStrategy) -> None:
        self._plan, self._split, self._panel, self._strategy = plan, split, panel, strategy
        told = self._ask("statistics")
        self._summaries = [self._summary(told[client], client) for client in range(len(split.counts))]
        self._frechet: dict[float, FrechetReference] = {}
        self._moments: dict[str, KernelMoments | FourierMoments] = {}
        self.choices = tuple(plan.choices(split, panel))
        for choice in self.choices:
            if choice.kind == "fid":
                ddof = choice.options["ddof"]
                self._frechet[ddof] = FrechetReference.from_summaries(self._summaries, "examples", ddof)
            else:
                self._moments[choice.name] = self._sketched(choice)

    def _ask(self, ask: Asked, score: str = "", **tensors: Tensor) -> dict[int, Message]:
        """Each client's message.

        Raises:
            MessageError: if one does not tell, naming it.
        """
        answers = self._strategy.ask_all(ask, self._split.name, self._panel.embedding, score, tensors)
        found: dict[int, Message] = {}
        for client, name in enumerate(self._split.client_names):
            answer = answers[client]
            if isinstance(answer, str) or answer.failure:
                raise MessageError(f"client {name!r}: {answer if isinstance(answer, str) else answer.failure}")
            try:
                found[client] = Message.from_bytes(answer.message)
            except MessageError as error:
                raise MessageError(f"client {name!r}: {error}") from error
        return found

    def _summary(self, message: Message, client: int) -> Gaussian:
        summary, count = gaussian_from_message(message), self._split.counts[client]
        if abs(summary.count - count) > 0.5:
            name = self._split.client_names[client]
            raise MessageError(f"client {name!r} tells of {summary.count:g} images and has {count}")
        return summary

    def _sketched(self, choice: ScoreChoice) -> KernelMoments | FourierMoments:
        dim = self._summaries[0].dim
        pooled = FrechetReference.from_summaries(self._summaries, "examples", 0).pooled
        sketch = sketch_of(choice, dim, pooled.mean)
        total = add(*self._ask("sketch", choice.name, centre=pooled.mean).values())
        return sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, pooled)

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        losses: Losses | None = None,
    ) -> list[FederatedScore]:
        """As `Reference.score`; a score whose clients do not all answer is left out with a warning."""
        wanted = [choice for choice in self.choices if only is None or choice.name in only]
        found = []
        for choice in wanted:
            try:
                score = self._score_of(choice, generated, errors)
            except MessageError as error:
                rank_zero_warn(f"{choice.name} on split {self._split.name!r} is left out of this evaluation: {error}")
                continue
            weights = torch.tensor(self._split.counts, dtype=torch.float64) / sum(self._split.counts)
            score = scaled(with_further(score, choice, self._plan.aggregates, weights), choice.scale)
            found.append(replace(score, name=choice.name))
        return found

    def _score_of(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        if choice.kind == "fid":
            return self._frechet[choice.options["ddof"]].score(generated, errors)
        assert isinstance(generated, Tensor)
        messages: Mapping[int, Message] = self._ask("kid", choice.name, generated=generated)
        total = kid_from_messages(add(*messages.values()), self._moments[choice.name])
        per_client = torch.stack([m.tensors["score"] / m.tensors["count"] for m in messages.values()])
        weights = torch.tensor(self._split.counts, dtype=torch.float64) / sum(self._split.counts)
        return combine(choice.kind, per_client, total.all, weights)
