"""Checkpoints, clients, images and messages of finished runs, and scores of checkpoints beside IID controls."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedgen.class_paths import import_by_path
from fedgen.clients import FederatedDataModule
from fedgen.data import DataSet
from fedgen.embeddings import Embedding, embed, load_embedding
from fedgen.evaluation import draw_images, list_checkpoints, load_weights, sampler_of
from fedgen.evaluation.names import LAST
from fedgen.evaluation.own_models import own_in_place
from fedgen.evaluation.panels import require_device
from fedgen.evaluation.records import sampling_of
from fedgen.evaluation.runs.evaluate_run import mixture_of_local
from fedgen.evaluation.runs.rebuild import RECIPE, local_models, personal_tensors, rebuild
from fedgen.experiments.engine import features, trainings
from fedgen.experiments.engine.study import ScoredArmsChoice
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.compression import Compressor
from fedgen.federated.federation_state import CHECKPOINT_KEY
from fedgen.federated.server_model import compressed_bytes, trained_parameters
from fedgen.io.files import read_yaml
from fedgen.io.tensor_files import tensors_in
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.statistics import Projection


def kept_checkpoints(folder: Path) -> dict[int, Path]:
    kept = list_checkpoints(folder)
    if not kept:
        raise FileNotFoundError(f"{folder} holds no checkpoint; remove it, and it is trained again")
    return kept


def generated_images(folder: Path, num_images: int = 1000, seed: int = 0) -> Tensor:
    """Images uint8 [num_images, C, H, W] of a run's last generator, drawn from a seed."""
    round, path = list(kept_checkpoints(folder).items())[-1]
    model, _ = rebuild(folder)
    load_weights(model, path)
    return draw_images(sampler_of(model), num_images, seed, round, description=f"sampling {folder.name}")


def client_images(folder: Path) -> list[Tensor]:
    _, data = rebuild(folder)
    return [data.examples.inputs[client.train] for client in data.clients]


def clients_of(folders: Iterable[Path]) -> FederatedDataModule:
    (first, *others) = folders
    _, data = rebuild(first)
    for other in others:
        require_same_clients(first, data, other, rebuild(other)[1])
    return data


def require_same_clients(first: Path, clients: FederatedDataModule, second: Path, others: FederatedDataModule) -> None:
    parts = [[(client.name, client.train) for client in data.clients] for data in (clients, others)]
    same = (
        clients.examples.name == others.examples.name
        and clients.image_shape == others.image_shape
        and len(parts[0]) == len(parts[1])
        and all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(*parts))
    )
    if not same:
        raise ValueError(f"{second} had other clients than {first}; remove it, or give other --runs")


def message_bytes(training: trainings.Training) -> dict[str, int]:
    """Bytes of "weights" as sent, averaged "optimizer states" and "control variates"."""
    module, _ = rebuild(training.place)
    settings = read_yaml(training.place / RECIPE)["trainer"]["strategy"].get("init_args") or {}
    checkpoint = read_checkpoint(training.place / LAST)
    state = checkpoint[CHECKPOINT_KEY]
    moving = state.get("exchange", {}).get("moving", ())
    exchange = Exchange(module, trained_parameters(module, ()), settings.get("personal") or (), moving=moving)
    compressor: Compressor | None = _part(settings, "compression")
    if compressor is not None:
        exchange.compressed = compressed_bytes(compressor, exchange.trainable)
    algorithm: ClientAlgorithm = _part(settings, "client_algorithm") or ClientAlgorithm()
    averaged = settings.get("optimizer_state") == "average"
    servers = getattr(module, "server_optimizers", ())
    states = [state["state"] for i, state in enumerate(checkpoint["optimizer_states"]) if averaged and i not in servers]
    return {
        "weights": exchange.num_bytes,
        "optimizer states": sum(t.numel() * t.element_size() for t in tensors_in(states) if t.is_floating_point()),
        "control variates": algorithm.num_bytes(exchange.trainable),
    }


def _part(settings: Mapping[str, Any], name: str) -> Any:
    given = settings.get(name)
    return import_by_path(given["class_path"])(**(given.get("init_args") or {})) if given else None


@dataclass(frozen=True)
class Checkpoint:
    run: trainings.TrainedRun
    round: int
    path: Path

    @property
    def name(self) -> str:
        """For example "WGAN-GP, interval 2, seed 0, round 120"; rounds are counted from 1 here."""
        return f"{self.run.name}, round {self.round + 1}"

    def described(self) -> dict[str, Any]:
        """Plain types for `results.json`; iterations are local ones of a client in every cohort."""
        run, done = self.run, self.round + 1
        numbers = {"seed": run.seed, "interval": run.interval, "round": done, "iterations": done * run.interval}
        return {"series": run.series, "run": run.name, **numbers, "control": run.training.control}


def checkpoints_of(runs: Sequence[trainings.TrainedRun]) -> dict[str, Checkpoint]:
    found: dict[str, Checkpoint] = {}
    for run in runs:
        for round, path in kept_checkpoints(run.folder).items():
            checkpoint = Checkpoint(run, round, path)
            found[checkpoint.name] = checkpoint
    return found


class Trained:
    """The runs of an experiment and the clients that all of them were trained with, in one embedding."""

    def __init__(
        self,
        runs: Sequence[trainings.TrainedRun],
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
        self.source = features.Source(data_set, "train", embedding)

    def with_embedding(self, embedding: Embedding) -> "Trained":
        other = copy.copy(self)
        other.embedding, other.source = embedding, self.source.with_embedding(embedding)
        return other

    def federation(self, part: Literal["train", "held_out"] = "train") -> features.FeatureFederation:
        """The clients' training images, or as many of each as were asked for; or those that they held out."""
        own = [client.train if part == "train" else client.held_out for client in self.data.clients]
        if (most := self.client_images) is not None:
            own = [features.chosen(part, min(most, len(part)), self.seed, "client", k) for k, part in enumerate(own)]
        names = tuple(client.name for client in self.data.clients)
        return features.FeatureFederation(self.source.features, tuple(own), names)

    def projection(self, components: int) -> Projection | None:
        """Principal components of the test split, no client's; None without one, or of hardly more features."""
        data_set = self.source.data
        if "test" not in data_set.splits or self.source.features.shape[1] < 2 * components:
            return None
        public = features.Source(data_set, "test", self.embedding)
        return Projection.fit(public.features, components, self.embedding.name, public.examples.name)

    def images(self, checkpoint: Checkpoint, count: int) -> Tensor:
        """Generated images uint8 [count, C, H, W], drawn as evaluations do: the first n are the same for any count."""
        model = self._models[checkpoint.run.name]
        saved = load_weights(model, checkpoint.path)
        own = local_models(model, saved)
        if not own:
            self._require_one_model(model, personal_tensors(model, saved), checkpoint)
        # of training without exchange: from the mixture of the clients' own models, by their training images
        counts = torch.tensor([len(client.train) for client in self.data.clients], dtype=torch.float64)
        sample = mixture_of_local(model, own, counts / counts.sum()) if own else sampler_of(model)
        return draw_images(sample, count, self.seed, checkpoint.round, description=f"sampling {checkpoint.name}")

    def _require_one_model(
        self, model: nn.Module, personal: Mapping[int, Mapping[str, Tensor]], checkpoint: Checkpoint
    ) -> None:
        def some() -> Tensor:
            return draw_images(sampler_of(model), 2, self.seed, checkpoint.round, chunk=2)

        for kept in personal.values():
            server = some()
            with own_in_place(model, kept):
                own = some()
            if not torch.equal(own, server):
                raise ValueError(
                    f"{checkpoint.name}: its clients keep tensors that images depend on ({', '.join(list(kept)[:3])}),"
                    " so each has a model of its own and none makes the run's images; choose runs without `personal`"
                )

    def described(self, kept: Mapping[str, Checkpoint]) -> dict[str, dict[str, Any]]:
        """Checkpoints, with what their images depend on beside their weights, e.g. a diffusion model's solver."""
        models = self._models
        return {name: one.described() | {"sampling": sampling_of(models[one.run.name])} for name, one in kept.items()}

    def embedded(self, checkpoint: Checkpoint, count: int) -> Tensor:
        return embed(self.embedding, self.images(checkpoint, count), description=f"embedding {checkpoint.name}")


class Scorers:
    """The clients' side of all scores, over the clients and, but for kernels', over IID splits of the same images."""

    def __init__(
        self,
        federation: features.FeatureFederation,
        dealings: int,
        seed: int,
        kernels: Sequence[str] = ("kid",),
        projection: Projection | None = None,
        images: int = 0,
    ) -> None:
        self.projection = projection
        sides = federation.with_iid(seed, dealings).values()  # where a kernel's avg - all is another constant, no more
        frechet = ("fid", "fidc") if features.are_enough(federation.parts(), images) else ("fid",)
        self._plain = [side.reference((*frechet, *kernels) if side is federation else frechet) for side in sides]
        parts = [[projection.project(part) for part in side.parts()] for side in sides] if projection else []
        self._projected = [features.component_reference(own, images) for own in parts]

    def score(self, generated: Tensor) -> dict[str, Any]:
        """{"clients": {score: values}, "controls": [the same of each]} of generated features [m, D], with errors."""
        found = [features.rows_of(reference.score(generated)) for reference in self._plain]
        if self.projection is not None:
            small = self.projection.project(generated)
            for row, reference in zip(found, self._projected):
                row |= features.rows_of(features.component_scores(reference, small))
        return {"clients": found[0], "controls": found[1:]}


def title_of(score: str, components: int = 64) -> str:
    titles = {"fid": "FID", "kid": "KID", "kid-rbf": "KD, RBF kernel", features.PCA: f"FID, PCA-{components}"}
    titles |= {"fidc": "FID corrected", features.CORRECTED: f"FID corrected, PCA-{components}"}
    return titles[score]


@dataclass(frozen=True)
class TrainedChoice(ScoredArmsChoice):
    """Options common to experiments on trained checkpoints; its fields are options of their commands.

    Args:
        data: digits, mnist5k, fashion-mnist or cifar10; each has its recipe.
        embedding: in whose features to score; the data's own by default.
        seeds: runs with each interval; the data's own number by default, of a DDPM at most 1 of larger images.
        intervals: communication intervals of the WGAN-GP, at equal local iterations; the data's own by default.
        checkpoints: about how many of each run are kept and scored; the data's own number by default. Another number
            is another training.
        client_images: of each client's training images at most, to score against; the data's own number by default.
        components: principal components of the data's test split, where it has one, for a second FID.
        dealings: IID controls.
        device: where to sample and embed, e.g. cuda.
        seed: of the first training, the clients' held-out images, generated images and IID controls.
        quick: one seed, a twentieth of the rounds, five checkpoints, one IID control, few images.
        by_network: whether the data's own embedding is its network.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "checkpoints": 5, "dealings": 1}
    APART: ClassVar[tuple[str, ...]] = ("by_network",)
    LEAST: ClassVar[Mapping[str, float]] = {
        **ScoredArmsChoice.LEAST, "dealings": 0, "components": 1, "client_images": 2, "checkpoints": 2,
    }  # fmt: skip

    data: str = "digits"
    seeds: int | None = None  # type: ignore[assignment]
    intervals: tuple[int, ...] | None = None
    checkpoints: int | None = None
    client_images: int | None = None
    components: int = 64
    dealings: int = 3
    device: str = "cpu"
    by_network: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        trainings.require_intervals(self.protocol.series[0].intervals)
        require_device(self.device)

    @cached_property
    def protocol(self) -> trainings.Protocol:
        own = trainings.protocol_of(self.data)
        first = own.series[0] if self.intervals is None else replace(own.series[0], intervals=tuple(self.intervals))
        return replace(
            own,
            series=(first, *own.series[1:]),
            embedding=self.embedding or (own.network if self.by_network else own.embedding),
            client_images=self.client_images or own.client_images,
            seeds=own.seeds if self.seeds is None else self.seeds,
            checkpoints=own.checkpoints if self.checkpoints is None else self.checkpoints,
        )

    @property
    def seeds_of(self) -> range:
        return range(self.seed, self.seed + self.protocol.seeds)

    def resolved(self, kinds: Sequence[str] | None = None) -> dict[str, Any]:
        protocol = self.protocol
        own = ("embedding", "seeds", "checkpoints", "held_out", "client_images")
        return {name: getattr(protocol, name) for name in own} | {
            "intervals": list(protocol.series[0].intervals),
            "recipes": trainings.fingerprints(self.recipes / one.recipe for one in self.series(kinds)),
        }

    def series(self, kinds: Sequence[str] | None = None) -> list[trainings.Series]:
        known = [one.name.lower() for one in self.protocol.series]
        wanted = known if kinds is None else [kind.lower() for kind in kinds]
        trainings.require_each_once("kinds", wanted, known)
        return [one for one in self.protocol.series if one.name.lower() in wanted]

    def planned(self, kinds: Sequence[str] | None = None) -> list[trainings.TrainedRun]:
        kept = self.protocol.held_out, self, self.protocol.checkpoints, self.quick
        return [run for one in self.series(kinds) for run in trainings.runs_of(one, *kept)]

    def train(self, runs: list[trainings.TrainedRun]) -> Trained:
        network = load_embedding(self.protocol.embedding, weights=self.weights).to(self.device)
        trainings.train_runs(runs, self)
        return Trained(runs, network, self.seed, self.protocol.client_images, self.device)

    def scorers(self, trained: Trained, kernels: tuple[str, ...] = ("kid",), images: int = 0) -> Scorers:
        projection = trained.projection(self.components)
        return Scorers(trained.federation(), self.dealings, self.seed, kernels, projection, images)
