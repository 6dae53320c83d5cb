"""The form in which a client's turn must leave a module's tensors: which there are, their shapes, types and devices."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.federated.lightning.lightning_internals import BUFFERS, CHILDREN, PARAMETERS, REGISTRIES, UNSAVED

Kind = tuple[torch.Size, torch.dtype, torch.device, torch.layout]
Contents = dict[str, Any]  # what hangs in a module itself by its key there: parameters, buffers or children


class Forms:
    """The places of a module's tensors, and their shapes, types and devices; looks at no values.

    In simulation the module itself is what a client sends: a turn may leave another tensor in the place of one, one of
    another shape behind it, or more or fewer of them.

    Args:
        module: the model.
        tensors: those that federated averaging knows, by name.
        closed: beginnings of names of buffers that no turn may fill.

    Attributes:
        empty: places of buffers that are None.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor], closed: tuple[str, ...] = ()) -> None:
        self._module, self._tensors, self._closed = module, dict(tensors), closed
        self._kinds = {name: _kind(tensor) for name, tensor in tensors.items()}
        self._parts = list(module.modules())
        # with the dictionaries themselves: a Sequential makes a new one when a layer is deleted
        places = [(vars(part), kind) for part in self._parts for kind in REGISTRIES]
        self._before = [(home, kind, home[kind], dict(home[kind])) for home, kind in places]
        known = {id(tensor): name for name, tensor in tensors.items()}
        # all tensors that a checkpoint would hold; None for those that averaging leaves alone
        self._places = {place: known.get(id(own[key])) for place, (own, key) in _saved(module).items()}
        self.empty = _saved(module, filled=False)

    @property
    def filled(self) -> dict[str, Tensor]:
        """The tensors in the places of buffers that were None."""
        now = {n: own.get(key) for n, (own, key) in self.empty.items() if not n.startswith(self._closed)}
        return {n: value for n, value in now.items() if value is not None and not isinstance(value, nn.Parameter)}

    @torch.no_grad()
    def adopt(self) -> str | None:
        """Takes the values of tensors that hang in the places of known ones, if all have their forms.

        Modules that assign their buffers anew put them there: the values are copied, and the tensor that optimizers
        and all others know hangs there again.
        """
        now, moved = _saved(self._module), []
        if now.keys() != self._places.keys() and (change := self._lost_or_new(now)):
            return change
        for place, name in self._places.items():
            if name is None:
                continue
            own, key = now[place]
            tensor = own[key]
            if (tensor.shape, tensor.dtype, tensor.device, tensor.layout) != self._kinds[name]:
                return f"{name} has {_difference(_kind(tensor), self._kinds[name])}"
            if tensor is not self._tensors[name]:
                moved.append((own, key, self._tensors[name]))
        for own, key, known in moved:
            known.copy_(own[key])
            own[key] = known
        return None

    def restore(self, server: Mapping[str, Tensor]) -> None:
        """Hangs the tensors back where they were, in their forms; values of those that had lost it are void."""
        for home, kind, own, before in self._before:
            home[kind] = own
            lost = {key: value for key, value in before.items() if _is_lost(value, own.get(key))}
            if lost:
                present = dict(own)
                own.clear()
                own.update({**before, **present, **lost})
        for own, key in self.empty.values():
            own[key] = None
        self._remove(_saved(self._module).keys() - self._places.keys())
        for place, (own, key) in _saved(self._module).items():
            if (name := self._places[place]) is not None:
                own[key] = self._tensors[name]
        for name, tensor in self._tensors.items():
            if _kind(tensor) != self._kinds[name]:
                tensor.grad = None
                tensor.data = torch.empty_like(server[name])

    def _remove(self, new: set[str]) -> None:
        known = {id(part) for part in self._parts}
        for prefix, part in list(self._module.named_modules()) if new else ():
            before, children = f"{prefix}." if prefix else "", vars(part)[CHILDREN]
            for key, child in list(children.items()):
                if id(child) not in known and any(place.startswith(f"{before}{key}.") for place in new):
                    del children[key]
            for own in (vars(part)[PARAMETERS], vars(part)[BUFFERS]):
                for key in [key for key in own if before + key in new]:
                    del own[key]

    def _lost_or_new(self, now: Mapping[str, tuple[Contents, str]]) -> str | None:
        if gone := sorted(self._places.keys() - now.keys()):
            return f"{gone[0]} is gone"
        if new := sorted(now.keys() - self._places.keys() - self.filled.keys()):
            return (
                f"{new[0]} is new, and the server has no such tensor: give it one before training starts; a buffer that"
                " turns fill may be registered as None"
            )
        return None


def _difference(sent: Kind, had: Kind) -> str:
    pairs = zip(("shape", "dtype", "device", "layout"), (list(sent[0]), *sent[1:]), (list(had[0]), *had[1:]))
    return ", ".join(f"{what} {one} instead of {other}" for what, one, other in pairs if one != other)


def _kind(tensor: Tensor) -> Kind:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _saved(module: nn.Module, filled: bool = True) -> dict[str, tuple[Contents, str]]:
    """Return by tensor that a checkpoint of the module would hold the place where it hangs; or by name of None."""
    found = {}
    for prefix, part in module.named_modules():
        held, before = vars(part), f"{prefix}." if prefix else ""
        for own, unsaved in ((held[PARAMETERS], ()), (held[BUFFERS], held[UNSAVED])):
            for key, value in own.items():
                if (value is not None) is filled and key not in unsaved:
                    found[before + key] = own, key
    return found


def _is_lost(before: Any, now: Any) -> bool:
    """Whether something that hung in a module no longer does; a child that is replaced counts if either has tensors.

    A Sequential counts its children anew when one is deleted: in the place of an activation hangs the next layer.
    """
    if isinstance(before, nn.Module):
        return before is not now and any(isinstance(part, nn.Module) and _saved(part) for part in (before, now))
    return before is not None and now is None
