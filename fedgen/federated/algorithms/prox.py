"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", arXiv 1812.06127)."""

import math
from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.algorithms.algorithm import ClientAlgorithm, parameter_names, pull_to_server


class FedProx(ClientAlgorithm):
    """A pull back to the server's weights w^t: clients minimise F_k(w) + mu / 2 |w - w^t|^2 (Algorithm 2).

    Before each local step mu (w - w^t) is added to the gradients of the parameters that travel and that the optimizer
    is about to step; personal and frozen ones stay as they are. Nothing is kept and nothing more is sent. The term is
    part of the gradient for whatever comes after: clipping, and the scaling of Adam. What a module logs as its loss is
    without it. Under SGD, lr mu must stay well below 2, or steps overshoot w^t.

    Args:
        mu: strength of the pull, 0 (FedAvg, to the bit) or above; the paper tries 0.001 to 1.

    Raises:
        ValueError: for a negative or infinite strength.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedProx
        >>> rule = FedProx(mu=0.1)
        >>> model = dict(torch.nn.Linear(1, 1, bias=False).named_parameters())
        >>> optimizer = torch.optim.SGD(model.values(), 1.0)
        >>> rule.start_turn(0, model, {"weight": model["weight"].detach() - 2.0})  # the server's weight is 2 smaller
        >>> model["weight"].grad = torch.zeros(1, 1)
        >>> rule.before_step(optimizer)
        >>> model["weight"].grad  # mu times the distance to the server
        tensor([[0.2000]])
    """

    def __init__(self, mu: float) -> None:
        if not 0 <= mu < math.inf:
            raise ValueError(f"mu={mu}: the strength of the pull is finite and not negative; 0 is plain FedAvg")
        self.mu = mu
        self._names: dict[int, str] = {}
        self._server: Mapping[str, Tensor] = {}

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._names, self._server = parameter_names(model), server

    def before_step(self, optimizer: Optimizer) -> None:
        pull_to_server(optimizer, self._names, self._server, self.mu)
