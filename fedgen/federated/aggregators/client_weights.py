"""Weights of clients in means over clients."""

from typing import Any, Literal

from fedgen.models.optional_hooks import of_data

ClientWeights = Literal["examples", "uniform"]


def weight_of(num_examples: int, kind: ClientWeights) -> float:
    """A client's weight, not normalised: its number of training examples, or 1."""
    return float(num_examples) if kind == "examples" else 1.0


def shares_of(data: Any, kind: ClientWeights) -> list[float] | None:
    """The weights of all clients that train, adding up to 1; None for data that names no clients.

    Args:
        data: a data module; `FederatedDataModule` has `clients`, each with positions `train`.
        kind: what weighs.
    """
    clients = of_data(data).clients
    if clients is None:
        return None
    weights = [weight_of(len(client.train), kind) for client in clients]
    return [weight / sum(weights) for weight in weights]
