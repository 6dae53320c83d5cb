"""Checks of what a client tells beside its weights: what would do harm is refused before it is merged."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgen.federated.client_state.optimizer_contents import OptimizerContents
from fedgen.statistics.statistic_messages import MessageError

PARTS = 3  # of an optimizer's averaged state: sums, their weights, and what is not averaged
# what torch's optimizers take roots of, or count by
NEVER_NEGATIVE = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf", "sum", "step"}

Form = tuple[tuple[int, ...], torch.dtype] | None  # of a tensor that is summed; None of a value that is not


def check_states(told: Sequence[Any], optimizers: Sequence[OptimizerContents], client: int, weight: float) -> None:
    """Refuses averaged contents of optimizers (`LocalState.merge`) that no optimizer has.

    Args:
        told: by the client.
        optimizers: of the model, in order.
        client: its number.
        weight: its own in the mean.

    Raises:
        MessageError: for other parameters, shapes or types, another weight, negative second moments, or values that no
            optimizer keeps.
    """
    for index, optimizer in enumerate(optimizers):
        sums, totals, (first, beside, rest) = told[PARTS * index : PARTS * (index + 1)]
        doubled = [at for at in rest.keys() & sums if type(rest[at]) is not float]  # whose mean is a number again
        if first != client or sums.keys() != totals.keys() or not set(beside) <= sums.keys() or doubled:
            raise MessageError("its optimizer states are not as it was asked for them")
        for place, name in [*sums, *rest]:
            if not optimizer.has_places([place]) or type(name) is not str:
                raise MessageError(f"its optimizer state {name!r} is of a parameter that the model has not")
        for (place, name), tensor in sums.items():
            is_number = type(rest.get((place, name))) is float and (tensor.shape, tensor.dtype) == ((), torch.float64)
            if not is_number and not _fits(tensor, number := optimizer.parameter_at(place), optimizer.parameters):
                shape = None if number is None else list(optimizer.parameters[number].shape)
                raise MessageError(f"its {name!r} is {tensor.dtype} {list(tensor.shape)}, of a parameter of {shape}")
            if name in NEVER_NEGATIVE and bool((tensor < 0).any()):
                raise MessageError(f"its optimizer state {name!r} is negative")
        for (_, name), total in totals.items():
            if float(total) != weight:
                raise MessageError(f"its optimizer state {name!r} weighs {float(total):g} and should weigh {weight:g}")
        if not all(map(_is_plain, rest.values())):
            raise MessageError("its optimizer states are neither tensors nor numbers")


def _fits(tensor: Tensor, place: int | None, parameters: Sequence[Tensor]) -> bool:
    """Whether it is of a parameter's shape, of some of its axes, or one number; or, of the first, flat over all."""
    if place is None or tensor.dtype not in ((own := parameters[place]).dtype, torch.float32):
        return False
    factored = tensor.ndim == own.ndim and all(
        size in (1, of) for size, of in zip(tensor.shape, own.shape, strict=True)
    )
    flat = place == 0 and tensor.shape == (sum(parameter.numel() for parameter in parameters),)
    return tensor.numel() == 1 or factored or flat


def forms_of(told: Sequence[Any]) -> dict[tuple[int, Any], Form]:
    """The form of every tensor that is summed over clients, by its place and name; others' must be of the same."""
    found: dict[tuple[int, Any], Form] = {}
    for place, part in enumerate(told):
        if isinstance(part, tuple) and len(part) == PARTS and isinstance(part[-1], Mapping):
            found |= {(place + 1 - PARTS, name): None for name in part[-1]}
        named = part if isinstance(part, Mapping) else dict(enumerate(part)) if isinstance(part, list) else {}
        found |= {(place, name): (tuple(t.shape), t.dtype) for name, t in named.items() if isinstance(t, Tensor)}
    return found


def check_forms(forms: Mapping[tuple[int, Any], Form], others: Mapping[tuple[int, Any], Form]) -> None:
    """Raises MessageError unless what a client tells has the forms of what others did."""
    for key, form in forms.items():
        if key in others and others[key] != form:
            raise MessageError(f"its {key[1]!r} is {form} and others' {others[key]}")


def _is_plain(value: Any) -> bool:
    """Whether a value is one that optimizers keep: a number, a flag, nothing, whole numbers, or a list of tensors."""
    if isinstance(value, list | tuple):
        return all(isinstance(one, Tensor) or (_is_plain(one) and not isinstance(one, list | tuple)) for one in value)
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex()
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
