"""A module's optimizer step as functions: what is drawn for it, and a loss of its tensors that draws nothing."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Drawn = Mapping[str, Tensor]


@dataclass(frozen=True)
class FunctionalStep:
    """One optimizer step of a local iteration, in two functions, from which a strategy trains many clients at once.

    A module gives the steps of an iteration by `functional_steps(iteration)`, in the order in which its `training_step`
    takes them. `draw` is called for each client by itself, with torch's global generators at the client's place;
    `loss` for many clients at once under `torch.vmap`, where the module's parameters and buffers are a client's.

    Args:
        kind: of the step, such as "critic": steps of one kind differ in nothing but their rate.
        optimizer: its place in `configure_optimizers`.
        draw: what the step draws for a batch, tensors by name, in the order in which `training_step` draws. Whatever
            looks at values (an assignment, a check of labels) belongs here, too.
        loss: the loss of (batch, drawn), a scalar to be differentiated in the optimizer's parameters, and what
            `training_step` notes of the step, scalars by name. It draws nothing, decides nothing by values, and changes
            nothing but buffers.
        rate: the optimizer's learning rate in this step; None for the rate that its groups have.
    """

    kind: str
    optimizer: int
    draw: Callable[[Any], Drawn]
    loss: Callable[[Any, Drawn], tuple[Tensor, Mapping[str, Tensor]]]
    rate: float | None = None


def overridden_below(part: object, functional: str, names: Iterable[str]) -> str | None:
    """Return why a functional method cannot stand for others: a class that knows nothing of it overrides one of them.

    Args:
        part: whose methods they are.
        functional: the method that stands for the others, as far as its own class and those above it define them.
        names: of the others; those that the part does not have are passed over.
    """
    classes = type(part).__mro__
    definer = {name: next((k for k in classes if name in vars(k)), object) for name in [functional, *names]}
    for name in names:
        if definer[name] is not definer[functional] and issubclass(definer[name], definer[functional]):
            return f"{definer[name].__name__} overrides {name}, and not {functional}"
    return None
