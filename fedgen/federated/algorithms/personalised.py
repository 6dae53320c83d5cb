"""Algorithms that give each client a personal model or head."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.algorithms.algorithm import ClientAlgorithm, parameter_names, pull_to_server, require_form
from fedgen.federated.client_state.exchange import parameters_of
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of


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
                "the checkpoint holds no models of Ditto's clients; resume with the same `client_algorithm`, or load"
                " its weights into the model and start anew"
            )
        for tensors in state["clients"].values():
            require_form(tensors, self._model, self._model, "a client's own model")
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
                "FedRep trains a head that clients keep and a body that travels, and of what trains nothing stays with"
                " the clients: name the head by FedAvgStrategy(personal=['head.*'])"
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
                f"FedRep(head_steps={self.head_steps}): a turn of {iterations} iterations had {most} steps, so that the"
                " body took none and nothing would be learnt together: give head_steps a smaller number, or"
                " communication_interval a larger one"
            )
