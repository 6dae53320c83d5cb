"""The moving average of a network's weights that images are sampled from."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import torch
from torch import Tensor, nn

HALVES = (torch.float16, torch.bfloat16)


class InFull(nn.Module):
    """A module that follows a parent to a device or another precision, but not to half of it."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def followed(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in HALVES else moved

        return super()._apply(followed, recurse)


class Frozen(InFull):
    """A module that is always in eval mode, whatever its parent's, and that FedAvg neither copies nor averages."""

    exchanged = False

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


class EMA(Frozen):
    """A frozen copy of a network that follows it: always in eval mode, never trained, exchanged or averaged.

    An average with decay d remembers about 1 / (1 - d) iterations, so 0.9999 suits runs of 100,000; a run of a few
    thousand would still show its initial weights. `warmup` cures that: the decay of update r (counted from 0) is at
    most (1 + r) / (10 + r), so the average spans roughly the last tenth of the updates until the plain decay is less.

    Of a network in half precision, which would round updates away, it is a copy in float32, and stays one.

    Args:
        network: what to follow.
        warmup: whether to bound the decay of the first updates; off by default, the plain average.
    """

    updates: Tensor

    def __init__(self, network: nn.Module, warmup: bool = False) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.warmup = warmup
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        if any(tensor.dtype in HALVES for tensor in self.network.state_dict().values()):
            self.network.float()
        self.eval()

    @torch.no_grad()
    def update(self, network: nn.Module, decay: float) -> None:
        """Moves parameters to decay * average + (1 - decay) * network's, and copies buffers.

        The decay is over all iterations since the last update: decay_per_iteration ** iterations.
        """
        if self.warmup:
            updates = int(self.updates)
            decay = min(decay, (1 + updates) / (10 + updates))
        mine: list[Tensor] = list(self.network.parameters())
        followed = [theirs.to(own.dtype) for own, theirs in zip(mine, network.parameters(), strict=True)]
        torch._foreach_lerp_(mine, followed, 1.0 - decay)
        for own, theirs in zip(self.network.buffers(), network.buffers(), strict=True):
            own.copy_(theirs)
        self.updates += 1

    def forward(self, *args: Tensor) -> Tensor:
        return self.network(*args)


def averages_of(module: nn.Module) -> list[tuple[nn.Module, EMA]]:
    """The networks of a model that a moving average follows, each with its average: those named after it, "..._ema"."""
    return [(network, average) for _, network, average in _followed(module)]


def with_averages(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a model, and once more under their names in the averages of `averages_of`."""
    if not tensors:
        return {}
    state = module.state_dict(keep_vars=True)
    values = {id(state[name]): value for name, value in tensors.items()}  # of tied weights under any of their names
    found = dict(tensors)
    for name, network, average in _followed(module):
        copies = average.network.state_dict()
        for inner, tensor in network.state_dict(keep_vars=True).items():
            if id(tensor) in values and inner in copies:
                found[f"{name}.network.{inner}"] = values[id(tensor)]
    return found


def _followed(module: nn.Module) -> Iterator[tuple[str, nn.Module, EMA]]:
    parts = dict(module.named_modules())
    for name, part in parts.items():
        if isinstance(part, EMA) and name.endswith("_ema") and name.removesuffix("_ema") in parts:
            yield name, parts[name.removesuffix("_ema")], part
