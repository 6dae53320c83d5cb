"""Images that finished runs left to score: their checkpoints, images of the last generator, and the clients' own
images.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedgen.clients import FederatedDataModule
from fedgen.evaluation import draw_images, list_checkpoints, load_weights, sampler_of
from fedgen.evaluation.runs.rebuild import rebuild


def kept_checkpoints(folder: Path) -> dict[int, Path]:
    """A run's checkpoints by round, the last one last.

    Raises:
        FileNotFoundError: if it has none.
    """
    kept = list_checkpoints(folder)
    if not kept:
        raise FileNotFoundError(f"{folder} holds no checkpoint; remove it, and it is trained again")
    return kept


def generated_images(folder: Path, num_images: int = 1000, seed: int = 0) -> Tensor:
    """Images uint8 [num_images, C, H, W] of a run's last generator, drawn from a seed.

    Raises:
        FileNotFoundError: if the run has no checkpoint.
    """
    round, path = list(kept_checkpoints(folder).items())[-1]
    model, _ = rebuild(folder)
    load_weights(model, path)
    return draw_images(sampler_of(model), num_images, seed, round, description=f"sampling {folder.name}")


def client_images(folder: Path) -> list[Tensor]:
    """The training images of each of a run's clients, uint8 [n_i, C, H, W]."""
    _, data = rebuild(folder)
    return [data.examples.inputs[client.train] for client in data.clients]


def clients_of(folders: Iterable[Path]) -> FederatedDataModule:
    """The clients that all of some runs were trained with.

    Raises:
        ValueError: if two runs had other clients.
    """
    (first, *others) = folders
    _, data = rebuild(first)
    for other in others:
        require_same_clients(first, data, other, rebuild(other)[1])
    return data


def require_same_clients(first: Path, clients: FederatedDataModule, second: Path, others: FederatedDataModule) -> None:
    """Raises ValueError if two runs had other clients, or clients that trained on other images."""
    parts = [[(client.name, client.train) for client in data.clients] for data in (clients, others)]
    same = (
        clients.examples.name == others.examples.name
        and clients.image_shape == others.image_shape
        and len(parts[0]) == len(parts[1])
        and all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(*parts))
    )
    if not same:
        raise ValueError(f"{second} had other clients than {first}; remove it, or give other --runs")
