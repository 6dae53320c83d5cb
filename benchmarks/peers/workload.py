"""The work that every side does: ten clients with 640 images of noise, a small CNN, plain SGD, the same batches.

It needs PyTorch and two small files of the kit, so that the peers' environments can do without Lightning.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedgen.images import from_uint8
from fedgen.seeds import generator

CLIENTS, PER_CLIENT, BATCH, RATE = 10, 640, 32, 0.001
SEED = 0
DEVICE = "PEERS_DEVICE"  # variable: "cpu", or "cuda" of which each process of a side takes its own


@dataclass(frozen=True)
class Workload:
    """Local iterations per client and round, parameters beside the CNN's, rounds, whether those are trained too."""

    title: str
    interval: int
    extra: int
    rounds: int
    trained: bool = False


WORKLOADS = {
    "small-20": Workload("10 clients x 20 local steps, 71k parameters", 20, 0, 12),
    "small-1": Workload("10 clients x 1 local step, 71k parameters", 1, 0, 60),
    "large-1": Workload("10 clients x 1 local step, 5.1M parameters, most only exchanged", 1, 5_000_000, 30),
    "large-1-trained": Workload(
        "10 clients x 1 local step, 5.1M parameters, all trained", 1, 5_000_000, 30, trained=True
    ),
}


class CNN(nn.Module):
    """A CNN of 70,986 parameters, the size that federated frameworks are compared with, and any number beside it.

    The extra parameters are copied and averaged; with a gradient, if they are trained, they are stepped as well.
    """

    def __init__(self, extra: int = 0, trained: bool = False) -> None:
        super().__init__()
        self.trained = trained
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(2048, 32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip
        self.extra = nn.Parameter(torch.zeros(extra)) if extra else None

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of images float [B, 3, 32, 32] and labels int64 [B]."""
        loss = nn.functional.cross_entropy(self.net(images), labels)
        return loss + self.extra.sum() * 1e-3 if self.trained and self.extra is not None else loss


def make_model(workload: Workload) -> CNN:
    """The model that all sides start from."""
    torch.manual_seed(SEED)
    return CNN(workload.extra, workload.trained)


@cache
def make_images() -> tuple[Tensor, Tensor]:
    """All clients' images uint8 [6400, 3, 32, 32] and labels int64 [6400], client after client."""
    draws = torch.Generator().manual_seed(SEED)
    count = CLIENTS * PER_CLIENT
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=draws)
    return images, torch.randint(0, 10, (count,), generator=draws)


def place() -> torch.device:
    """The device of this process."""
    kind = os.environ.get(DEVICE, "cpu")
    return torch.device(kind, int(os.environ.get("LOCAL_RANK", 0))) if kind == "cuda" else torch.device(kind)


@cache
def _placed_images() -> tuple[Tensor, Tensor]:
    """The images and labels on this process's device, where they stay."""
    images, labels = make_images()
    return images.to(place()), labels.to(place())


def positions(round: int, client: int) -> Tensor:
    """A client's examples int64 [640] in the order in which the kit trains on them in a round."""
    return client * PER_CLIENT + torch.randperm(PER_CLIENT, generator=generator(SEED, "batches", round, client))


def to_batch(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The images as floats in [-1, 1] and the labels at positions."""
    images, labels = _placed_images()
    chosen = chosen.to(images.device)
    return from_uint8(images[chosen]), labels[chosen]


def batches(workload: Workload, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A client's batches in a round."""
    return map(to_batch, positions(round, client)[: workload.interval * BATCH].split(BATCH))


def chosen_workload() -> tuple[Workload, int]:
    """What a side is asked for by its command line: the workload and the number of processes."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # the sides' weights are compared
    return WORKLOADS[sys.argv[1]], int(sys.argv[2])


def tell(seconds: Sequence[float], weights: Iterable[Tensor]) -> None:
    """Answers the command line: prints the rounds' seconds, and writes the final weights where it says.

    Args:
        seconds: of each round but the first.
        weights: the server's parameters, in the model's order.
    """
    torch.save([tensor.detach().cpu().clone() for tensor in weights], Path(sys.argv[3]))
    print(json.dumps(list(seconds)), flush=True)
