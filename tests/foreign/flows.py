"""Normalizing flows whose layers look at the first batch, or keep statistics of the last.

From packages by name, or written anew after the sources named in each case, with their hooks and names of state.
"""

import math
from typing import Any

import lightning as L
import normflows as nf
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.cases import Case, points
from tests.foreign.optimisation import Batch


class ActNorm(nn.Module):
    """Kingma and Dhariwal 2018 as rosinality/glow-pytorch has it: `loc` and `scale` from the first batch, and a buffer
    `initialized` (uint8) that says whether that was."""

    def __init__(self, in_channel: int) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, in_channel, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, in_channel, 1, 1))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    @torch.no_grad()
    def initialize(self, input: Tensor) -> None:
        flatten = input.permute(1, 0, 2, 3).flatten(1)
        self.loc.data.copy_(-flatten.mean(1).view(1, -1, 1, 1))
        self.scale.data.copy_(1 / (flatten.std(1).view(1, -1, 1, 1) + 1e-6))

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        if self.initialized.item() == 0:
            self.initialize(input)
            self.initialized.fill_(1)
        _, _, height, width = input.shape
        return self.scale * (input + self.loc), height * width * self.scale.abs().log().sum()


class InvConv2d(nn.Module):
    """An invertible 1 x 1 convolution, a rotation at first."""

    def __init__(self, in_channel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(in_channel, in_channel))[0][:, :, None, None])

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        _, _, height, width = input.shape
        return F.conv2d(input, self.weight), height * width * torch.slogdet(self.weight.squeeze().double())[1].float()


class AffineCoupling(nn.Module):
    """Scales and shifts one half of the channels by what a net makes of the other."""

    def __init__(self, in_channel: int, filter_size: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(in_channel // 2, filter_size, 3, 1, 1), nn.ReLU(), nn.Conv2d(filter_size, in_channel, 3, 1, 1)
        )
        self.net[2].weight.data.zero_()

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        in_a, in_b = input.chunk(2, 1)
        log_s, t = self.net(in_a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        return torch.cat([in_a, (in_b + t) * s], 1), s.log().flatten(1).sum(1)


class Glow(L.LightningModule):
    """Two steps of flow on squeezed images: ActNorm, a 1 x 1 convolution and a coupling each."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = nn.ModuleList([part for _ in range(2) for part in (ActNorm(4), InvConv2d(4), AffineCoupling(4))])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        out = F.pixel_unshuffle(batch[0] + torch.rand_like(batch[0]) / 32, 2)
        logdet = torch.zeros(len(out))
        for flow in self.flows:
            out, change = flow(out)
            logdet = logdet + change
        log_p = -0.5 * (out**2 + math.log(2 * math.pi)).flatten(1).sum(1)
        return -(log_p + logdet).mean() / 64

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class NormFlow(L.LightningModule):
    """normflows' RealNVP with its ActNorm, which puts another tensor in the place of its flag."""

    def __init__(self) -> None:
        super().__init__()
        flows: list[nn.Module] = []
        for _ in range(2):
            flows += [
                nf.flows.AffineCouplingBlock(nf.nets.MLP([3, 8, 6], init_zeros=True)),
                nf.flows.Permute(6, mode="swap"),
                nf.flows.ActNorm(6),
            ]
        self.model = nf.NormalizingFlow(nf.distributions.DiagGaussian(6), flows)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.model.forward_kld(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class BatchNormFlow(nn.Module):
    """Papamakarios et al. 2017 as ikostrikov/pytorch-flows has it: running statistics as buffers, those of the last
    batch as attributes."""

    def __init__(self, num_inputs: int, momentum: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.log_gamma, self.beta = nn.Parameter(torch.zeros(num_inputs)), nn.Parameter(torch.zeros(num_inputs))
        self.momentum, self.eps = momentum, eps
        self.register_buffer("running_mean", torch.zeros(num_inputs))
        self.register_buffer("running_var", torch.ones(num_inputs))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.batch_mean = inputs.mean(0)
        self.batch_var = (inputs - self.batch_mean).pow(2).mean(0) + self.eps
        self.running_mean.mul_(self.momentum)
        self.running_var.mul_(self.momentum)
        self.running_mean.add_(self.batch_mean.data * (1 - self.momentum))
        self.running_var.add_(self.batch_var.data * (1 - self.momentum))
        hat = (inputs - self.batch_mean) / self.batch_var.sqrt()
        return torch.exp(self.log_gamma) * hat + self.beta, (self.log_gamma - 0.5 * torch.log(self.batch_var)).sum()


class MAF(L.LightningModule):
    """An autoregressive layer and a BatchNormFlow, twice."""

    def __init__(self, num_inputs: int = 6) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(0.1 * torch.randn(num_inputs, num_inputs)) for _ in range(2)])
        self.norms = nn.ModuleList([BatchNormFlow(num_inputs) for _ in range(2)])
        self.register_buffer("mask", torch.tril(torch.ones(num_inputs, num_inputs), -1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        u, logdet = batch[0], torch.zeros(())
        for weight, norm in zip(self.weights, self.norms, strict=True):
            u, change = norm(u - F.linear(u, weight * self.mask))
            logdet = logdet + change
        return (0.5 * (u**2 + math.log(2 * math.pi)).sum(1)).mean() - logdet

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


CASES = [
    Case(
        "Glow",
        "rosinality/glow-pytorch, model.py",
        "ActNorm's flag (uint8)",
        Glow,
        moves=("flows.0.initialized", "flows.0.loc"),
    ),
    Case(
        "RealNVP with ActNorm",
        "normflows",
        "ActNorm's flag (a floating buffer that is replaced)",
        NormFlow,
        points,
        moves=("model.flows.2.data_dep_init_done",),
    ),
    Case(
        "MAF with BatchNorm flow",
        "ikostrikov/pytorch-flows, flows.py",
        "running statistics; tensors of the last batch as attributes",
        MAF,
        points,
        moves=("norms.0.running_mean",),
    ),
]
