"""The memory of each client between rounds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from fedgen.federated.client_state.exchange import Exchange, copy_tensors
from fedgen.federated.left_out import KEPT_REMARKS, KEPT_TURNS, Entry, are_alike, fold
from fedgen.own_code import rank_zero_warn

Summary = tuple[dict[int, int], list[Entry]]  # iterations by client, clients left out


class Unsent(NamedTuple):
    """Tensors that a client keeps of updates that were compressed, by parameter."""

    errors: dict[str, Tensor]
    starts: dict[str, Tensor]


class ClientMemory:
    """Clients' iteration counts and personal tensors, and who was left out when."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self._module = module
        self.iterations: dict[int, int] = {}
        self.personal: dict[int, dict[str, Tensor]] = {}
        self.unsent: dict[int, Unsent] = {}
        self.left_out: list[Entry] = []
        self.remarks: list[Entry] = []
        self.start_round()

    def start_round(self) -> None:
        self.completed: list[int] = []
        self.took_part: list[int] = []
        if len(self.left_out) > KEPT_TURNS:
            self.left_out = fold(self.left_out)
        self._known = len(self.left_out)
        self._unlogged: list[Entry] = []

    def complete(self, client: int, iterations: int) -> None:
        """Notes a turn that was not left out, and how many iterations the client has taken in all."""
        self.iterations[client] = iterations
        self.completed.append(client)
        if self._unlogged:
            self._warn()

    def leave_out(self, entry: Entry) -> None:
        self.left_out.append(entry)
        self._unlogged.append(entry)
        if self.completed or len(self.lost) == 1 or not are_alike(self.lost):
            self._warn()

    @property
    def lost(self) -> list[Entry]:
        return self.left_out[self._known :]

    def _warn(self) -> None:
        while self._unlogged:
            entry = self._unlogged.pop(0)
            rank_zero_warn(f"client {entry['name']!r} is left out of round {entry['round']}: {entry['reason']}")

    def local_summary(self) -> Summary:
        """Return this rank's clients that trained in the round, and those left out."""
        return {client: self.iterations[client] for client in self.completed}, self.lost

    def merge_summaries(self, summaries: Sequence[Summary]) -> int:
        """Takes every rank's summary; returns how many clients of the round trained."""
        own = self.lost
        self.left_out[self._known :] = sorted((e for _, found in summaries for e in found), key=lambda e: e["client"])
        for counts, _ in summaries:
            self.iterations |= counts
        self.took_part = sorted(client for counts, _ in summaries for client in counts)
        self._unlogged += [entry for entry in self.lost if entry not in own]  # of other ranks, which do not warn
        if self.took_part or not are_alike(self.lost):
            self._warn()
        return len(self.took_part)

    def remark(self, entries: list[Entry]) -> None:
        self.remarks = [*self.remarks, *entries][-KEPT_REMARKS:]

    def of(self, module: nn.Module) -> "ClientMemory":
        """This memory if it is of the module's clients, else an empty one: another model, other clients."""
        return self if self._module is module else ClientMemory(module)

    def load_personal(self, client: int, exchange: Exchange) -> None:
        if slot := self.personal.get(client):
            copy_tensors([exchange.personal[name] for name in slot], slot.values())

    def match_personal(self, exchange: Exchange) -> None:
        """Gives all clients tensors that have become personal, at the server's values, and drops those no longer so."""
        for slot in self.personal.values():
            kept = {name: slot.get(name, exchange.server[name]).clone() for name in exchange.personal}
            slot.clear()
            slot.update(kept)

    def keep_personal(self, client: int, exchange: Exchange) -> None:
        if exchange.personal:
            empty = {name: torch.empty_like(tensor) for name, tensor in exchange.personal.items()}
            slot = self.personal.setdefault(client, empty)
            copy_tensors([slot[name] for name in exchange.personal], exchange.personal.values())

    def state_dict(self) -> dict[str, Any]:
        return {
            "iterations": dict(self.iterations),
            "personal": self.personal,
            "left_out": list(self.left_out),  # no entry ever changes
            "remarks": list(self.remarks),
        }

    def load_state_dict(self, state: Mapping[str, Any], exchange: Exchange) -> None:
        for slot in state["personal"].values():
            exchange.grow(sorted(exchange.becomes_personal & slot.keys()))  # the same order in every process
            if slot.keys() != exchange.personal.keys():
                name = sorted(slot.keys() ^ exchange.personal.keys())[0]
                raise MisconfigurationException(
                    f"the checkpoint was written with other personal tensors ({name} is personal in only one of the"
                    " two); resume with the same `personal` and the same losses"
                )
        self.iterations = {int(client): int(count) for client, count in state["iterations"].items()}
        self.personal = {
            int(client): {name: tensor.to(exchange.personal[name]) for name, tensor in slot.items()}
            for client, slot in state["personal"].items()
        }
        self.left_out = list(state["left_out"])
        self.remarks = list(state.get("remarks", []))  # older checkpoints have none
