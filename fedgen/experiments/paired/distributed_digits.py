"""FID and KID as losses over clients' messages: a Gaussian toy, and a GAN on digits.

Digits: the quickstart's ten clients hold one class each, and the second loss is FID-all, FID-avg or KID. All losses
have a fixed weight. KID-avg is no arm: `MMD2Loss` has one gradient for it and KID-all, by the same lines of code, so
that training both would compare a run with itself. That it is the clients' own KIDs' gradient is checked on the toy.

Toy: clients N((-1, 0), I) and N((+1, 0), I), a generator x = mean + sd z in the plane. FID needs the clients' counts,
sums and sums of outer products, once: for "all" their total alone, for "avg" each client's. KID needs a kernel between
each point and each generated one, for which the clients' points stand beside the generator, a simulation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.embeddings import embed, load_embedding
from fedgen.evaluation import Columns, Run
from fedgen.experiments.engine.scored_checkpoints import client_images
from fedgen.experiments.engine.trainings import Arm, Training, component, embedded_loss, trainings_of
from fedgen.experiments.paired.digits_fid_loss import LOSSES, DigitsChoice, folder_of
from fedgen.experiments.theory.gaussian_toy import draw_clients
from fedgen.losses import FastFIDLoss, MMD2Loss, QueueMoments
from fedgen.seeds import generator
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
        return (OPTIMISED,) if self.quick else EMBEDDINGS


def trainings(choice: DistributedChoice, output: Path) -> dict[str, list[Training]]:
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


OBJECTIVES = ("fid_all", "fid_avg", "kid_all", "kid_avg")
OPTIMA = {"fid_all": 2.0, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.0}  # variance along x: `scores.theory`
START = (0.5, 0.5, 0.5, 0.5)  # mean x, mean y, sd x, sd y
RATE = 0.02  # Adam's, at first
SHOWN = 120  # points of a trajectory that are kept

Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ToySettings:
    """Options for training the toy's generator."""

    points: int = 50_000  # of each client whose moments are sent
    kernel_points: int = 4000  # of each client that a kernel meets
    batch: int = 512  # generated points of a step
    queue: int = 4096  # generated points whose moments count; one batch alone would shrink the generator
    steps: int = 600  # of Adam, at a rate that falls to zero


def sent(points: Sequence[Tensor]) -> list[bytes]:
    """Return what clients send for FID: one message each, its count, sum and sum of outer products."""
    return [gaussian_to_sums(summarize(part)).to_bytes() for part in points]


def frechet_objective(messages: Sequence[bytes], aggregate: str, queue: int) -> FastFIDLoss:
    """The server's FID loss, from messages: for "all" it looks at their sum alone."""
    received = [Message.from_bytes(message, "sums") for message in messages]
    known = [add(*received)] if aggregate == "all" else received
    loss = FastFIDLoss(QueueMoments(queue), "all" if aggregate == "all" else "avg")
    return loss.set_references([gaussian_from_message(message) for message in known])


def kernel_objective(points: Sequence[Tensor], aggregate: str) -> Objective:
    """KID to the pool, or the mean of the clients' own scores by their numbers of points, each computed by itself."""
    if aggregate == "all":
        return MMD2Loss(constant=False).set_references(list(points))
    singles = [MMD2Loss(constant=False).set_references([part]) for part in points]
    total = sum(map(len, points))

    def mean(generated: Tensor) -> Tensor:
        scores = [single(generated) * (len(part) / total) for single, part in zip(singles, points)]
        return torch.stack(scores).sum()

    return mean


def objectives(settings: ToySettings, seed: int) -> tuple[dict[str, Objective], int]:
    """The four objectives over one draw of the clients, and the bytes of a client's message."""
    points = [part.double() for part in draw_clients(settings.points, seed).parts()]
    messages = sent(points)
    few = [part[: settings.kernel_points] for part in points]
    made: dict[str, Objective] = {f"fid_{a}": frechet_objective(messages, a, settings.queue) for a in ("all", "avg")}
    return made | {f"kid_{a}": kernel_objective(few, a) for a in ("all", "avg")}, len(messages[0])


def train_toy(settings: ToySettings, seed: int) -> dict[str, Any]:
    """The variance along x on the way by objective, the end's parameters, and what was sent.

    Keys: "steps" (those that "variance" shows), "variance" (objective -> values), "end" (objective -> [mean x, mean y,
    variance x, variance y], means of the last tenth), "kid gradients" (largest relative difference of KID-avg's to
    KID-all's, at points of KID-all's path), "bytes" (a client's message).
    """
    found, size = objectives(settings, seed)
    paths = {name: descend(objective, settings, seed) for name, objective in found.items()}
    tail, every = max(1, settings.steps // 10), max(1, settings.steps // SHOWN)
    return {
        "steps": list(range(0, settings.steps + 1, every)),
        "variance": {name: path[::every, 2].tolist() for name, path in paths.items()},
        "end": {name: path[-tail:].mean(0).tolist() for name, path in paths.items()},
        "kid gradients": gradient_difference(found["kid_all"], found["kid_avg"], paths["kid_all"], settings, seed),
        "bytes": size,
    }


def descend(objective: Objective, settings: ToySettings, seed: int) -> Tensor:
    """Means and variances [steps + 1, 4] on the way; the same noise for every objective."""
    parameters = torch.tensor(START, dtype=torch.float64)
    parameters[2:] = parameters[2:].log()
    parameters.requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, settings.steps)
    draws = generator(seed, "distributed-toy", "noise")
    path = [_moments(parameters)]
    for _ in range(settings.steps):
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        optimizer.zero_grad()
        objective(parameters[:2] + parameters[2:].exp() * noise).backward()
        optimizer.step()
        schedule.step()
        path.append(_moments(parameters))
    return torch.stack(path)


def gradient_difference(one: Objective, other: Objective, path: Tensor, settings: ToySettings, seed: int) -> float:
    """The largest relative difference of two objectives' gradients at ten generators of a path."""
    draws, worst = generator(seed, "distributed-toy", "gradients"), 0.0
    for moments in path[:: max(1, len(path) // 10)]:
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        points = (moments[:2] + moments[2:].sqrt() * noise).requires_grad_()
        first, second = (torch.autograd.grad(objective(points), points)[0] for objective in (one, other))
        worst = max(worst, float((first - second).norm() / first.norm()))
    return worst


def _moments(parameters: Tensor) -> Tensor:
    mean, log_deviation = parameters.detach().split(2)
    return torch.cat([mean, (2 * log_deviation).exp()])
