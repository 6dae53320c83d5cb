"""The switches and gradients that a client's turn may leave behind in a module."""

from torch import nn


class Switches:
    """A module's gradients, and its switches: requires_grad of parameters, training modes of submodules."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameters, self._modules = list(module.parameters()), list(module.modules())
        self._flags = [p.requires_grad for p in self._parameters]
        self.start_turn()

    def thawed_or_frozen(self) -> bool:
        """Whether requires_grad is another than when this was made."""
        return self._flags != [p.requires_grad for p in self._module.parameters()]

    def start_turn(self) -> None:
        """Takes the present switches as those that `restore` puts back."""
        self._before = [p.requires_grad for p in self._parameters], [m.training for m in self._modules]

    def restore(self) -> None:
        """Puts the switches back to what they were when the turn started."""
        flags, modes = self._before
        for parameter, flag in zip(self._parameters, flags):
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
        for part, mode in zip(self._modules, modes):
            if part.training != mode:
                part.training = mode

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
