"""Integer and boolean tensors over a round: counters and flags, of which the server takes the largest."""

import functools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedgen.federated.client_state.exchange import copy_tensors
from fedgen.own_code import rank_zero_warn

# values by name, names of counters that decreased, and the number of clients
News = tuple[dict[str, list[Tensor]], list[str], int]


class Counters:
    """The largest values over a round's clients of tensors such as `num_batches_tracked` or an `initialized` flag.

    Weighted means of counts are no counts, and a flag that one client has set is set. A tensor of which some client's
    turn makes a number smaller is no counter: the server's value stays, and a warning names it once.

    Args:
        declared: names for which the rule "max" was declared: these may decrease.
        advancing: names of counters that grow by the communication interval in each round, whatever clients count.
        robust: whether to take the lower median over clients in place of the largest, which one client could set.
    """

    def __init__(self, declared: Collection[str] = (), advancing: Collection[str] = (), robust: bool = False) -> None:
        self._declared, self._advancing, self._robust = declared, advancing, robust
        self._warned: set[str] = set()
        self.seen: set[str] = set()  # names that some turn has raised
        self.start_round()

    def start_round(self) -> None:
        """Before the first turn of a round."""
        self._values: dict[str, list[Tensor]] = {}  # one where the largest is wanted, else every client's
        self._clients = 0
        self._decreased: list[str] = []

    @torch.no_grad()
    def add(self, tensors: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Takes a client's values after its turn."""
        self._clients += 1
        for name, tensor in tensors.items():
            if name in self._advancing or torch.equal(tensor, server[name]):
                continue
            if name not in self._declared and bool((tensor < server[name]).any()):
                self._decreased += [name] if name not in self._decreased else []
            else:
                self.seen.add(name)
                self._values.setdefault(name, []).append(tensor.detach().clone())
                self._shorten(name)

    def _shorten(self, name: str) -> None:
        values = self._values[name]
        if not self._robust and len(values) > 1:
            self._values[name] = [functools.reduce(torch.maximum, values)]

    def news(self) -> News:
        """Return what other ranks do not know of the round."""
        values = {name: [tensor.cpu() for tensor in tensors] for name, tensors in self._values.items()}
        return values, self._decreased, self._clients

    @torch.no_grad()
    def hear(self, told: Sequence[News]) -> None:
        """Takes every rank's `news`."""
        self._values = {}
        for found, _, _ in told:
            for name, values in found.items():
                self._values.setdefault(name, []).extend(values)
                self._shorten(name)
        self._decreased = sorted({name for _, names, _ in told for name in names})
        self._clients = sum(clients for *_, clients in told)

    def _combined(self, name: str, server: Tensor) -> Tensor:
        values = [value.to(server) for value in self._values[name]]
        if self._robust:
            values += [server] * (self._clients - len(values))  # clients that left it alone
            return torch.stack(values).sort(dim=0).values[(len(values) - 1) // 2]
        return torch.maximum(values[0], server)

    @property
    def changed(self) -> list[str]:
        """The names that some client's turn has raised in the round."""
        return [name for name in self._values if name not in self._decreased]

    @torch.no_grad()
    def end_round(self, server: Mapping[str, Tensor], interval: int) -> None:
        """Writes the round's values into the server's tensors."""
        self.seen = (self.seen | {*self.changed}) - {*self._decreased}
        copy_tensors([server[name] for name in self.changed], [self._combined(n, server[n]) for n in self.changed])
        for name in self._advancing:
            server[name].add_(interval)
        for name in self._decreased:
            if name not in self._warned:
                self._warned.add(name)
                rank_zero_warn(
                    f"{name} is an integer tensor that decreased in a client's turn, so it is no counter: the server's"
                    " value stays. Declare what becomes of it: FedAvgStrategy(rules={"
                    f"{name!r}: 'personal'}}) for a queue's pointer, with its queue; 'max' or 'server' otherwise"
                )
