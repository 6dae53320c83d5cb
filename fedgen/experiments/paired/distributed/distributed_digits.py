"""A federated GAN on digits whose second loss is FID-all, FID-avg or KID: trainings and what they leave.

The quickstart's ten clients hold one class each. All losses have a fixed weight. KID-avg is no arm: `MMD2Loss` has one
gradient for it and KID-all, by the same lines of code, so that training both would compare a run with itself. That it
is the clients' own KIDs' gradient is checked on the toy (`distributed_toy`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.embeddings import embed, load_embedding
from fedgen.evaluation import Columns, Run
from fedgen.experiments.engine.recipe_file import component, embedded_loss
from fedgen.experiments.engine.run_images import client_images
from fedgen.experiments.engine.trainings import Arm, Training, trainings_of
from fedgen.experiments.paired.digits_fid_loss import LOSSES, DigitsChoice, folder_of
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
ARMS = (CONTROL, "fid_all", "fid_avg", "kid_all")
OPTIMISED, UNRELATED = "pixels", "efficientnet-lite0-32"
EMBEDDINGS = (UNRELATED, OPTIMISED)
SIZES = (64, 1280, 2048)  # features whose messages are weighed: of pixels, of EfficientNet-Lite0 and of Inception


@dataclass(frozen=True)
class DistributedChoice(DigitsChoice):
    """Options of distributed-fid-loss; its fields are options of the command.

    Args:
        recipe: of a federation on digits with `generator_losses`.
        seeds: runs of the toy and of each arm on digits.
        fid_weight: factor of FID beside the adversarial loss.
        kid_weight: factor of KID: its values are about 3 / D of the squared distance of means, FID's all of it.
        seed: of the first runs and of the images drawn; the others follow it.
        quick: a minute, to see that it runs; scored in pixels alone.

    Raises:
        ValueError: also for weights that are not positive.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "rounds": 2, "parallel": lambda _: 2}
    LEAST: ClassVar[Mapping[str, int]] = {**DigitsChoice.LEAST, "seeds": 1}

    seeds: int = 3
    fid_weight: float = 10.0
    kid_weight: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.fid_weight, self.kid_weight) <= 0:
            raise ValueError(
                f"fid_weight={self.fid_weight:g}, kid_weight={self.kid_weight:g}: a loss needs a positive weight"
            )

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Those to score in."""
        return (OPTIMISED,) if self.quick else EMBEDDINGS


def trainings(choice: DistributedChoice, output: Path) -> dict[str, list[Training]]:
    """Each arm's runs by seed."""
    common: dict[str, Any] = {}
    if choice.rounds is not None:
        options = {"every_n_rounds": choice.rounds, "num_images": 1000, "grid": 100}
        evaluation = component("fedgen.callbacks.FederatedEvaluation", embeddings=choice.embeddings, **options)
        common = {"trainer.max_epochs": choice.rounds, "trainer.callbacks": [evaluation]}
    arms = [Arm(name, {LOSSES: losses_of(name, choice)}) for name in ARMS]
    return trainings_of(
        choice.recipe, arms, choice.seeds_of, lambda arm, seed: folder_of(output, arm.name, seed), common
    )


def losses_of(arm: str, choice: DistributedChoice) -> list[dict[str, Any]] | None:
    """`generator_losses` of an arm, as recipes have it."""
    if arm == CONTROL:
        return None
    score, aggregate = arm.split("_")
    if score == "kid":
        loss, weight = component("fedgen.losses.MMD2Loss", aggregate=aggregate), choice.kid_weight
    else:
        moments = component("fedgen.losses.EMAMoments", decay=0.9)
        loss = component("fedgen.losses.FastFIDLoss", moments=moments, aggregate=aggregate)
        weight = choice.fid_weight
    return embedded_loss(loss, [OPTIMISED], weight=weight)


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


def messages_against_images(folder: Path) -> dict[str, Any]:
    """Measure what clients would send for FID, and how far the loss from messages is from that of the simulation's
    images.

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
