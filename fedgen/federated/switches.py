"""What a client's turn may leave behind in a module beside its tensors: switches and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Switches:
    """A module's gradients, and its switches: requires_grad of parameters, training modes of submodules."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters, self._modules = list(module.parameters()), list(module.modules())
        self._flags = [p.requires_grad for p in self._parameters]

    def thawed_or_frozen(self) -> bool:
        """Whether requires_grad is another than when this was made."""
        return self._flags != [p.requires_grad for p in self._module.parameters()]

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Puts the switches back, and drops gradients, if the block raises."""
        flags, modes = [p.requires_grad for p in self._parameters], [m.training for m in self._modules]
        try:
            yield
        except Exception:
            for parameter, flag in zip(self._parameters, flags):
                parameter.requires_grad_(flag)
            for part, mode in zip(self._modules, modes):
                part.training = mode
            self.clear_gradients()
            raise

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
