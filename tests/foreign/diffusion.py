"""Diffusion, score and consistency models with the averages, scales and clocks that they keep.

From packages by name, or written anew after the sources named in each case, with their hooks and names of state.
"""

import copy
from typing import Any

import lightning as L
import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from ema_pytorch import EMA
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.cases import Case
from tests.foreign.ema_and_teachers import LitEma
from tests.foreign.optimisation import Batch


class TimedNet(nn.Module):
    """A small convolutional net of images and times: [N, channels, H, W] and [N] to [N, channels, H, W]."""

    def __init__(self, channels: int = 1, width: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, 1, 1), nn.Conv2d(width, channels, 3, 1, 1)
        self.time = nn.Linear(1, width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.enter(x) + self.time(t.view(-1, 1).float())[:, :, None, None]
        return self.leave(F.silu(hidden))


def disabled_train(self: Any, mode: bool = True) -> Any:
    """Put in the place of a frozen model's `train`, so that nothing takes it out of evaluation mode."""
    return self


class LatentDiffusion(L.LightningModule):
    """Rombach et al. 2022: diffusion of a frozen first stage's codes, with `scale_factor` measured on the first batch,
    a LitEma updated after each batch, and a linear warm-up by steps."""

    def __init__(self, timesteps: int = 20) -> None:
        super().__init__()
        self.use_ema = self.scale_by_std = True
        self.restarted_from_ckpt = False
        self.model = TimedNet(2)
        self.model_ema = LitEma(self.model)
        self.first_stage_model = nn.Conv2d(1, 2, 2, 2).eval()
        self.first_stage_model.train = disabled_train  # type: ignore[method-assign]
        for parameter in self.first_stage_model.parameters():
            parameter.requires_grad = False
        self.register_buffer("scale_factor", torch.tensor(1.0))
        self.register_schedule(timesteps)
        self.logvar = torch.full(fill_value=0.0, size=(timesteps,))

    def register_schedule(self, timesteps: int, linear_start: float = 1e-4, linear_end: float = 2e-2) -> None:
        betas = torch.linspace(linear_start**0.5, linear_end**0.5, timesteps) ** 2
        alphas_cumprod = torch.cumprod(1.0 - betas, 0)
        self.num_timesteps = timesteps
        self.register_buffer("betas", betas)
        self.register_buffer("alphas_cumprod", alphas_cumprod)
        self.register_buffer("sqrt_alphas_cumprod", alphas_cumprod.sqrt())
        self.register_buffer("sqrt_one_minus_alphas_cumprod", (1.0 - alphas_cumprod).sqrt())

    @torch.no_grad()
    def get_input(self, batch: Batch) -> Tensor:
        return self.scale_factor * self.first_stage_model(batch[0])

    @torch.no_grad()
    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        first = self.current_epoch == 0 and self.global_step == 0 and batch_idx == 0
        if self.scale_by_std and first and not self.restarted_from_ckpt:
            assert self.scale_factor == 1.0, "rather not use custom rescaling and std-rescaling simultaneously"
            z = self.first_stage_model(batch[0]).detach()
            del self.scale_factor
            self.register_buffer("scale_factor", 1.0 / z.flatten().std())

    def p_losses(self, x_start: Tensor, t: Tensor) -> Tensor:
        noise = torch.randn_like(x_start)
        signal = self.sqrt_alphas_cumprod[t].view(-1, 1, 1, 1)
        x_noisy = signal * x_start + self.sqrt_one_minus_alphas_cumprod[t].view(-1, 1, 1, 1) * noise
        loss_simple = F.mse_loss(self.model(x_noisy, t), noise, reduction="none").mean([1, 2, 3])
        logvar_t = self.logvar[t]
        return (loss_simple / torch.exp(logvar_t) + logvar_t).mean()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x = self.get_input(batch)
        t = torch.randint(0, self.num_timesteps, (len(x),), device=self.device).long()
        self.log("global_step", float(self.global_step), prog_bar=True, on_step=True, on_epoch=False)
        return self.p_losses(x, t)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self.use_ema:
            self.model_ema(self.model)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda step: min(1.0, (step + 1) / 6))
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 1}]


class Lucidrains(L.LightningModule):
    """denoising-diffusion-pytorch's U-Net and diffusion, with the EMA that its trainer updates after each step."""

    def __init__(self) -> None:
        super().__init__()
        unet = Unet(dim=8, dim_mults=(1,), channels=1, attn_heads=1, attn_dim_head=4)
        self.model = GaussianDiffusion(unet, image_size=8, timesteps=10)
        self.ema = EMA(self.model, beta=0.995, update_every=2, update_after_step=1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.model((batch[0] + 1) / 2)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.ema.update()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05)


class DiffusersDDPM(L.LightningModule):
    """diffusers' unconditional training: UNet2DModel, DDPMScheduler and a cosine schedule with warm-up, by steps."""

    def __init__(self) -> None:
        super().__init__()
        self.model = UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(8,),
            norm_num_groups=4,
            down_block_types=("DownBlock2D",),
            up_block_types=("UpBlock2D",),
        )
        self.noise_scheduler = DDPMScheduler(num_train_timesteps=20)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        clean = batch[0]
        noise = torch.randn(clean.shape)
        timesteps = torch.randint(0, self.noise_scheduler.config.num_train_timesteps, (len(clean),)).long()
        noisy = self.noise_scheduler.add_noise(clean, noise, timesteps)
        return F.mse_loss(self.model(noisy, timesteps).sample, noise)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        schedule = get_cosine_schedule_with_warmup(optimizer, 3, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ExponentialMovingAverage:
    """The average of score_sde_pytorch: an object with `shadow_params`, `num_updates` and `collected_params`."""

    def __init__(self, parameters: Any, decay: float, use_num_updates: bool = True) -> None:
        self.decay = decay
        self.num_updates: int | None = 0 if use_num_updates else None
        self.shadow_params = [p.clone().detach() for p in parameters if p.requires_grad]
        self.collected_params: list[Tensor] = []

    @torch.no_grad()
    def update(self, parameters: Any) -> None:
        decay = self.decay
        if self.num_updates is not None:
            self.num_updates += 1
            decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
        parameters = [p for p in parameters if p.requires_grad]
        for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
            shadow.sub_((1.0 - decay) * (shadow - parameter))

    def store(self, parameters: Any) -> None:
        self.collected_params = [parameter.clone() for parameter in parameters]

    def copy_to(self, parameters: Any) -> None:
        parameters = [p for p in parameters if p.requires_grad]
        for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
            parameter.data.copy_(shadow.data)

    def restore(self, parameters: Any) -> None:
        for kept, parameter in zip(self.collected_params, parameters, strict=True):
            parameter.data.copy_(kept.data)


class ScoreSDE(L.LightningModule):
    """Song et al. 2021, variance exploding: `optimize_fn` warms up by `step`, clips and steps; then `ema` moves, both
    entries of a dictionary. As in its evaluations, each turn's first iteration looks at the average: `store`,
    `copy_to`, `restore`."""

    def __init__(self, sigma_min: float = 0.01, sigma_max: float = 5.0, warmup: int = 6) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.score_model = TimedNet()
        ema = ExponentialMovingAverage(self.score_model.parameters(), decay=0.9)
        self.state = {"model": self.score_model, "ema": ema, "step": 0}
        self.sigma_min, self.sigma_max, self.warmup = sigma_min, sigma_max, warmup

    def optimize_fn(self, optimizer: Any, step: int, lr: float = 0.02, grad_clip: float = 1.0) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(step / self.warmup, 1.0)
        nn.utils.clip_grad_norm_(self.score_model.parameters(), max_norm=grad_clip)
        optimizer.step()

    def loss_fn(self, batch: Tensor) -> Tensor:
        t = torch.rand(batch.shape[0]) * (1 - 1e-5) + 1e-5
        std = (self.sigma_min * (self.sigma_max / self.sigma_min) ** t)[:, None, None, None]
        z = torch.randn_like(batch)
        score = self.score_model(batch + std * z, t) / std
        return (torch.square(score * std + z)).flatten(1).mean(1).mean()

    @torch.no_grad()
    def average_loss(self, batch: Tensor) -> float:
        ema = self.state["ema"]
        ema.store(self.score_model.parameters())
        ema.copy_to(self.score_model.parameters())
        loss = float(self.loss_fn(batch))
        ema.restore(self.score_model.parameters())
        return loss

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        # an average that is worse than it should be makes the step smaller, so that weights depend on it here
        scale = 1.0 if batch_idx else min(1.0, 1 / self.average_loss(batch[0]))
        self.manual_backward(scale * self.loss_fn(batch[0]))
        self.optimize_fn(optimizer, step=self.state["step"])
        self.state["step"] += 1
        self.state["ema"].update(self.score_model.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.score_model.parameters(), lr=0.02, momentum=0.9)


class ConsistencyModel(L.LightningModule):
    """Song et al. 2023, consistency training: a teacher that follows the student, the faster the finer the discretised
    times, which grow finer with the share of training that is done."""

    def __init__(self, sigma_data: float = 0.5, sigma_min: float = 0.002, sigma_max: float = 5.0) -> None:
        super().__init__()
        self.sigma_data, self.sigma_min, self.sigma_max = sigma_data, sigma_min, sigma_max
        self.student_model = TimedNet()
        self.teacher_model = copy.deepcopy(self.student_model).eval().requires_grad_(False)
        self.num_timesteps = 2

    def timesteps_schedule(self, initial: int = 2, final: int = 12) -> int:
        current, total = self.global_step, int(self.trainer.estimated_stepping_batches)
        squared = current / total * ((final + 1) ** 2 - initial**2) + initial**2
        return int(torch.ceil(torch.tensor(squared).sqrt() - 1) + 1)

    def ema_decay_rate(self, initial: float = 0.9) -> float:
        return float(torch.exp(2 * torch.log(torch.tensor(initial)) / self.num_timesteps))

    def karras_schedule(self, rho: float = 7.0) -> Tensor:
        steps = torch.arange(self.num_timesteps) / max(self.num_timesteps - 1, 1)
        low, high = self.sigma_min ** (1 / rho), self.sigma_max ** (1 / rho)
        return (low + steps * (high - low)) ** rho

    def consistency(self, model: nn.Module, x: Tensor, sigma: Tensor) -> Tensor:
        s = (sigma - self.sigma_min).view(-1, 1, 1, 1)
        skip = self.sigma_data**2 / (s**2 + self.sigma_data**2)
        out = self.sigma_data * s / (self.sigma_data**2 + sigma.view(-1, 1, 1, 1) ** 2) ** 0.5
        return skip * x + out * model(x, sigma)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.num_timesteps = self.timesteps_schedule()
        sigmas, noise = self.karras_schedule(), torch.randn_like(batch[0])
        t = torch.randint(0, self.num_timesteps - 1, (len(noise),))
        next_x = batch[0] + sigmas[t + 1].view(-1, 1, 1, 1) * noise
        current_x = batch[0] + sigmas[t].view(-1, 1, 1, 1) * noise
        with torch.no_grad():
            target = self.consistency(self.teacher_model, current_x, sigmas[t])
        return F.mse_loss(self.consistency(self.student_model, next_x, sigmas[t + 1]), target)

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        rate = self.ema_decay_rate()
        weights = zip(self.teacher_model.parameters(), self.student_model.parameters(), strict=True)
        for teacher_weight, student_weight in weights:
            teacher_weight.mul_(rate).add_(student_weight, alpha=1 - rate)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.student_model.parameters(), lr=0.05)


class EDM(L.LightningModule):
    """Karras et al. 2022: learning rate and average both ramp up with `cur_nimg`, the images seen so far."""

    def __init__(
        self, lr_rampup_nimg: int = 60, ema_halflife_nimg: float = 40.0, ema_rampup_ratio: float = 0.3
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.lr_rampup_nimg, self.ema_halflife_nimg = lr_rampup_nimg, ema_halflife_nimg
        self.ema_rampup_ratio, self.cur_nimg = ema_rampup_ratio, 0
        self.net = TimedNet()
        self.ema = copy.deepcopy(self.net).eval().requires_grad_(False)

    def loss_fn(self, images: Tensor, P_mean: float = -1.2, P_std: float = 1.2, sigma_data: float = 0.5) -> Tensor:
        sigma = (torch.randn([len(images), 1, 1, 1]) * P_std + P_mean).exp()
        weight = (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2
        noisy = images + torch.randn_like(images) * sigma
        c_skip = sigma_data**2 / (sigma**2 + sigma_data**2)
        c_out, c_in = sigma * sigma_data / (sigma**2 + sigma_data**2).sqrt(), 1 / (sigma_data**2 + sigma**2).sqrt()
        denoised = c_skip * noisy + c_out * self.net(c_in * noisy, sigma.flatten().log() / 4)
        return (weight * (denoised - images) ** 2).mean()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer, size = self.optimizers(), len(batch[0])
        optimizer.zero_grad(set_to_none=True)
        self.manual_backward(self.loss_fn(batch[0]))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(self.cur_nimg / max(self.lr_rampup_nimg, 1e-8), 1)
        optimizer.step()
        halflife = min(self.ema_halflife_nimg, self.cur_nimg * self.ema_rampup_ratio)
        ema_beta = 0.5 ** (size / max(halflife, 1e-8))
        for p_ema, p_net in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            p_ema.copy_(p_net.detach().lerp(p_ema, ema_beta))
        self.cur_nimg += size

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.02)


CASES = [
    Case(
        "Latent diffusion",
        "CompVis/latent-diffusion, ldm/models/diffusion/ddpm.py",
        "LitEma, scale measured on the first batch, frozen first stage",
        LatentDiffusion,
        moves=("model_ema.num_updates", "model_ema.enterweight", "scale_factor"),
        python=("logvar",),
    ),
    Case(
        "Denoising diffusion",
        "denoising-diffusion-pytorch, ema-pytorch",
        "EMA with flag and counter, constants",
        Lucidrains,
        moves=("ema.step", "ema.initted", "ema.ema_model.model.init_conv.weight"),
        interval=3,
    ),
    Case("DDPM", "diffusers, examples/unconditional_image_generation", "schedule by steps", DiffusersDDPM, interval=3),
    Case(
        "Score SDE",
        "yang-song/score_sde_pytorch, losses.py and models/ema.py",
        "list of tensors and counters in a dictionary",
        ScoreSDE,
        rules={"state.ema.shadow_params*": "mean"},
        moves=("state.ema.shadow_params", "state.ema.num_updates", "state.step"),
        python=("state.ema.shadow_params", "state.ema.num_updates", "state.step"),
    ),
    Case(
        "Consistency model",
        "Song et al. 2023; Kinyugo/consistency_models",
        "teacher, schedules by global_step",
        ConsistencyModel,
        moves=("teacher_model.enter.weight",),
        python=("num_timesteps",),
    ),
    Case(
        "EDM",
        "NVlabs/edm, training/training_loop.py",
        "frozen copy, Python counter",
        EDM,
        moves=("ema.enter.weight", "cur_nimg"),
        python=("cur_nimg",),
    ),
]
