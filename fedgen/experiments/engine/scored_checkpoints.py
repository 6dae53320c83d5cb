"""Checkpoints of federated runs over the clients they were trained with, and what they score beside IID controls."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.data import DataSet
from fedgen.embeddings import Embedding, embed
from fedgen.evaluation.image_sampling import draw_images, sampler_of
from fedgen.evaluation.own_models import own_in_place
from fedgen.evaluation.records import sampling_of
from fedgen.evaluation.reference import Reference
from fedgen.evaluation.runs.evaluate_run import mixture_of_local
from fedgen.evaluation.runs.rebuild import load_weights, local_models, personal_tensors, rebuild
from fedgen.experiments.engine.feature_federation import FeatureFederation, rows_of
from fedgen.experiments.engine.image_sources import Source, chosen
from fedgen.experiments.engine.run_images import kept_checkpoints, require_same_clients
from fedgen.experiments.engine.trained_runs import TrainedRun
from fedgen.statistics import Projection

PCA = "fid pca"  # FID on principal components of public images, beside "fid"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round."""

    run: TrainedRun
    round: int
    path: Path

    @property
    def name(self) -> str:
        """E.g. "WGAN-GP, interval 2, seed 0, round 120"; rounds are counted from 1 here."""
        return f"{self.run.name}, round {self.round + 1}"

    @property
    def iterations(self) -> int:
        """Local iterations so far of a client in every cohort."""
        return (self.round + 1) * self.run.interval

    def described(self) -> dict[str, Any]:
        """Run, seed, interval, round, iterations and control, as plain types for `results.json`."""
        run = self.run
        numbers = {"seed": run.seed, "interval": run.interval, "round": self.round + 1, "iterations": self.iterations}
        return {"series": run.series, "run": run.name, **numbers, "control": run.training.control}


def checkpoints_of(runs: Sequence[TrainedRun]) -> dict[str, Checkpoint]:
    """The checkpoints of runs by name, run after run.

    Raises:
        FileNotFoundError: for a run without checkpoints.
    """
    found: dict[str, Checkpoint] = {}
    for run in runs:
        for round, path in kept_checkpoints(run.folder).items():
            checkpoint = Checkpoint(run, round, path)
            found[checkpoint.name] = checkpoint
    return found


class Trained:
    """The runs of an experiment and the clients that all of them were trained with, in one embedding.

    Args:
        runs: finished runs.
        embedding: of real and generated images; it says where they are embedded.
        seed: of generated images and of chosen ones.
        client_images: of each client's training images at most; all if None.
        device: where models sample.

    Raises:
        ValueError: if two runs had other clients, or clients have fewer images.
    """

    def __init__(
        self,
        runs: Sequence[TrainedRun],
        embedding: Embedding,
        seed: int = 0,
        client_images: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.embedding, self.seed, self.client_images = embedding, seed, client_images
        self._models = {}
        for run in runs:
            model, data = rebuild(run.folder)
            self._models[run.name] = model.to(device)
            if run is runs[0]:
                self.data: FederatedDataModule = data
            else:
                require_same_clients(runs[0].folder, self.data, run.folder, data)
        data_set = self.data.data
        assert isinstance(data_set, DataSet)  # a recipe holds no examples
        self.source = Source(data_set, "train", embedding)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(client.name for client in self.data.clients)

    def with_embedding(self, embedding: Embedding) -> "Trained":
        """The same runs and clients in another embedding."""
        other = copy.copy(self)
        other.embedding, other.source = embedding, self.source.with_embedding(embedding)
        return other

    def federation(self, part: Literal["train", "held_out"] = "train") -> FeatureFederation:
        """The clients' training images, or as many of each as were asked for; or those that they held out."""
        own = [client.train if part == "train" else client.held_out for client in self.data.clients]
        if self.client_images is not None:
            own = [
                chosen(part, min(self.client_images, len(part)), self.seed, "client", k) for k, part in enumerate(own)
            ]
        return FeatureFederation(self.source.features, tuple(own), self.names)

    def projection(self, components: int) -> Projection | None:
        """Principal components of the data's test split, which no client holds; None where there is no such split.

        None too where the embedding has hardly more features than components.
        """
        data_set = self.source.data
        if "test" not in data_set.splits or self.source.features.shape[1] < 2 * components:
            return None
        public = Source(data_set, "test", self.embedding)
        return Projection.fit(public.features, components, self.embedding.name, public.examples.name)

    def images(self, checkpoint: Checkpoint, count: int) -> Tensor:
        """Generated images uint8 [count, C, H, W], drawn as evaluations do: the first n are the same for any count.

        Of training without exchange they come from the mixture of the clients' own models, by their training images.

        Raises:
            ValueError: where clients keep some tensors that images depend on: then no one model makes them.
        """
        model = self._models[checkpoint.run.name]
        saved = load_weights(model, checkpoint.path)
        own = local_models(model, saved)
        if not own:
            self._require_one_model(model, personal_tensors(model, saved), checkpoint)
        counts = torch.tensor([len(client.train) for client in self.data.clients], dtype=torch.float64)
        sample = mixture_of_local(model, own, counts / counts.sum()) if own else sampler_of(model)
        return draw_images(sample, count, self.seed, checkpoint.round, description=f"sampling {checkpoint.name}")

    def _require_one_model(
        self, model: nn.Module, personal: Mapping[int, Mapping[str, Tensor]], checkpoint: Checkpoint
    ) -> None:
        def some() -> Tensor:
            return draw_images(sampler_of(model), 2, self.seed, checkpoint.round, chunk=2)

        server = some() if personal else None
        for kept in personal.values():
            with own_in_place(model, kept):
                own = some()
            if server is not None and not torch.equal(own, server):
                raise ValueError(
                    f"{checkpoint.name}: its clients keep tensors that images depend on ({', '.join(list(kept)[:3])}),"
                    " so each has a model of its own and none makes the run's images; choose runs without `personal`"
                )

    def sampling(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return what a checkpoint's images depend on beside its weights, e.g. a diffusion model's solver."""
        return sampling_of(self._models[checkpoint.run.name])

    def features(self, checkpoint: Checkpoint, count: int) -> Tensor:
        """Features [count, D] of generated images."""
        return embed(self.embedding, self.images(checkpoint, count), description=f"embedding {checkpoint.name}")


class Scorers:
    """The clients' side of all scores, over the clients and over IID dealings of the same images.

    Kernel scores are measured over the clients alone: over a control their avg - all is another constant, and no more.

    Args:
        federation: the clients.
        dealings: IID controls.
        seed: of the dealings.
        kernels: "kid", "kid-rbf".
        projection: for a second FID, called PCA; None leaves it out.
    """

    def __init__(
        self,
        federation: FeatureFederation,
        dealings: int,
        seed: int,
        kernels: Sequence[str] = ("kid",),
        projection: Projection | None = None,
    ) -> None:
        self.projection = projection
        sides = federation.dealt(seed, dealings).values()
        self._plain = [side.reference(("fid", *kernels) if side is federation else ("fid",)) for side in sides]
        self._projected = [
            Reference([projection.project(part) for part in side.parts()], ("fid",), "examples")
            for side in sides
            if projection
        ]

    def score(self, generated: Tensor) -> dict[str, Any]:
        """{"clients": {score: values}, "controls": [the same of each]} of generated features [m, D], with errors."""
        found = [rows_of(reference.score(generated)) for reference in self._plain]
        if self.projection is not None:
            small = self.projection.project(generated)
            for row, reference in zip(found, self._projected):
                row[PCA] = rows_of(reference.score(small))["fid"]
        return {"clients": found[0], "controls": found[1:]}


def title_of(score: str, components: int = 64) -> str:
    """Return a score's name in tables and figures."""
    titles = {"fid": "FID", "kid": "KID", "kid-rbf": "KD, RBF kernel", PCA: f"FID, PCA-{components}"}
    return titles[score]
