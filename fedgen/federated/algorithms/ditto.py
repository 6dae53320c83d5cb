"""Ditto (Li et al. 2021, "Fair and Robust Federated Learning Through Personalization", arXiv 2012.04221)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.algorithms.algorithm import ClientAlgorithm, parameter_names, pull_to_server
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of, kind_of

Model = dict[str, Tensor]  # a client's own, by name


class Ditto(ClientAlgorithm):
    """A model of each client's own beside the server's, pulled towards it (Algorithm 1 of the paper).

    Client k minimises F_k(v) + lam / 2 |v - w^t|^2 over its own v_k, from where v_k was after its last turn (the
    server's weights in its first), with the same number of iterations, batches and draws as the turn has:

        v_k <- v_k - lr (grad F_k(v_k) + lam (v_k - w^t))

    Then it takes its turn as without Ditto: to the bit, the server's model is what it is without. A small lam leaves
    clients alone, a large one gives them the server's model.

    v_k is the whole model: what travels, what the turn changes of it, such as moments of BatchNorm, and personal
    tensors, of which v_k has its own. Of these the parameters that travel are pulled. As with `FedProx` the pull is
    part of the gradient before clipping and before Adam scales it. v_k's optimizers begin every turn empty, whatever
    `optimizer_state` says; what its iterations log, and what they do to state outside tensors, is dropped. Its
    iterations come first, with `on_turn_start` and `on_turn_end(False)` of their own.

    A turn takes twice the time, and nothing more is sent. Memory: a model for each client that has trained. Checkpoints
    hold them; in a deployment they stay with the clients. A client left out of a round, and all clients of a round that
    is dropped, keep the v_k that they had.

    Args:
        lam: strength of the pull, 0 (local training) or above; the paper tries 0.01 to 2. Under SGD lr lam must stay
            well below 2.
        scored: whether evaluations, in training and of checkpoints, score clients that train with their own models
            ("personal") or with the server's ("server"). Own models are scored in one process.

    Attributes:
        clients: the own models of clients that have trained, of whole rounds.

    Raises:
        ValueError: for values out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Ditto
        >>> rule = Ditto(lam=0.1)
        >>> model = dict(torch.nn.Linear(1, 1, bias=False).named_parameters())
        >>> optimizer = torch.optim.SGD(model.values(), 1.0)
        >>> rule.start_fit(model, [optimizer], shares=None)
        >>> rule.start_turn(0, model, {"weight": model["weight"].detach() - 2.0})  # the server's weight is 2 smaller
        >>> rule.start_own(0, model)
        >>> model["weight"].grad = torch.zeros(1, 1)
        >>> rule.before_step(optimizer)
        >>> model["weight"].grad  # lam times the distance to the server
        tensor([[0.2000]])
    """

    keeps_clients = True

    def __init__(self, lam: float = 0.1, scored: Literal["personal", "server"] = "personal") -> None:
        if not 0 <= lam < math.inf:
            raise ValueError(f"lam={lam}: the strength of the pull is finite and not negative; 0 is local training")
        if scored not in ("personal", "server"):
            raise ValueError(f"scored={scored!r}: choose 'personal' or 'server'")
        self.lam, self.scored = lam, scored
        self._is_own = False  # whether the iterations that run are v_k's
        self._names: dict[int, str] = {}
        self._server: Mapping[str, Tensor] = {}
        self.reset()

    def reset(self) -> None:
        self.clients: dict[int, Model] = {}
        self._pending: dict[int, Model] = {}
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
        """The clients' own models by name, those of whole rounds, and whether evaluations score them."""
        return {"clients": self.clients, "scores_own": self.scores_own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"clients", "scores_own"} <= state.keys():
            raise MisconfigurationException(
                "the checkpoint holds no models of Ditto's clients; resume with the same `client_algorithm`, or load"
                " its weights into the model and start anew"
            )
        for models in state["clients"].values():
            for name, own in self._model.items():
                value = models.get(name)
                if value is None or value.shape != own.shape or kind_of(value) != kind_of(own):
                    raise MisconfigurationException(
                        f"the checkpoint holds clients' own models without {name} of shape {list(own.shape)} and"
                        f" {own.dtype}, which the model has; resume with the same model"
                    )
        device = next((tensor.device for tensor in self._model.values()), torch.device("cpu"))
        self.clients = {
            int(client): {name: value.to(device, copy=True) for name, value in own.items()}
            for client, own in state["clients"].items()
        }
