"""Small modules that give their steps as functions, and federations of them one by one and at once."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.federated import FedAvgStrategy, VectorisedTurns
from fedgen.models.networks.network import Network
from fedgen.models.optional_hooks import FunctionalStep
from fedgen.models.round_clock import RoundClock
from tests.federated.modules import make_data, make_trainer

ALWAYS = VectorisedTurns(always=True)


class Net(nn.Module):
    """Layers with BatchNorm, whose statistics and count are buffers that a step changes.

    A bias in front of it would have no gradient but rounding, of which Adam makes steps of any size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Alone(RoundClock):
    """A net under one optimizer, automatic optimisation; each step draws noise.

    Args:
        optimizer: of `torch.optim`, by name.
        options: the optimizer's.
    """

    def __init__(self, optimizer: str = "Adam", **options: Any) -> None:
        super().__init__()
        self.net, self.optimizer, self.options = Net(), optimizer, {"lr": 0.05, **options}

    def setup(self, stage: str) -> None:
        self.means = type(self.means)("loss")

    def draw(self, batch: Any) -> dict[str, Tensor]:
        return {"noise": torch.randn_like(batch[0])}

    def noted_loss(self, batch: Any, drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = nn.functional.cross_entropy(self.net(batch[0] + 0.1 * drawn["noise"]), batch[1])
        return loss, {"loss": loss}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss, noted = self.noted_loss(batch, self.draw(batch))
        self.means.add(noted)
        return loss

    def functional_steps(self, iteration: int) -> list[FunctionalStep]:
        return [FunctionalStep("step", 0, self.draw, self.noted_loss)]

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.optimizer)(self.net.parameters(), **self.options)

    def on_train_epoch_end(self) -> None:
        self.log_means()


class Pair(Alone):
    """Two nets under two optimizers, manual optimisation; the second steps every third iteration of the client."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = Net()

    def setup(self, stage: str) -> None:
        self.means = type(self.means)("loss", "other")

    def other_loss(self, batch: Any, drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        found = self.other(batch[0] * (1 + drawn["noise"])) + self.net(batch[0]).detach()
        loss = nn.functional.cross_entropy(found, batch[1])
        return loss, {"other": loss}

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for step in self.functional_steps(self.iteration(batch_idx)):
            optimizer = self.optimizers()[step.optimizer]
            loss, noted = step.loss(batch, step.draw(batch))
            optimizer.zero_grad()
            self.manual_backward(loss, inputs=[p for group in optimizer.param_groups for p in group["params"]])
            optimizer.step()
            self.means.add(noted)

    def functional_steps(self, iteration: int) -> list[FunctionalStep]:
        steps = [FunctionalStep("step", 0, self.draw, self.noted_loss)]
        return steps if iteration % 3 else [*steps, FunctionalStep("other", 1, self.draw, self.other_loss)]

    def configure_optimizers(self) -> Any:
        other = torch.optim.SGD(self.other.parameters(), lr=0.1, momentum=0.5)
        return torch.optim.Adam(self.net.parameters(), lr=0.02), other


class Field(Network):
    """A denoiser's smallest network: a linear map of images and times, with labels if it has classes."""

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__(num_classes=num_classes)
        self.image_shape = (1, 8, 8)
        self.num_classes, self.null_label = num_classes, num_classes is not None
        self.map, self.rise = nn.Linear(64, 64), nn.Linear(1, 64)
        self.classes = None if num_classes is None else nn.Embedding(num_classes + 1, 64)

    def forward(self, images: Tensor, times: Tensor, labels: Tensor | None = None) -> Tensor:
        found = self.map(images.flatten(1)) + self.rise(times[:, None].to(images) / 1000)
        found = found if labels is None or self.classes is None else found + self.classes(labels)
        return found.unflatten(1, self.image_shape)


def fit(
    module: Any,
    vectorised: VectorisedTurns | None,
    rounds: int = 3,
    data: Any = None,
    trainer: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Train a copy of a module; the trainer, whose strategy and module hold the rest."""
    strategy = FedAvgStrategy(**{"communication_interval": 4, "seed": 0, **options}, vectorised_turns=vectorised)
    found = make_trainer(strategy, rounds, **{"precision": "64-true", **(trainer or {})})
    found.fit(copy.deepcopy(module), make_data((12, 20, 8, 8, 9)) if data is None else data)
    return found


def both(module: Any, **options: Any) -> tuple[Any, Any]:
    """The trainers of a federation one by one and at once."""
    return fit(module, None, **options), fit(module, ALWAYS, **options)


def at_once(trainer: Any) -> Any:
    """What takes turns at once in a trainer's strategy."""
    return trainer.strategy._loop


def differences(one: Any, other: Any) -> list[float]:
    """The largest differences of two containers' tensors and numbers, which must be of one form."""
    if isinstance(one, Tensor):
        if one.shape != other.shape:
            raise AssertionError(f"shapes {one.shape} and {other.shape}")
        return [float((one.double() - other.double()).abs().max())] if one.numel() else []
    if isinstance(one, dict):
        if one.keys() != other.keys():
            raise AssertionError(f"{set(one) ^ set(other)}")
        return [d for key in one for d in differences(one[key], other[key])]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            raise AssertionError("lengths")
        return [d for a, b in zip(one, other) for d in differences(a, b)]
    if isinstance(one, (int, float)) and not isinstance(one, bool):
        return [abs(one - other)]
    if one != other:
        raise AssertionError(f"{one} and {other}")
    return []


def farthest(one: Any, other: Any) -> float:
    """The largest difference of what two trainers hold: weights, states, clients' memories, logs, counts of steps.

    Logged means are float32, of which seven digits count as alike.
    """
    found = []
    for trainer in (one, other):
        round = trainer.strategy.round
        found.append(
            {
                "weights": dict(trainer.lightning_module.state_dict()),
                "optimizers": [optimizer.state_dict() for optimizer in trainer.strategy.optimizers],
                "local": round.local.state_dict(),
                "memory": round.memory.state_dict(),
                "steps": [trainer.global_step, trainer.strategy.clock.total_steps],
                "loops": trainer.fit_loop.state_dict(),
            }
        )
    logs = [{name: float(value) for name, value in trainer.callback_metrics.items()} for trainer in (one, other)]
    if logs[0].keys() != logs[1].keys() or any(abs(v - logs[1][n]) > 3e-7 * max(1, abs(v)) for n, v in logs[0].items()):
        raise AssertionError(f"logged {logs[0]} and {logs[1]}")
    return max(differences(*found))
