"""What the server's module takes from the clients' copies after a round, kind of state by kind of state.

- Floating tensors of the `state_dict`: the clients' weighted mean, whoever changed them (trained weights, batch
  statistics, moving averages, teachers). Buffers that are None when the round begins: the mean over those that fill it.
- Integer and boolean tensors of the `state_dict`: the largest over clients; the server's, if one of them fell.
- State beside the `state_dict` (non-persistent buffers, attributes of modules, of objects that they hold, and entries
  of dictionaries): the server's, but for Python integers and flags, which take the largest over clients if all of them
  only grew, and Python floats, which take the mean. Those of an object whose tensors or lists are reset are reset with
  them, if nothing is declared of the object: the length of a list that is emptied is no count.
- A declared rule has the last word: "mean", "max", "server", or "personal", for what every client keeps to itself.

Attributes have dotted names as tensors have: `ema.num_updates` is the number in the object that the module has as
`ema`. A rule for an attribute is one for all that is in it.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Rules = Mapping[str, str]
# what every module has of itself, which is nobody's state
OWN = frozenset(vars(nn.Module())) | frozenset(vars(L.LightningModule()))
_NO_STATE = (nn.Module, Tensor, Optimizer, LRScheduler, L.Trainer, type, torch.Generator)
_MISSING = object()


def rules_of(module: nn.Module, given: Rules) -> Rules:
    """The module's own rules, and before them those that are given."""
    return {**given, **{k: v for k, v in getattr(module, "federated_rules", {}).items() if k not in given}}


def rule_for(name: str, rules: Rules) -> str | None:
    """The first declared rule whose pattern fits a name."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), None)


@dataclass
class Holder:
    """Something that holds attributes: a module, an object that a module holds, or a dictionary with its entries."""

    path: str  # with a dot at its end, or empty
    target: Any

    @property
    def is_module(self) -> bool:
        return isinstance(self.target, nn.Module)

    @property
    def keys(self) -> list[Any]:
        if isinstance(self.target, dict):
            return list(self.target)
        own = OWN if self.is_module else frozenset()
        buffers = sorted(self.target._non_persistent_buffers_set) if self.is_module else []
        return [key for key in vars(self.target) if key not in own] + buffers

    def get(self, key: Any) -> Any:
        return self.target.get(key, _MISSING) if isinstance(self.target, dict) else getattr(self.target, key, _MISSING)

    def put(self, key: Any, value: Any) -> None:
        if isinstance(self.target, dict):
            self.target[key] = value
        else:
            setattr(self.target, key, value)


def holders(module: nn.Module) -> dict[str, Holder]:
    """All that holds attributes in a module, by dotted path."""
    found: dict[str, Holder] = {}
    for name, part in module.named_modules():
        for holder in _held(Holder(f"{name}." if name else "", part), set()):
            found.setdefault(holder.path, holder)
    return found


def _held(holder: Holder, seen: set[int]) -> Iterator[Holder]:
    if id(holder.target) in seen:
        return
    seen.add(id(holder.target))
    yield holder
    for key in holder.keys:
        value = holder.get(key)
        is_object = hasattr(value, "__dict__") and not isinstance(value, _NO_STATE) and not callable(value)
        if is_object or isinstance(value, dict):
            yield from _held(Holder(f"{holder.path}{key}.", value), seen)


def attributes(module: nn.Module) -> dict[str, Any]:
    """The values of all attributes beside the `state_dict`, by dotted name."""
    return {f"{h.path}{key}": h.get(key) for h in holders(module).values() for key in h.keys}


@dataclass
class ClientState:
    """What a client keeps to itself between rounds."""

    tensors: dict[str, Tensor]
    attributes: dict[str, Any]

    @classmethod
    def take_from(cls, module: nn.Module, rules: Rules) -> "ClientState":
        tensors = {n: t.detach().clone() for n, t in module.state_dict().items() if rule_for(n, rules) == "personal"}
        own = {n: copy.deepcopy(v) for n, v in attributes(module).items() if rule_for(n, rules) == "personal"}
        return cls(tensors, own)

    def put_into(self, module: nn.Module) -> None:
        state = module.state_dict()
        for name, tensor in self.tensors.items():
            state[name].copy_(tensor)
        for holder in holders(module).values():
            for key in holder.keys:
                if (name := f"{holder.path}{key}") in self.attributes:
                    holder.put(key, copy.deepcopy(self.attributes[name]))


def transplant(source: nn.Module, target: nn.Module) -> None:
    """Gives a module all that another one of its kind has become: tensors, and attributes that hold numbers or tensors.

    Args:
        source: stays as it is.
        target: made as the other was.
    """
    state, there = source.state_dict(), target.state_dict()
    for name in state.keys() - there.keys():  # a buffer that is None there
        put_buffer(target, name, torch.empty_like(state[name]))
    target.load_state_dict(state)
    places = holders(target)
    for path, holder in holders(source).items():
        for key in holder.keys:
            value = holder.get(key)
            if not isinstance(value, dict) and not same(value, places[path].get(key)):
                places[path].put(key, copy.deepcopy(value))


def put_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    """Puts a tensor into a registered buffer by its dotted name."""
    path, _, key = name.rpartition(".")
    setattr(module.get_submodule(path), key, value)


@torch.no_grad()
def merge(server: nn.Module, clients: Sequence[nn.Module], shares: Sequence[float], rules: Rules) -> None:
    """Gives the server's module what the rules take from the clients' copies of it.

    Args:
        server: changed in place.
        clients: copies of it after their turns.
        shares: the clients' weights, adding up to 1.
        rules: declared ones, by pattern.
    """
    states = [client.state_dict() for client in clients]
    for name in {name for state in states for name in state} - server.state_dict().keys():  # None when the round began
        filled = [(share, state[name]) for share, state in zip(shares, states, strict=True) if name in state]
        weight = sum(share for share, _ in filled)
        value, rule = [value for _, value in filled], rule_for(name, rules)
        rule = rule or ("mean" if value[0].is_floating_point() else "max")
        put_buffer(server, name, _merged_tensor(value[0], value, [share / weight for share, _ in filled], rule).clone())
    for name, tensor in server.state_dict().items():
        found = [state[name] for state in states]
        tensor.copy_(_merged_tensor(tensor, found, shares, rule_for(name, rules)))
    trees = [holders(client) for client in clients]
    for path, holder in holders(server).items():
        others = [tree[path] for tree in trees if path in tree]
        if len(others) == len(clients):
            _merge_holder(holder, others, shares, rules)


def _merged_tensor(server: Tensor, clients: Sequence[Tensor], shares: Sequence[float], rule: str | None) -> Tensor:
    floating = server.is_floating_point() or server.is_complex()
    rule = rule or ("mean" if floating else "grown")
    if rule == "mean":
        return weighted_mean(clients, shares)
    if rule in ("server", "personal"):
        return server
    largest = torch.stack(list(clients)).amax(0)
    fell = rule == "grown" and any(bool((client < server).any()) for client in clients)
    return server if fell else largest


def weighted_mean(values: Sequence[Any], shares: Sequence[float]) -> Any:
    """Of tensors or numbers, or of lists, tuples or dictionaries of them; what is neither is the first client's."""
    first = values[0]
    if isinstance(first, Tensor):
        if not (first.is_floating_point() or first.is_complex()):
            return first.clone()
        exact = torch.complex128 if first.is_complex() else torch.float64
        return torch.stack([share * v.to(exact) for share, v in zip(shares, values, strict=True)]).sum(0).to(first)
    if isinstance(first, float):
        return sum(share * value for share, value in zip(shares, values, strict=True))
    if isinstance(first, list | tuple):
        return type(first)(weighted_mean(parts, shares) for parts in zip(*values, strict=True))
    if isinstance(first, dict):
        return {key: weighted_mean([value[key] for value in values], shares) for key in first}
    return first


def _merge_holder(server: Holder, clients: Sequence[Holder], shares: Sequence[float], rules: Rules) -> None:
    emptied = not server.is_module and any(_is_reset(server, client, rules) for client in clients)
    for key in dict.fromkeys(key for holder in (server, *clients) for key in holder.keys):
        rule, before = rule_for(f"{server.path}{key}", rules), server.get(key)
        found = [client.get(key) for client in clients]
        if before is _MISSING or any(value is _MISSING for value in found) or rule in ("server", "personal"):
            continue
        if rule == "mean":
            server.put(key, weighted_mean(found, shares))
        elif rule == "max":
            server.put(key, _largest(found))
        elif not emptied and all(isinstance(value, int) for value in (before, *found)) and min(found) >= before:
            server.put(key, max(found))
        elif (
            not emptied
            and all(type(value) in (int, float) for value in (before, *found))
            and any(type(value) is float for value in (before, *found))
        ):
            server.put(key, sum(share * value for share, value in zip(shares, found, strict=True)))


def _largest(values: Sequence[Any]) -> Any:
    return torch.stack(list(values)).amax(0) if isinstance(values[0], Tensor) else max(values)


def _is_reset(server: Holder, client: Holder, rules: Rules) -> bool:
    """Whether a turn changed tensors or containers of an object for which nothing is declared."""
    if any(rule_for(f"{server.path}{key}", rules) for key in client.keys):
        return False
    pairs = ((server.get(key), client.get(key)) for key in client.keys)
    return any(isinstance(after, Tensor | list) and not same(before, after) for before, after in pairs)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensor by tensor; objects of other kinds are taken for equal."""
    return all(deviation == 0 for _, deviation in deviations(one, other))


def deviations(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The largest absolute difference of each pair of tensors or numbers, infinite where their forms differ."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        yield name, _deviation(one, other)
    elif isinstance(one, int | float) and isinstance(other, int | float):
        yield name, 0.0 if one == other else abs(one - other)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from deviations(a, b, f"{name}[{number}]")
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from deviations(one[key], other[key], f"{name}[{key!r}]")
    elif type(one) is not type(other) or isinstance(one, list | tuple | Mapping):
        yield name, float("inf")


def _deviation(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.numel():
        return 0.0
    exact = torch.complex128 if one.is_complex() else torch.float64
    difference = float((one.detach().to(exact) - other.detach().to(exact)).abs().max())
    return float("inf") if difference != difference else difference
