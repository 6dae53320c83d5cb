"""Objects that go on from round to round as in one client's fit: learning-rate schedules, quasi-random generators.

Every turn of a round begins with their state at the round's beginning, and after the round it is that of the round's
last completed turn. Their plain values are all that moves: functions that are bound to an object, and objects of the
module that they hold, stay themselves.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.federated.client_state.optimizer_contents import copied
from fedgen.federated.client_state.python_state import MISSING, Attributes, Keyed, Places, PythonState, value_of
from fedgen.federated.client_state.state_values import is_plain


def plain_part(value: Any) -> Any:
    """Return what of a scheduler's state a file can hold without objects: not what it is bound to or calls."""
    if type(value) is dict:
        return {key: part for key, one in value.items() if (part := plain_part(one)) is not MISSING}
    if type(value) in (list, tuple):  # of functions a scheduler's own state holds None
        return type(value)(None if part is MISSING else part for part in map(plain_part, value))
    if isinstance(value, np.generic):
        return value.item()
    is_plain_kind = isinstance(value, (Mapping, Set, Tensor))  # MultiStepLR has a Counter
    return value if is_plain_kind or not (callable(value) or hasattr(value, "__dict__")) else MISSING


class Continuing:
    """Snapshots of such objects, by place and dotted path.

    Args:
        objects: in the same order in every process.
    """

    def __init__(self, objects: Sequence[Any] = ()) -> None:
        self._state = PythonState([Attributes(str(place), one) for place, one in enumerate(objects)], _enter)

    def changes(self) -> dict[str, Any]:
        """Return the plain values that differ from the snapshot's."""
        changes = [change for node in self._state.changed() for change in node.changes()]
        return {change.path: copied(change.after) for change in changes if is_plain(change.after)}

    def values(self) -> dict[str, Any]:
        """Return the snapshot's plain values: numbers and texts one by one, lists and tensors as a whole."""
        single = [c for node in self._state.nodes if isinstance(node, Keyed) for c in node.children()]
        found = {path: value for _, path, value in single if isinstance(value, (int, float, str, type(None)))}
        whole = {node.path: node.contents for node in self._state.nodes if not isinstance(node, Keyed)}
        return found | {path: copied(value) for path, value in whole.items() if is_plain(value)}

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse values by path that are not like the snapshot's.

        Raises:
            ValueError: naming the first path.
        """
        places = Places(self._state)
        for path, value in values.items():
            if (place := places.find(path)) is None or not _alike(value_of(place), value):
                raise ValueError(f"{path[:80]!r} of a schedule or quasi-random generator is not like the server's")

    def restore(self) -> None:
        """Put the snapshot's values back."""
        for node in self._state.changed():
            node.restore()

    def write(self, values: Mapping[str, Any]) -> None:
        """Write values by path into the objects; those without a place are left out."""
        places = Places(self._state)
        for path, value in values.items():
            if (place := places.find(path)) is not None:
                place[0].write(place[1], copied(value))


def _alike(own: Any, value: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(value, Tensor) and (own.shape, own.dtype) == (value.shape, value.dtype)
    if isinstance(own, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(own) == len(value) and all(map(_alike, own, value))
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        return isinstance(value, (int, float)) and math.isfinite(value)
    return type(own) is type(value)


def _enter(path: str, value: Any) -> bool:
    return not isinstance(value, (nn.Module, nn.Parameter, Optimizer))
