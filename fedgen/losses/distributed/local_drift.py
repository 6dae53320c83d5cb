"""The drift of averaged local steps on the clients' own scores from steps on the mean of their scores."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgen.losses.embedded import EmbeddedLoss
from fedgen.scores.aggregate import resolve_weights


def local_drift(
    generator: nn.Module, objective: EmbeddedLoss, weights: Sequence[float], latents: Tensor, lr: float
) -> list[float]:
    """After 1, 2, ... steps of SGD: |mean of the clients' weights - exact weights| / |exact weights - first weights|.

    The first is zero but for rounding: the mean of the clients' gradients in one point is the gradient of the mean.

    Args:
        generator: latents to images in [-1, 1]; left as it is.
        objective: of losses with aggregate "own" and the clients' references, under the weights below.
        weights: of the clients in the mean, normalised here: n_i for `client_weights="examples"`.
        latents: [S, m, ...], those of each step, common to the clients.
        lr: learning rate.
    """
    shares = resolve_weights(list(weights), [1.0] * len(weights)).tolist()
    exact, locals_ = copy.deepcopy(generator), [copy.deepcopy(generator) for _ in shares]
    first, found = _flat(generator), []
    for batch in latents:
        for client, network in [(None, exact), *enumerate(locals_)]:
            _step(network, objective, client, batch, lr)
        objective.start_turn(None)
        mean = sum(share * _flat(network) for share, network in zip(shares, locals_))
        moved = _flat(exact)
        found.append(float((mean - moved).norm() / (moved - first).norm()))
    return found


def _step(network: nn.Module, objective: EmbeddedLoss, client: int | None, latents: Tensor, lr: float) -> None:
    """One step of SGD on a client's own score, or on the mean of all clients'."""
    objective.start_turn(client)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.zero_grad()
    for part in objective.backward_parts(network, latents, None):
        part.backward(inputs=parameters)
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=lr)


def _flat(network: nn.Module) -> Tensor:
    """All weights that train, float64 [n]."""
    return torch.cat([p.detach().double().flatten() for p in network.parameters() if p.requires_grad])
