"""Server optimizers: the clients' averaged update applied as a pseudo-gradient (Reddi et al. 2021, Algorithm 2).

FedAvg needs none. The adaptive three are here because torch's Adam differs from both published forms by up to 3.8 times
in the first rounds.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

# convention -> beta2, epsilon, initial second moment, bias correction
Defaults = Mapping[str, tuple[float, float, float, bool]]


class FedAvgM(SGD):
    """Server momentum (Hsu et al. 2019, arXiv 1909.06335): v = momentum v + g, w -= lr v, with g the pseudo-gradient.

    Keras keeps the rate inside v, which is the same while the rate is constant; a `server_schedule` acts on all of v
    here.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedAvgM
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> optimizer = FedAvgM([weight], lr=1.0, momentum=0.5)
        >>> for _ in range(2):
        ...     weight.grad = torch.tensor([1.0])
        ...     optimizer.step()
        >>> weight.detach()  # -(1 + 1.5)
        tensor([-2.5000])
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, momentum: float = 0.9) -> None:
        super().__init__(params, lr=lr, momentum=momentum)


class FedAdam(Optimizer):
    """FedAdam: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g²; w -= lr' m / (sqrt(v) + eps).

    Args:
        params: the server's parameters.
        lr: server learning rate.
        beta1: momentum, 0.9.
        beta2: None takes the convention's: `keras` 0.999, `reddi` 0.99.
        eps: None takes the convention's: `keras` 1e-4 (added outside the root), `reddi` tau = 1e-3.
        initial: initial v; None takes the convention's: `keras` 0, `reddi` tau² = 1e-6.
        convention: `keras` corrects the bias of both moments, `reddi` (Reddi et al. 2021) does not.

    Raises:
        ValueError: for a value out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedAdam
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> weight.grad = torch.tensor([2.0])  # the averaged update, negated; without moments a step is lr
        >>> FedAdam([weight], lr=0.1, beta1=0.0, beta2=0.0, eps=1e-9, initial=0.0).step()
        >>> weight.detach()
        tensor([-0.1000])
    """

    _defaults: ClassVar[Defaults] = {"keras": (0.999, 1e-4, 0.0, True), "reddi": (0.99, 1e-3, 1e-6, False)}

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float | None = None,
        eps: float | None = None,
        initial: float | None = None,
        convention: Literal["keras", "reddi"] = "keras",
    ) -> None:
        if convention not in self._defaults:
            raise ValueError(f"convention={convention!r}: choose 'keras' or 'reddi'")
        if lr <= 0:
            raise ValueError(f"lr={lr}: a server learning rate is positive")
        if not 0 <= beta1 < 1:
            raise ValueError(f"beta1={beta1}: choose a value in [0, 1)")
        if beta2 is not None and not 0 <= beta2 < 1:
            raise ValueError(f"beta2={beta2}: choose a value in [0, 1), or None for the convention's")
        if eps is not None and eps <= 0:
            raise ValueError(f"eps={eps}: choose a positive value, or None for the convention's")
        *chosen, correct = self._defaults[convention]
        beta2, eps, initial = (c if value is None else value for value, c in zip((beta2, eps, initial), chosen))
        settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "initial": initial}
        super().__init__(params, {**settings, "bias_correction": correct})

    def _second_moment(self, v: Tensor, g: Tensor, beta2: float) -> None:
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)
        return loss

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "m": torch.zeros_like(parameter), "v": torch.full_like(parameter, group["initial"])}
        state["step"] += 1
        state["m"].lerp_(gradient, 1 - group["beta1"])
        self._second_moment(state["v"], gradient, group["beta2"])
        rate = group["lr"]
        if group["bias_correction"]:
            rate *= (1 - group["beta2"] ** state["step"]) ** 0.5 / (1 - group["beta1"] ** state["step"])
        parameter.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-rate)


class FedYogi(FedAdam):
    """FedYogi: as FedAdam, but v = v + (1 - beta2) sign(g² - v) g² (Zaheer et al. 2018).

    `keras` is the released federated code's Yogi: beta2 0.999, eps 1e-3, v starts at 1, bias-corrected.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedYogi
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> weight.grad = torch.tensor([2.0])
        >>> FedYogi([weight], lr=0.1, beta1=0.0, beta2=0.0, eps=1e-9, initial=0.0).step()  # v grows by 4 alone
        >>> weight.detach()
        tensor([-0.1000])
    """

    _defaults: ClassVar[Defaults] = {"keras": (0.999, 1e-3, 1.0, True), "reddi": (0.99, 1e-3, 1e-6, False)}

    def _second_moment(self, v: Tensor, g: Tensor, beta2: float) -> None:
        square = g * g
        v.addcmul_(torch.sign(square - v), square, value=1 - beta2)


class FedAdagrad(FedAdam):
    """FedAdagrad: as FedAdam, but v = v + g² and, by default, without momentum.

    `keras`: v starts at 0.1, eps 1e-7; `reddi`: v starts at tau² = 1e-6, eps tau = 1e-3.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedAdagrad
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> optimizer = FedAdagrad([weight], lr=0.1, eps=1e-9, initial=0.0)
        >>> for gradient in (3.0, 4.0):
        ...     weight.grad = torch.tensor([gradient])
        ...     optimizer.step()
        >>> weight.detach()  # -0.1 * (3 / 3 + 4 / 5)
        tensor([-0.1800])
    """

    _defaults: ClassVar[Defaults] = {"keras": (1.0, 1e-7, 0.1, False), "reddi": (1.0, 1e-3, 1e-6, False)}

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.1,
        beta1: float = 0.0,
        eps: float | None = None,
        initial: float | None = None,
        convention: Literal["keras", "reddi"] = "keras",
    ) -> None:
        super().__init__(params, lr, beta1, None, eps, initial, convention)

    def _second_moment(self, v: Tensor, g: Tensor, beta2: float) -> None:
        v.addcmul_(g, g)


def as_real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones, in the same memory: a server optimizer squares its gradients."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def from_real(numbers: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(numbers) if like.is_complex() else numbers
