"""SCAFFOLD, control variates of clients and server."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import SGD, Optimizer

from fedgen.federated.algorithms.algorithm import (
    ClientAlgorithm,
    about_to_step,
    check_form,
    gradients_of,
    parameter_names,
)
from fedgen.federated.client_state.exchange import all_finite
from fedgen.io.files import in_bytes
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks

Variates = dict[str, Tensor]  # by the parameter's name, in float32 at least


class Scaffold(ClientAlgorithm):
    """Control variates against the drift of clients whose data differ.

    Algorithm 1 of Karimireddy et al. 2020, "Stochastic Controlled Averaging for Federated Learning" (arXiv 1910.06378).
    Every client i has a variate c_i, its estimate of its own gradient, and the server one of the whole federation's, c
    = sum_i share_i c_i; all start at 0. Before each local step g becomes g - c_i + c. After a turn of K steps from the
    server's x to y_i the client's variate becomes c_i+, and after the round the server adds sum_i share_i (c_i+ - c_i)
    over the clients of the cohort. With `client_weights="uniform"` the shares are 1 / N and that is the paper's |S| / N
    mean_i (c_i+ - c_i); with "examples" they are n_i / n, as the averaged loss has it: only then are the corrections
    gone at its minimum.

    The paper's option II is c_i+ = c_i - c + (x - y_i) / (K lr). Under SGD y_i = x - lr sum_k (g_k - c_i + c), so this
    is the mean of the turn's gradients, which `variates="gradients"` takes under any optimizer. "displacement" is
    option II as printed, with the sum of the steps' rates for K lr; it saves memory of one model and an addition a
    step, and needs SGD without momentum: a step of Adam is not a gradient, and momentum counts gradients several times.

    Gradients are corrected before they are clipped and before Adam's moments and scaling; the paper's proofs are for
    SGD. Each parameter counts the steps of its own optimizer: a generator that steps every fifth iteration has the mean
    over those steps, and one that did not step keeps its variate. Only parameters that travel have variates, not
    personal or frozen ones, and not buffers. A client that is left out of a round keeps its variate, and so do all
    clients of a round that is cut short.

    Server and client send the variates along with the weights, which doubles what parameters cost. Memory: the trained
    parameters once for the server and for each client that has trained, twice more during a turn, and once for each
    client of the cohort until the round's end. Checkpoints hold server's and clients' variates.

    Args:
        variates: "gradients" or "displacement".

    Raises:
        ValueError: for another kind of variate.
        MisconfigurationException: when fitting starts, for "displacement" with another optimizer, or without a data
            module that names the clients.

    Examples:
        >>> import torch
        >>> from fedgen.federated import Scaffold
        >>> rule = Scaffold()
        >>> model = dict(torch.nn.Linear(1, 1, bias=False).named_parameters())
        >>> optimizer = torch.optim.SGD(model.values(), 0.1)
        >>> rule.start_fit(model, [optimizer], shares=[0.5, 0.5])
        >>> rule.start_round()
        >>> rule.start_turn(0, model, {"weight": model["weight"].detach().clone()})
        >>> model["weight"].grad = torch.tensor([[4.0]])
        >>> rule.before_step(optimizer)
        >>> rule.end_turn(0, model, iterations=1)
        >>> rule.end_round()
        >>> rule.clients[0]["weight"], rule.server["weight"]  # the client's gradient, and its share of it
        (tensor([[4.]]), tensor([[2.]]))
    """

    keeps_clients = True

    def __init__(self, variates: Literal["gradients", "displacement"] = "gradients") -> None:
        if variates not in ("gradients", "displacement"):
            raise ValueError(f"variates={variates!r}: choose 'gradients' or 'displacement'")
        self.variates = variates
        self.reset()

    def reset(self) -> None:
        self.server: Variates = {}
        self.clients: dict[int, Variates] = {}
        self._pending: dict[int, Variates] = {}
        self._changes: Variates | None = None  # of the server's in this round, where several ranks have clients
        self._model: Mapping[str, Tensor] = {}

    def start_fit(
        self, model: Mapping[str, Tensor], optimizers: Sequence[Optimizer], shares: Sequence[float] | None
    ) -> None:
        if shares is None:
            raise MisconfigurationException(
                "Scaffold weighs its variates over all clients, which the data do not list: fit a FederatedDataModule"
            )
        for optimizer in optimizers if self.variates == "displacement" else ():
            if type(optimizer) is not SGD or any(g["momentum"] or g["maximize"] for g in optimizer.param_groups):
                raise MisconfigurationException(
                    "Scaffold(variates='displacement') needs torch.optim.SGD without momentum or maximize, and an"
                    f" optimizer is {optimizer}: use variates='gradients'"
                )
        self._model, self._shares = model, list(shares)
        if size := self.num_bytes(model):
            rank_zero_info(
                f"SCAFFOLD holds {in_bytes(size)} of variates for the server and each of {len(shares)} clients"
            )

    def start_round(self) -> None:
        self._pending, self._changes = {}, None

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._names, self._anchor = parameter_names(model), server
        self._sums: Variates = {}
        self._amounts = defaultdict[str, float](float)  # steps, or for displacements the sum of their learning rates
        own = self.clients.get(client, {})
        # a name that the client has is one that the server has: both are updated together
        present = {name: variate for name, variate in self.server.items() if name in model}
        self._correction = {name: c - own[name] if name in own else c for name, c in present.items()}

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer) -> None:
        stepped = about_to_step(optimizer, self._names)
        if self.variates == "gradients":
            self._add_gradients(stepped)
        else:
            rates = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
            for name, parameter in stepped.items():
                self._amounts[name] += rates[id(parameter)]
        if corrected := [name for name in stepped if name in self._correction]:
            gradients = gradients_of(stepped[name] for name in corrected)
            corrections = [self._correction[name].to(g.dtype) for name, g in zip(corrected, gradients)]
            torch._foreach_add_(gradients, corrections)

    def _add_gradients(self, stepped: Mapping[str, Tensor]) -> None:
        gradients = [g.to(_wide(g)) for g in gradients_of(stepped.values())]
        if known := [(self._sums[name], g) for name, g in zip(stepped, gradients) if name in self._sums]:
            torch._foreach_add_([total for total, _ in known], [g for _, g in known])
        self._sums |= {name: g.clone() for name, g in zip(stepped, gradients) if name not in self._sums}
        for name in stepped:
            self._amounts[name] += 1

    @torch.no_grad()
    def end_turn(self, client: int, model: Mapping[str, Tensor], iterations: int) -> None:
        found = {name: self._measure(name, model[name]) for name, amount in self._amounts.items() if amount > 0}
        if all_finite(list(found.values())):
            self._pending[client] = {**self.clients.get(client, {}), **found}
        else:
            # the weights are finite, so the round may have them; NaN in a variate would stay with the client for good
            rank_zero_warn(f"client {client}'s gradients were not all finite; it keeps the control variate that it had")
        self._sums, self._correction = {}, {}

    def _measure(self, name: str, parameter: Tensor) -> Tensor:
        """Return c_i+ of one parameter."""
        if self.variates == "gradients":
            return self._sums[name] / self._amounts[name]
        moved = (self._anchor[name].to(_wide(parameter)) - parameter) / self._amounts[name]
        return moved - self._correction[name] if name in self._correction else moved

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size == 1:
            return
        changes: Variates = {}
        self._add_changes(changes)
        summed = ranks.add_named(changes, device)
        for name, change in summed.items():
            known = self._model.get(name)
            if known is None or (change.shape, change.dtype) != (known.shape, _wide(known)):
                raise ValueError(
                    f"a control variate of {name!r} is {change.dtype} {list(change.shape)}, not as the model's"
                )
        self._changes = {name: change.to(self._model[name].device) for name, change in summed.items()}

    @torch.no_grad()
    def end_round(self) -> None:
        if self._changes is None:
            self._add_changes(self.server)
        else:
            for name, change in self._changes.items():
                self.server.setdefault(name, torch.zeros_like(change)).add_(change)
        self.clients |= self._pending
        self._pending, self._changes = {}, None

    def _add_changes(self, totals: Variates) -> None:
        """Add share_i (c_i+ - c_i) of this rank's clients of the round."""
        for client, variates in self._pending.items():
            own = self.clients.get(client, {})
            for name, variate in variates.items():
                change = variate - own[name] if name in own else variate
                totals.setdefault(name, torch.zeros_like(variate)).add_(change, alpha=self._shares[client])

    def num_bytes(self, model: Mapping[str, Tensor]) -> int:
        return sum(model[n].numel() * _wide(model[n]).itemsize for n in parameter_names(model).values())

    def server_state(self) -> dict[str, Any]:
        return {"server": self.server, "clients": {}}

    def state_dict(self) -> dict[str, Any]:
        return {"server": self.server, "clients": self.clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"server", "clients"} <= state.keys():
            raise MisconfigurationException(
                "the checkpoint holds no control variates of SCAFFOLD; resume with the same `client_algorithm`"
            )
        for variates in (state["server"], *state["clients"].values()):
            check_form(variates, self._model, variates, "a control variate")
        self.server = self._placed(state["server"])
        self.clients = {int(client): self._placed(variates) for client, variates in state["clients"].items()}

    def _placed(self, variates: Mapping[str, Tensor]) -> Variates:
        return {n: v.to(self._model[n].device, _wide(self._model[n]), copy=True) for n, v in variates.items()}


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the type of a parameter's variate: half precision would round small gradients away."""
    return torch.promote_types(tensor.dtype, torch.float32)
