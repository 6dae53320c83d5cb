"""Optimizer states from checkpoints: `Optimizer.load_state_dict` takes any value, and a later step would meet it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fedgen.io.tensor_files import kind_of, leaves

# what torch's optimizers and those here keep for each number of a parameter
_LIKE_PARAMETER = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg"}
    | {"acc_delta", "sum", "prev", "step_size", "m", "v"}
)
# what schedulers and named parameters add to a group: a checkpoint of training without them has none
_ADDED = ("initial_lr", "param_names")
_ROUNDING = 1e-12  # of learning rates: LinearLR's way to 0 may end a little below


def check_optimizer_state(optimizer: Optimizer, state: Any) -> None:
    """Refuses what no `state_dict` of such an optimizer holds.

    How large numbers are is the checkpoint's to say, if they are some and no learning rate is negative. What schedulers
    add may be missing; of torch's own optimizers so may settings that are on, off or None: its releases add such.

    Raises:
        ValueError: naming the first value of another kind or shape.
    """
    groups = optimizer.state_dict()["param_groups"]
    found: Any = state.get("param_groups") if isinstance(state, Mapping) else None
    if not _is_list(found, len(groups)) or "state" not in state:
        raise ValueError(f"an optimizer's state is not that of one with {len(groups)} groups of parameters")
    for own, said in zip(groups, found):
        _check_group(own, said, torch_made=_made_by(optimizer) == "torch")
    check_slots(optimizer, state["state"])


def check_slots(optimizer: Optimizer, slots: Any) -> None:
    """Refuses what no such optimizer keeps of its parameters.

    Raises:
        ValueError: naming the first value of another kind or shape.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    known = _made_by(optimizer) in ("torch", "fedgen")
    if not isinstance(slots, Mapping) or not all(_is_place(i, len(parameters), known) for i in slots):
        raise ValueError(f"what an optimizer keeps is not by the place of one of its {len(parameters)} parameters")
    for place, found in slots.items():
        slot: Any = {place: found} if isinstance(place, str) else found
        if not isinstance(slot, Mapping):
            raise ValueError(f"what an optimizer keeps of parameter {place} is {type(slot).__name__}, not by name")
        for name, value in slot.items():
            if any(map(is_nan, leaves(value))) or (known and not _fits(name, value, parameters[place])):
                raise ValueError(f"an optimizer's {name} of parameter {place} is not of its shape or kind, or is NaN")
    first = 0
    for group in optimizer.param_groups if known else ():
        first, places = first + len(group["params"]), range(first, first + len(group["params"]))
        names = {frozenset(slots[i].keys() & (_LIKE_PARAMETER | {"step"})) for i in places if slots.get(i)}
        if len(names) > 1:
            odd = sorted(frozenset.union(*names) - frozenset.intersection(*names))
            raise ValueError(f"an optimizer keeps {odd[0]} of some parameters and not of others")


def _is_place(key: Any, parameters: int, known: bool) -> bool:
    return (type(key) is int and 0 <= key < parameters) or (not known and isinstance(key, str))


def _made_by(optimizer: Optimizer) -> str:
    return type(optimizer).__module__.split(".")[0]


def _fits(name: Any, value: Any, parameter: Tensor) -> bool:
    if name == "step":
        return _is_number(value) and bool(value >= 0)
    if name not in _LIKE_PARAMETER or (name == "momentum_buffer" and value is None):
        return True
    return isinstance(value, Tensor) and value.shape == parameter.shape and kind_of(value) == kind_of(parameter)


def _check_group(own: Mapping[str, Any], found: Any, torch_made: bool) -> None:
    """Refuses settings of other kinds than the optimizer's own."""
    for name, value in own.items():
        said: Any = found.get(name) if isinstance(found, Mapping) else None
        if name == "params":
            same = _is_list(said, len(value)) and all(type(one) is int for one in said) and list(said) == value
        elif _is_number(value):
            same = _is_number(said) and not is_nan(said) and (name not in ("lr", "initial_lr") or said >= -_ROUNDING)
        elif isinstance(value, list | tuple):
            same = _is_list(said, len(value)) and all(
                _is_number(b) and not is_nan(b) for a, b in zip(value, said) if _is_number(a)
            )
        else:
            same = not isinstance(value, bool) or isinstance(said, bool) or (torch_made and said is None)
        if not same and not (name in _ADDED and said is None):
            raise ValueError(f"an optimizer's {name} is {str(said)[:40]!r}, where the model's is {str(value)[:40]!r}")


def _is_number(value: Any) -> bool:
    """A number that torch can take, or a tensor of one; no truth value."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and kind_of(value)[1:] == (False, False)
    return isinstance(value, float) or (type(value) is int and value.bit_length() < 64)


def is_nan(value: Any) -> bool:
    """Whether a value is NaN, or a tensor that holds some."""
    return bool(value.isnan().any()) if isinstance(value, Tensor) else isinstance(value, float) and math.isnan(value)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length
