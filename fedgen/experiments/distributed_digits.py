"""A federated GAN on digits whose second loss is FID or KID, each in both aggregates: trainings and what they leave.

The quickstart's ten clients hold one class each. All four losses have a fixed weight: one that adapts to the loss's
value would make two different losses of KID-all and KID-avg, whose values differ by a constant and gradients not at
all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.embeddings import embed, load_embedding
from fedgen.evaluation import Columns, Run, draw_images, list_checkpoints, load_weights, sampler_of
from fedgen.evaluation.rebuild import rebuild
from fedgen.experiments.digits_fid_loss import folder_of
from fedgen.experiments.runs import Training
from fedgen.losses import FastFIDLoss
from fedgen.statistics import (
    Gaussian,
    Message,
    add,
    gaussian_from_message,
    gaussian_to_sums,
    message_size,
    pool,
    summarize,
)

CONTROL = "without"
ARMS = (CONTROL, "fid_all", "fid_avg", "kid_all", "kid_avg")
OPTIMISED, UNRELATED = "pixels", "efficientnet-lite0-32"
SIZES = (64, 1280, 2048)  # features whose messages are weighed: of pixels, of EfficientNet-Lite0 and of Inception


@dataclass(frozen=True)
class DigitsSettings:
    """How the digits' generators are trained.

    Args:
        recipe: of a federation with `generator_losses`.
        seeds: runs of each arm.
        rounds: of each run; the recipe's if None.
        fid_weight: factor of the FID losses.
        kid_weight: of the KID losses: KID is about 3 / D of the squared distance of means, FID all of it.
        embeddings: to score in.
    """

    recipe: Path
    seeds: int
    rounds: int | None
    fid_weight: float
    kid_weight: float
    embeddings: tuple[str, ...] = (UNRELATED, OPTIMISED)


def trainings(settings: DigitsSettings, output: Path) -> dict[str, list[Training]]:
    """Each arm's runs by seed."""
    return {
        arm: [
            Training(settings.recipe, folder_of(output, arm, s), s, _given(arm, settings))
            for s in range(settings.seeds)
        ]
        for arm in ARMS
    }


def _given(arm: str, settings: DigitsSettings) -> tuple[str, ...]:
    """More arguments of `fedgen fit`."""
    given: dict[str, Any] = {"--model.init_args.generator_losses": json.dumps(losses_of(arm, settings))}
    if settings.rounds is not None:
        evaluation = {"every_n_rounds": settings.rounds, "num_images": 1000, "grid": 100}
        callback = {
            "class_path": "fedgen.callbacks.FederatedEvaluation",
            "init_args": {**evaluation, "embeddings": list(settings.embeddings)},
        }
        given |= {"--trainer.max_epochs": settings.rounds, "--trainer.callbacks": json.dumps([callback])}
    return tuple(str(text) for pair in given.items() for text in pair)


def losses_of(arm: str, settings: DigitsSettings) -> list[dict[str, Any]] | None:
    """`generator_losses` of an arm, as recipes have it."""
    if arm == CONTROL:
        return None
    score, aggregate = arm.split("_")
    ema = {"class_path": "fedgen.losses.EMAMoments", "init_args": {"decay": 0.9}}
    own = {"aggregate": aggregate}
    loss = {
        "fid": {"class_path": "fedgen.losses.FastFIDLoss", "init_args": {"moments": ema, **own}},
        "kid": {"class_path": "fedgen.losses.MMD2Loss", "init_args": own},
    }[score]
    weight = {"fid": settings.fid_weight, "kid": settings.kid_weight}[score]
    embedded = {"loss": loss, "embeddings": [OPTIMISED], "weight": weight}
    return [{"class_path": "fedgen.losses.EmbeddedLoss", "init_args": embedded}]


def last_checkpoint(folder: Path) -> tuple[int, Path]:
    """The round and path of a run's last checkpoint.

    Raises:
        FileNotFoundError: if there is none.
    """
    kept = list_checkpoints(folder)
    if not kept:
        raise FileNotFoundError(f"{folder} holds no checkpoint; remove it, and it is trained again")
    return list(kept.items())[-1]


def generated_images(folder: Path, num_images: int = 1000) -> Tensor:
    """Images uint8 [num_images, C, H, W] of a run's last generator."""
    round, path = last_checkpoint(folder)
    model, _ = rebuild(folder)
    load_weights(model, path)
    return draw_images(sampler_of(model), num_images, 0, round, description=f"sampling {folder.name}")


def client_images(folder: Path) -> list[Tensor]:
    """The training images of each of a run's clients, uint8 [n_i, C, H, W]."""
    _, data = rebuild(folder)
    return [data.examples.inputs[client.train] for client in data.clients]


def traces(images: Tensor, embeddings: Sequence[str]) -> dict[str, float]:
    """Trace of the images' covariance in each embedding."""
    return {name: float(_summary(images, name).trace()) for name in embeddings}


def real_traces(folder: Path, embeddings: Sequence[str]) -> dict[str, dict[str, float]]:
    """In each embedding the trace of the pool of the clients' training images, and the mean of the clients' own."""
    found, parts = {}, client_images(folder)
    for name in embeddings:
        summaries = [_summary(part, name) for part in parts]
        pooled = pool(summaries)
        within = sum(one.count * float(one.trace()) for one in summaries) / pooled.count
        found[name] = {"pool": float(pooled.trace()), "within": within}
    return found


def floors(folder: Path) -> dict[str, float]:
    """By column, what held-out real images score."""
    records = Run(folder).records
    names = Columns.of(records)
    return {names.name(record): record.value for record in records if record.is_floor}


def parameter_difference(one: Path, other: Path) -> float:
    """The largest difference of two runs' last models in any parameter, over the largest parameter."""
    states = [torch.load(last_checkpoint(folder)[1], weights_only=True)["state_dict"] for folder in (one, other)]
    shared = [name for name in states[0] if name in states[1] and states[0][name].is_floating_point()]
    largest = max(float(states[0][name].abs().max()) for name in shared)
    return max(float((states[0][name] - states[1][name]).abs().max()) for name in shared) / largest


def messages_against_images(folder: Path) -> dict[str, Any]:
    """What clients would send for FID, and how far the loss from messages is from that of the simulation's images.

    Keys: "bytes" (a client's message, by D), "value" and "gradient" (relative differences, by aggregate).
    """
    parts = [_features(part, OPTIMISED) for part in client_images(folder)]
    messages = [Message.from_bytes(gaussian_to_sums(summarize(part)).to_bytes(), "sums") for part in parts]
    found: dict[str, Any] = {"value": {}, "gradient": {}}
    batch = torch.cat([part[:4] for part in parts]).flip(1).double()  # any images that are not the clients'
    for aggregate, received in (("all", [add(*messages)]), ("avg", messages)):
        sides = [list(map(gaussian_from_message, received)), parts]
        results = [_value_and_gradient(aggregate, side, batch) for side in sides]
        found["value"][aggregate] = abs(results[0][0] / results[1][0] - 1)
        found["gradient"][aggregate] = float((results[0][1] - results[1][1]).norm() / results[1][1].norm())
    sizes = {dim: gaussian_to_sums(summarize(torch.zeros(2, dim))) for dim in SIZES}
    return found | {"bytes": {str(dim): message_size(message) for dim, message in sizes.items()}}


def _value_and_gradient(aggregate: Any, clients: Any, batch: Tensor) -> tuple[float, Tensor]:
    features = batch.clone().requires_grad_()
    value = FastFIDLoss(aggregate=aggregate).set_references(clients)(features)
    return float(value.detach()), torch.autograd.grad(value, features)[0]


def _features(images: Tensor, embedding: str) -> Tensor:
    return embed(load_embedding(embedding), images, description=f"embedding with {embedding}")


def _summary(images: Tensor, embedding: str) -> Gaussian:
    return summarize(_features(images, embedding))
