"""The parameters of a module that train: those that its optimizers step, as far as gradients reach them."""

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that an optimizer holds, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trained_parameters(module: nn.Module, optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """The parameters that train in clients' turns.

    A frozen copy such as a moving average does not, though `Adam(self.parameters())` holds it: an optimizer passes over
    parameters without a gradient. One that holds nothing but frozen parameters is there for when they thaw: GANs turn
    requires_grad off for the net that rests. Of what requires a gradient and no optimizer holds, such as a copy that is
    moved by hand, nothing trains.

    Args:
        module: whose parts may hold optimizers of their own, too.
        optimizers: those of `configure_optimizers`.

    Returns:
        Each once; where there is no optimizer at all, every parameter that requires a gradient.
    """
    held = [parameters_of(optimizer) for optimizer in (*optimizers, *_own_optimizers(module))]
    if not held:
        return [parameter for parameter in module.parameters() if parameter.requires_grad]
    found: dict[int, Tensor] = {}
    for parameters in held:
        rests = not any(parameter.requires_grad for parameter in parameters)
        found |= {id(parameter): parameter for parameter in parameters if rests or parameter.requires_grad}
    return list(found.values())


def _own_optimizers(module: nn.Module) -> Iterator[Optimizer]:
    """Optimizers that hang in a module's parts themselves, or in lists and dictionaries there."""
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Optimizer):
                yield value
            elif type(value) in (list, tuple, dict) and value:  # asked in each round, of each attribute
                yield from (
                    one for one in (value.values() if type(value) is dict else value) if isinstance(one, Optimizer)
                )
