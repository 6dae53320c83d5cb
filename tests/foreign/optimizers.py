"""Every optimizer of torch, timm, pytorch_optimizer and schedulefree, and wrappers of optimizers, by name."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytorch_optimizer
import schedulefree
import timm.optim
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Maker = Callable[[Any], Optimizer]  # of a network
RATE = 0.02


class Probe(L.LightningModule):
    """A net of three layers on points [N, 6], and an optimizer.

    Args:
        optimizer: makes it of the net.
        bias: whether layers have some: a few optimizers take matrices alone.
        create_graph: whether gradients can be differentiated, as second-order optimizers want it.
        by_hand: whether the optimizer is stepped by hand, with gradients at hand and a closure, as some SAMs want it.
    """

    def __init__(self, optimizer: Maker, bias: bool = True, create_graph: bool = False, by_hand: bool = False) -> None:
        super().__init__()
        self._optimizer, self._create_graph, self.automatic_optimization = optimizer, create_graph, not by_hand
        self.net = nn.Sequential(
            nn.Linear(6, 5, bias), nn.Tanh(), nn.Linear(5, 4, bias), nn.Tanh(), nn.Linear(4, 6, bias)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.automatic_optimization:
            return self.loss_of(batch)
        self.step(batch, self.optimizers())
        return None

    def loss_of(self, batch: Any) -> Tensor:
        return (self.net(batch[0]) - batch[0].sin()).square().mean()

    def step(self, batch: Any, optimizer: Any) -> None:
        @torch.enable_grad()
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss_of(batch)
            self.backward(loss)
            return loss

        if not self.automatic_optimization:
            closure()
        optimizer.step(closure)

    def backward(self, loss: Tensor) -> None:
        loss.backward(create_graph=self._create_graph)

    def configure_optimizers(self) -> Any:
        return self._optimizer(self.net)

    def on_train_epoch_start(self) -> None:
        self._switch("train")

    def on_train_epoch_end(self) -> None:
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        """As the documentation of schedule-free optimizers has it."""
        found: Any = self.optimizers(use_pl_optimizer=False)
        for optimizer in found if isinstance(found, list) else [found]:
            if hasattr(optimizer, "train") and hasattr(optimizer, "eval"):
                getattr(optimizer, mode)()


class Together(Probe):
    """Probes in one module, stepped one after another: they share what else a fit takes, which is most of it."""

    def __init__(self, probes: list[Probe]) -> None:
        super().__init__(self._made, by_hand=True)
        self.net: Any = nn.ModuleList(probes)

    def _made(self, probes: Any) -> list[Optimizer]:
        return [probe.configure_optimizers() for probe in probes]

    def step(self, batch: Any, optimizer: Any) -> None:
        for probe, own in zip(self.net, optimizer, strict=True):
            probe.step(batch, own)


class SAM(Optimizer):
    """Sharpness-aware minimisation around another optimizer (davda54/sam), with a closure."""

    def __init__(self, params: Any, base: Callable[..., Optimizer], rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure = torch.enable_grad()(closure)
        loss = closure()
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([p.grad.norm() for p in held]))
        for p in held:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        closure()
        for p in held:
            p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        return loss


class CountingSGD(torch.optim.SGD):
    """SGD whose rate falls by a count that is an attribute, with the last gradients in a list."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.count, self.last = 0, []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = torch.enable_grad()(closure)()
        self.count += 1
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, last in zip(held, self.last or [p.grad for p in held], strict=True):
            p.add_(p.grad + 0.5 * last, alpha=-self.param_groups[0]["lr"] / self.count)
        self.last = [p.grad.clone() for p in held]
        return loss


def muon_groups(net: nn.Module) -> list[dict[str, Any]]:
    """Matrices, which Muon steps, and the others, which Adam steps."""
    parts: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for p in net.parameters():
        parts[p.ndim == 2].append(p)
    return [{"params": params, "use_muon": is_matrix} for is_matrix, params in parts.items()]


def of_torch(kind: Any, **own: Any) -> Maker:
    """The maker of one of torch's optimizers, or of others that are called alike."""
    return lambda net: kind(net.parameters(), **{"lr": RATE, **own})


def of_timm(name: str) -> Maker:
    """The maker of one of timm's optimizers."""
    return lambda net: timm.optim.create_optimizer_v2(net.parameters(), opt=name, lr=RATE, weight_decay=0.01)


def of_pytorch_optimizer(name: str) -> Maker:
    """The maker of one of pytorch_optimizer's."""
    own = {
        "bsam": {"num_data": 20},
        "lbfgs": {"max_iter": 4},
        "ranger21": {"num_iterations": 30},
        "spectralsphere": {"solver_max_iterations": 9},
    }.get(name, {})

    def make(net: nn.Module) -> Optimizer:
        kind: Any = pytorch_optimizer.load_optimizer(name)
        if name in ("muon", "adago", "adamuon", "distributedmuon", "muonclip", "normuon"):
            return kind(muon_groups(net), lr=RATE)
        return kind(net if name in ("lomo", "adalomo", "adammini") else net.parameters(), lr=RATE, **own)

    return make


def around_adam(kind: Any, **own: Any) -> Maker:
    """The maker of an optimizer around torch's Adam."""
    return lambda net: kind(torch.optim.Adam(net.parameters(), lr=RATE), **own)


TORCH: dict[str, Maker] = {
    name: of_torch(kind)
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and name not in ("Optimizer", "SparseAdam")
}
TORCH |= {
    "LBFGS": of_torch(torch.optim.LBFGS, max_iter=4),
    "SGD, momentum": of_torch(torch.optim.SGD, momentum=0.9, nesterov=True),
    "Adam, amsgrad": of_torch(torch.optim.Adam, amsgrad=True),
    "RMSprop, centred": of_torch(torch.optim.RMSprop, momentum=0.9, centered=True),
    "Adagrad, initial value": of_torch(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "Adam, rate in a tensor": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(RATE), foreach=False),
    "Adam, two groups": lambda net: torch.optim.Adam(
        [{"params": net[0].parameters()}, {"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.1}], lr=RATE
    ),
}
TIMM: dict[str, Maker] = {name: of_timm(name) for name in timm.optim.list_optimizers()}
PYTORCH_OPTIMIZER: dict[str, Maker] = {
    name: of_pytorch_optimizer(name) for name in pytorch_optimizer.get_supported_optimizers()
}
SCHEDULE_FREE: dict[str, Maker] = {
    name: of_torch(kind)
    for name, kind in vars(schedulefree).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer)
}
BASE = {"base_optimizer": torch.optim.SGD, "momentum": 0.9}
WRAPPERS: dict[str, Maker] = {
    "SAM of SGD, momentum": of_torch(SAM, base=torch.optim.SGD, momentum=0.9),
    "SAM of Adam": of_torch(SAM, base=torch.optim.Adam),
    "SAM of SGD, by hand (pytorch_optimizer)": of_torch(pytorch_optimizer.SAM, **BASE),
    "LookSAM of SGD, by hand (pytorch_optimizer)": of_torch(pytorch_optimizer.LookSAM, **BASE),
    "Lookahead of Adam (timm)": around_adam(timm.optim.Lookahead, k=3),
    "Lookahead of Adam (pytorch_optimizer)": around_adam(pytorch_optimizer.Lookahead, k=2),
    "OrthoGrad of Adam (pytorch_optimizer)": around_adam(pytorch_optimizer.OrthoGrad),
    "TRAC of Adam (pytorch_optimizer)": around_adam(pytorch_optimizer.TRAC),
    "ScheduleFreeWrapper of Adam (pytorch_optimizer)": around_adam(pytorch_optimizer.ScheduleFreeWrapper),
    "a count and a list in attributes": of_torch(CountingSGD),
}
GROUPS = {
    "torch.optim": TORCH,
    "timm.optim": TIMM,
    "pytorch_optimizer": PYTORCH_OPTIMIZER,
    "schedulefree": SCHEDULE_FREE,
    "Wrappers": WRAPPERS,
}
