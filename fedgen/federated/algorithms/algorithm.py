"""The hooks around a client's local steps, and FedProx."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.io.tensor_files import kind_of
from fedgen.ranks import Ranks


class ClientAlgorithm:
    """Hooks around a client's local steps; the base class is plain local training.

    Mappings go from the names of tensors that travel (parameters and floating buffers) to live tensors; `server` must
    not be changed. A round that is cut short has a start and no end, and does not count.

    Attributes:
        keeps_clients: True if it keeps state of each client, which then trains in the same process in every round.
        trains_own: True if each client also trains a personal model, by as many iterations before its turn.

    Examples:
        >>> from fedgen.federated import ClientAlgorithm
        >>> class CountTurns(ClientAlgorithm):
        ...     turns = 0
        ...     def end_turn(self, client, model, iterations):
        ...         self.turns += 1
        >>> rule = CountTurns()
        >>> rule.end_turn(0, {}, iterations=5)
        >>> rule.turns
        1
    """

    keeps_clients = False
    trains_own = False

    @property
    def scores_own(self) -> bool:
        """True if evaluations score clients with their personal models."""
        return False

    @property
    def own_models(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Personal models that evaluations score, by client and tensor name: of clients that have trained here."""
        return {}

    def reset(self) -> None:
        """Forget all clients, before another model is fitted."""

    def start_fit(
        self, model: Mapping[str, Tensor], optimizers: Sequence[Optimizer], shares: Sequence[float] | None
    ) -> None:
        """Prepare when fitting starts, before a checkpoint is read.

        Args:
            model: the tensors that travel.
            optimizers: those that clients step.
            shares: the clients' weights in the mean over all of them, adding up to 1; None for data without clients.
        """

    def start_round(self) -> None:
        """Before the first turn of a round."""

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Before the client's first step; the model holds the server's weights."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Change gradients before an optimizer's step, unscaled and not yet clipped; `lr` includes schedules."""

    def start_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors, live by name, by the client's personal model, before it trains, where `trains_own`.

        They are all that a turn may change, at the server's values, personal ones at the client's.
        """

    def end_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the personal model that has trained, live tensors by name; a `start_turn` follows.

        They are what travels, personal tensors, counters, and all else that the iterations changed.
        """

    def leave_out(self, client: int) -> None:
        """After a turn that failed, and does not count."""

    def end_turn(self, client: int, model: Mapping[str, Tensor], iterations: int) -> None:
        """After the client's last step, before its weights are aggregated; not called for a client left out."""

    def merge(self, ranks: Ranks, device: torch.device) -> None:
        """Combine the round's results of all ranks, exchanged through a device, before `end_round`."""

    def end_round(self) -> None:
        """After the server's update."""

    def num_bytes(self, model: Mapping[str, Tensor]) -> int:
        """Return the bytes that server and client send each other in a round beside the model's tensors, each way."""
        return 0

    def server_state(self) -> dict[str, Any]:
        """Return the part of `state_dict` that every client may know; a remote client begins its turn with it."""
        return self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold (tensors and plain types)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; raises MisconfigurationException if it is another algorithm's."""
        if state:
            raise MisconfigurationException(
                f"the checkpoint holds what another client algorithm keeps of its clients ({', '.join(state)}), and"
                f" {type(self).__name__} keeps nothing; resume with the same `client_algorithm`"
            )


def parameter_names(model: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the names of a model's parameters by their identity."""
    return {id(tensor): name for name, tensor in model.items() if isinstance(tensor, nn.Parameter)}


def about_to_step(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the named parameters with a gradient, which an optimizer is about to step."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {names[id(p)]: p for p in parameters if p.grad is not None and id(p) in names}


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def require_form(tensors: Mapping[str, Tensor], model: Mapping[str, Tensor], names: Iterable[str], what: str) -> None:
    """Refuse tensors of a checkpoint whose shape or kind of numbers is not the model's."""
    for name in names:
        saved, own = tensors.get(name), model.get(name)
        if saved is None or own is None or saved.shape != own.shape or kind_of(saved) != kind_of(own):
            raise MisconfigurationException(
                f"the checkpoint holds {what} whose {name} has not the model's form; resume with the same model"
            )


@torch.no_grad()
def pull_to_server(
    optimizer: Optimizer, names: Mapping[int, str], server: Mapping[str, Tensor], strength: float
) -> None:
    """Add the gradient of strength / 2 |w - w^t|^2 to those of the parameters that an optimizer is about to step."""
    if strength and (stepped := about_to_step(optimizer, names)):
        # the difference first: g + mu w - mu w^t would lose the digits in which w and w^t differ
        distances = torch._foreach_sub(list(stepped.values()), [server[name] for name in stepped])
        torch._foreach_add_(gradients_of(stepped.values()), distances, alpha=strength)


class FedProx(ClientAlgorithm):
    """A pull back to the server's weights w^t: clients minimise F_k(w) + mu / 2 |w - w^t|^2.

    Algorithm 2 of Li et al. 2020, "Federated Optimization in Heterogeneous Networks" (arXiv 1812.06127). Before each
    local step mu (w - w^t) is added to the gradients of the parameters that travel and that the optimizer is about to
    step, so before clipping and the scaling of Adam; logged losses are without it. Nothing is kept and nothing more is
    sent. Under SGD, lr mu must stay well below 2, or steps overshoot w^t.

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
