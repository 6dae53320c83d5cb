"""Modules that hold a moving average of their weights, or are taught by one.

From packages by name, or written anew after the sources named in each case, with their hooks and names of state.
"""

import copy
from typing import Any

import lightning as L
import torch
from diffusers.training_utils import EMAModel
from ema_pytorch import EMA
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_ema import ExponentialMovingAverage

from tests.foreign.cases import Case
from tests.foreign.optimisation import Batch, classifier


class Classified(L.LightningModule):
    """What the modules below share: a net, its loss and an optimizer of its weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.model = classifier(4)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)


class LitEma(nn.Module):
    """The average of latent-diffusion: buffers under the weights' names without dots, `decay` and `num_updates`."""

    def __init__(self, model: nn.Module, decay: float = 0.9999, use_num_upates: bool = True) -> None:
        super().__init__()
        self.m_name2s_name: dict[str, str] = {}
        self.register_buffer("decay", torch.tensor(decay, dtype=torch.float32))
        self.register_buffer("num_updates", torch.tensor(0 if use_num_upates else -1, dtype=torch.int))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.m_name2s_name[name] = name.replace(".", "")
                self.register_buffer(self.m_name2s_name[name], parameter.clone().detach().data)
        self.collected_params: list[Tensor] = []

    @torch.no_grad()
    def forward(self, model: nn.Module) -> None:
        decay: Any = self.decay
        if self.num_updates >= 0:
            self.num_updates += 1
            decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        shadows, weights = dict(self.named_buffers()), dict(model.named_parameters())
        for name, parameter in weights.items():
            if parameter.requires_grad:
                shadow = shadows[self.m_name2s_name[name]]
                shadow.sub_((1.0 - decay) * (shadow - parameter))


class WithLitEma(Classified):
    """Updates its LitEma in `on_train_batch_end`, as latent-diffusion's DDPM does."""

    def __init__(self) -> None:
        super().__init__()
        self.use_ema = True
        self.model_ema = LitEma(self.model)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self.use_ema:
            self.model_ema(self.model)


class WithEmaPytorch(Classified):
    """lucidrains' EMA, updated after each batch; its flag and its count of steps are buffers."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.ema = EMA(
            self.model,
            **{"beta": 0.9, "update_after_step": 2, "update_every": 1, "include_online_model": False} | options,
        )

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.ema.update()


class WithTorchEma(Classified):
    """fadel's torch-ema, an object beside the modules, updated by `on_before_zero_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.ema = ExponentialMovingAverage(self.model.parameters(), decay=0.95)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        drift = sum(
            (p - s).square().sum() for p, s in zip(self.model.parameters(), self.ema.shadow_params, strict=True)
        )
        return loss + 0.05 * drift

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.ema.update(self.model.parameters())


class WithEMAModel(WithTorchEma):
    """diffusers' EMAModel, whose loss here pulls weights towards the average, so that it matters."""

    def __init__(self) -> None:
        super().__init__()
        self.ema = EMAModel(self.model.parameters(), decay=0.95, use_ema_warmup=True)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.ema.step(self.model.parameters())


class WithAveragedModel(Classified):
    """torch's AveragedModel: equal weights (SWA) or exponential ones, buffers too; `n_averaged` counts."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.swa_model = AveragedModel(self.model, use_buffers=True, **options)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.swa_model.update_parameters(self.model)


class MeanTeacher(Classified):
    """Tarvainen and Valpola 2017: a teacher whose weights follow the student's, faster in the beginning."""

    def __init__(self, alpha: float = 0.97) -> None:
        super().__init__()
        self.alpha = alpha
        self.ema_model = copy.deepcopy(self.model)
        for parameter in self.ema_model.parameters():
            parameter.detach_()

    def update_ema_variables(self, global_step: int) -> None:
        alpha = min(1 - 1 / (global_step + 1), self.alpha)
        for ema_param, param in zip(self.ema_model.parameters(), self.model.parameters(), strict=True):
            ema_param.data.mul_(alpha).add_(param.data, alpha=1 - alpha)

    def consistency_weight(self) -> float:
        """A sigmoid ramp over the first epochs."""
        phase = 1.0 - min(self.current_epoch + 1, 4) / 4
        return float(torch.exp(torch.tensor(-5.0 * phase * phase)))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.model(x + 0.05 * torch.randn_like(x))
        with torch.no_grad():
            target = self.ema_model(x + 0.05 * torch.randn_like(x)).softmax(1)
        return F.cross_entropy(logits, y) + 3 * self.consistency_weight() * F.mse_loss(logits.softmax(1), target)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.update_ema_variables(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


CASES = [
    Case(
        "LitEma",
        "CompVis/latent-diffusion, ldm/modules/ema.py",
        "floating buffers, integer counter",
        WithLitEma,
        moves=("model_ema.num_updates", "model_ema.0weight"),
    ),
    Case(
        "EMA, online model outside",
        "ema-pytorch",
        "frozen copy, flag, counter",
        WithEmaPytorch,
        moves=("ema.step", "ema.initted", "ema.ema_model.0.weight"),
    ),
    Case(
        "EMA that replaces the model",
        "ema-pytorch, update_model_with_ema_every (hare to tortoise)",
        "frozen copy, flag, counter",
        lambda: WithEmaPytorch(update_model_with_ema_every=3),
        moves=("ema.step",),
    ),
    Case(
        "ExponentialMovingAverage of torch-ema",
        "torch-ema",
        "list of tensors and counter on an object",
        WithTorchEma,
        rules={"ema.shadow_params*": "mean"},
        moves=("ema.shadow_params", "ema.num_updates"),
        python=("ema.shadow_params", "ema.num_updates"),
    ),
    Case(
        "ExponentialMovingAverage, nothing declared",
        "torch-ema",
        "list of tensors and counter on an object, reset together",
        WithTorchEma,
        python=("ema.shadow_params", "ema.num_updates"),
    ),
    Case(
        "EMAModel",
        "diffusers",
        "list of tensors and counter on an object",
        WithEMAModel,
        rules={"ema.shadow_params*": "mean"},
        moves=("ema.shadow_params", "ema.optimization_step"),
        python=("ema.shadow_params", "ema.optimization_step"),
    ),
    Case(
        "AveragedModel (SWA)",
        "torch.optim.swa_utils",
        "copy of weights and buffers, counter",
        WithAveragedModel,
        moves=("swa_model.n_averaged", "swa_model.module.0.weight", "swa_model.module.1.running_var"),
    ),
    Case(
        "AveragedModel (EMA)",
        "torch.optim.swa_utils",
        "copy of weights and buffers, counter",
        lambda: WithAveragedModel(multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        moves=("swa_model.n_averaged", "swa_model.module.0.weight"),
    ),
    Case(
        "Mean Teacher",
        "CuriousAI/mean-teacher, pytorch/main.py",
        "teacher in the loss, BatchNorm",
        MeanTeacher,
        moves=("ema_model.0.weight", "ema_model.1.running_mean"),
    ),
]
