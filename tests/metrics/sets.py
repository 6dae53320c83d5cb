"""Features of three clients and a generator, and each metric with them, for the tests of this folder."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgen.metrics import FederatedFrechetDistance, FederatedKernelDistance, FrechetDistance, KernelDistance

DIM = 6
COUNTS = (4, 9, 20)  # fewer images than features, and more


def features(number: int, seed: int, dim: int = DIM) -> Tensor:
    """Float32 features [number, dim] away from the origin."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(number, dim, generator=draw) * 0.5 + 0.3 * seed


CLIENTS = [features(number, seed) for seed, number in enumerate(COUNTS)]
GENERATED = features(25, 3)

PLAIN: dict[str, Callable[..., Any]] = {
    "frechet": partial(FrechetDistance, dim=DIM),
    "kernel": partial(KernelDistance, dim=DIM),
}
FEDERATED: dict[str, Callable[..., Any]] = {
    "federated-frechet": partial(FederatedFrechetDistance, num_clients=len(COUNTS), dim=DIM),
    "federated-kernel": partial(FederatedKernelDistance, num_clients=len(COUNTS), dim=DIM),
}
METRICS = {**PLAIN, **FEDERATED}


def batches(federated: bool) -> list[dict[str, Any]]:
    """Arguments of seven updates: every client in two batches, then the generated images."""
    side = "client" if federated else "real"
    real = [
        {"images": part, side: k if federated else True}
        for k, c in enumerate(CLIENTS)
        for part in c.split([3, len(c) - 3])
    ]
    return [*real, {"images": GENERATED, side: None if federated else False}]


def filled(name: str, **arguments: Any) -> Any:
    """A metric that has seen everything."""
    metric = METRICS[name](**arguments)
    for batch in batches(name in FEDERATED):
        metric.update(**batch)
    return metric


def values(metric: Any) -> dict[str, Tensor]:
    """The result as a dict, whatever its form."""
    result = metric.compute()
    return result if isinstance(result, dict) else {"value": result}


def assert_equal(metric: Any, other: Any, rtol: float = 0.0) -> None:
    """Raises unless both metrics compute the same, by default to the bit."""
    torch.testing.assert_close(values(metric), values(other), rtol=rtol, atol=0.0)
