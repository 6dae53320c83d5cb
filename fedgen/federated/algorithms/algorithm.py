"""The hooks around a client's local steps, FedProx, and algorithms that give clients personal models or heads."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.federated.client_state.exchange import parameters_of
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of, kind_of
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

        `model` are the tensors that travel, `optimizers` those that clients step, and `shares` all clients' weights in
        the mean, adding up to 1; None for data that does not list clients.
        """

    def start_round(self) -> None:
        """Before the first turn of a round."""

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Before the client's first step; the model holds the server's weights."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Change gradients before an optimizer's step, unscaled and not yet clipped; `lr` includes schedules."""

    def start_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite all tensors that a turn may change by the client's personal model, before it trains."""

    def end_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep what the personal model has trained and changed, by name and live; a `start_turn` follows."""

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
    return {id(tensor): name for name, tensor in model.items() if isinstance(tensor, nn.Parameter)}


def about_to_step(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the named parameters with a gradient, which an optimizer is about to step."""
    return {names[id(p)]: p for p in parameters_of(optimizer) if p.grad is not None and id(p) in names}


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def check_form(tensors: Mapping[str, Tensor], model: Mapping[str, Tensor], names: Iterable[str], what: str) -> None:
    """Refuse tensors of a checkpoint whose shape or kind of numbers is not the model's."""
    for name in names:
        saved, own = tensors.get(name), model.get(name)
        if saved is None or own is None or saved.shape != own.shape or kind_of(saved) != kind_of(own):
            raise MisconfigurationException(
                f"the checkpoint holds {what} whose {name} is not as in the model; resume with the same model"
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


class Ditto(ClientAlgorithm):
    """A personal model of each client beside the server's, pulled towards it.

    Algorithm 1 of Li et al. 2021, "Fair and Robust Federated Learning Through Personalization" (arXiv 2012.04221).
    Client k minimises F_k(v) + lam / 2 |v - w^t|^2 over its own v_k, from where v_k was after its last turn (the
    server's weights in its first), with the same number of iterations, batches and draws as the turn has:

        v_k <- v_k - lr (grad F_k(v_k) + lam (v_k - w^t))

    Its turn follows, so that the server's model is to the bit what it is without Ditto. v_k is the whole model: what
    travels, what the turn changes of it, such as moments of BatchNorm, and personal tensors of its own; the pull is on
    parameters that travel, before clipping and the scaling of Adam. v_k's optimizers begin every turn empty, whatever
    `optimizer_state` says; what its iterations log, and what they do to state outside tensors, is dropped. They come
    between `on_turn_start` and `on_turn_end(False)`.

    A turn takes twice the time, and nothing more is sent. Memory and checkpoints hold a model for each client that has
    trained; in a deployment they stay with the clients. A client left out of a round, and all clients of a round that
    is dropped, keep the v_k that they had.

    Args:
        lam: strength of the pull, 0 (local training) or above; the paper tries 0.01 to 2. Under SGD lr lam must stay
            well below 2.
        scored: models that evaluations score clients with: their own ("personal", in one process) or the "server".

    Attributes:
        clients: the own models of clients that have trained, of whole rounds.

    Raises:
        ValueError: for values out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Ditto
        >>> rule = Ditto(lam=0.1)
        >>> rule.end_own(0, {"weight": torch.ones(1)})  # after the iterations of client 0's own model
        >>> rule.end_round()
        >>> rule.clients
        {0: {'weight': tensor([1.])}}
    """

    keeps_clients = True

    def __init__(self, lam: float = 0.1, scored: Literal["personal", "server"] = "personal") -> None:
        if not 0 <= lam < math.inf:
            raise ValueError(f"lam={lam}: the strength of the pull is finite and not negative; 0 is local training")
        if scored not in ("personal", "server"):
            raise ValueError(f"scored={scored!r}: choose 'personal' or 'server'")
        self.lam, self.scored = lam, scored
        self._is_own = False  # True while v_k trains
        self._names: dict[int, str] = {}
        self._server: Mapping[str, Tensor] = {}
        self.reset()

    def reset(self) -> None:
        self.clients: dict[int, dict[str, Tensor]] = {}  # their own models
        self._pending: dict[int, dict[str, Tensor]] = {}
        self._model: Mapping[str, Tensor] = {}

    def start_fit(
        self, model: Mapping[str, Tensor], optimizers: Sequence[Optimizer], shares: Sequence[float] | None
    ) -> None:
        self._model = model
        self.trains_own = bool(model)  # where nothing travels a client's model is its own
        if model:
            count = "each client" if shares is None else f"each of {len(shares)} clients"
            rank_zero_info(f"Ditto holds a model of {in_bytes(bytes_of(model.values()))} and more for {count}")

    def start_round(self) -> None:
        self._pending = {}

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._is_own, self._names, self._server = False, parameter_names(model), server

    @torch.no_grad()
    def start_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        self._is_own = True
        for name, value in self.clients.get(client, {}).items():
            if name in tensors:
                tensors[name].copy_(value)

    def before_step(self, optimizer: Optimizer) -> None:
        if self._is_own:
            pull_to_server(optimizer, self._names, self._server, self.lam)

    def end_own(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        self._is_own = False
        self._pending[client] = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def leave_out(self, client: int) -> None:
        self._pending.pop(client, None)

    def end_round(self) -> None:
        self.clients |= self._pending
        self._pending = {}

    @property
    def own_models(self) -> Mapping[int, Mapping[str, Tensor]]:
        return self.clients if self.scored == "personal" else {}

    @property
    def scores_own(self) -> bool:
        return self.trains_own and self.scored == "personal"

    def server_state(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"clients": self.clients, "scores_own": self.scores_own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"clients", "scores_own"} <= state.keys():
            raise MisconfigurationException(
                "the checkpoint holds no models of Ditto's clients; resume with the same `client_algorithm`"
            )
        for tensors in state["clients"].values():
            check_form(tensors, self._model, self._model, "a client's own model")
        device = next((tensor.device for tensor in self._model.values()), torch.device("cpu"))
        self.clients = {
            int(client): {name: value.to(device, copy=True) for name, value in own.items()}
            for client, own in state["clients"].items()
        }


class FedRep(ClientAlgorithm):
    """The head first, then the body: a turn trains what the client keeps, and after that what travels.

    Algorithm 1 of Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning" (arXiv
    2102.07078). `FedAvgStrategy(personal=["head.*"])` names the head by patterns; its other parameters, the body,
    travel. That alone is FedPer (Arivazhagan et al. 2019), which trains both in each step. Here an optimizer's first
    `head_steps` steps of a turn are the head's, and its others the body's, to the bit as if the rest had no
    `requires_grad`. The head goes on from where its last turn left it. Where nothing travels, it does nothing.

    What is frozen loses its gradient before the step, so that it neither moves nor decays, clipping sees the rest
    alone, and moments of optimizers skip the step. Layers such as BatchNorm still take their moments from each batch.
    Nothing is kept and nothing more is sent. Of several optimizers each counts its own steps.

    Args:
        head_steps: of each optimizer, at least 1 and fewer than a turn has.

    Raises:
        ValueError: for fewer than one step.
        MisconfigurationException: when fitting starts, if nothing that trains is personal; after a turn in which the
            body took no step.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedRep
        >>> rule, (body, head) = FedRep(head_steps=1), (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        >>> optimizer = torch.optim.SGD([body, head], 1.0)
        >>> rule.start_turn(0, {"body": body}, {"body": torch.zeros(1)})
        >>> for step in range(2):
        ...     body.grad, head.grad = torch.ones(1), torch.ones(1)
        ...     rule.before_step(optimizer)
        ...     print(body.grad, head.grad)
        None tensor([1.])
        tensor([1.]) None
    """

    def __init__(self, head_steps: int) -> None:
        if head_steps < 1:
            raise ValueError(f"head_steps={head_steps}: the head takes one step or more; FedPer, without, has no rule")
        self.head_steps = head_steps
        self._body: dict[int, str] = {}
        self._steps: dict[int, int] = {}  # of the turn, by optimizer

    def start_fit(
        self, model: Mapping[str, Tensor], optimizers: Sequence[Optimizer], shares: Sequence[float] | None
    ) -> None:
        body = parameter_names(model)
        trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
        if body and not trained - body.keys():
            raise MisconfigurationException(
                "FedRep trains a head that clients keep: name it by FedAvgStrategy(personal=['head.*'])"
            )

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._body, self._steps = parameter_names(model), {}

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer) -> None:
        if not self._body:
            return
        done = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        trains_head = done <= self.head_steps
        for parameter in parameters_of(optimizer):
            if (id(parameter) in self._body) == trains_head:
                parameter.grad = None

    def end_turn(self, client: int, model: Mapping[str, Tensor], iterations: int) -> None:
        if self._steps and (most := max(self._steps.values())) <= self.head_steps:
            raise MisconfigurationException(
                f"FedRep(head_steps={self.head_steps}): a turn of {iterations} iterations had {most} steps, none for"
                " the body: give head_steps a smaller number, or communication_interval a larger one"
            )
