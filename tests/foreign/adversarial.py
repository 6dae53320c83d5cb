"""Generative adversarial networks: pools of images, several optimizers, own optimizers, spectral norm, two time scales.

Written anew after the sources named in each case, with their hooks and names of state.
"""

import itertools
import random
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.cases import Case, images
from tests.foreign.optimisation import Batch


def translator(inputs: int = 1) -> nn.Module:
    """Images to images, with instance norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, 6, 3, 1, 1, bias=False), nn.InstanceNorm2d(6), nn.ReLU(), nn.Conv2d(6, 1, 3, 1, 1), nn.Tanh()
    )


def critic(inputs: int = 1, outputs: int = 1, wrap: Any = lambda layer: layer) -> nn.Module:
    """Images [N, inputs, 8, 8] to [N, outputs]."""
    return nn.Sequential(
        wrap(nn.Conv2d(inputs, 6, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Flatten(), wrap(nn.Linear(96, outputs))
    )


class ImagePool:
    """Generated images of before, half of which are shown to discriminators again."""

    def __init__(self, pool_size: int) -> None:
        self.pool_size = pool_size
        if self.pool_size > 0:
            self.num_imgs = 0
            self.images: list[Tensor] = []

    def query(self, images: Tensor) -> Tensor:
        if self.pool_size == 0:
            return images
        return_images = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if self.num_imgs < self.pool_size:
                self.num_imgs = self.num_imgs + 1
                self.images.append(image)
                return_images.append(image)
            elif random.uniform(0, 1) > 0.5:
                random_id = random.randint(0, self.pool_size - 1)
                tmp = self.images[random_id].clone()
                self.images[random_id] = image
                return_images.append(tmp)
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


def set_requires_grad(nets: list[nn.Module], requires_grad: bool) -> None:
    for parameter in itertools.chain(*(net.parameters() for net in nets)):
        parameter.requires_grad = requires_grad


class CycleGAN(L.LightningModule):
    """Zhu et al. 2017: two pools, discriminators frozen while generators step, rates that fall linearly by epochs. The
    two domains are an image's two channels."""

    def __init__(self, pool_size: int = 10) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.netG_A, self.netG_B, self.netD_A, self.netD_B = translator(), translator(), critic(), critic()
        self.fake_A_pool, self.fake_B_pool = ImagePool(pool_size), ImagePool(pool_size)

    @staticmethod
    def criterionGAN(prediction: Tensor, target_is_real: bool) -> Tensor:  # noqa: N802
        return F.mse_loss(prediction, torch.full_like(prediction, float(target_is_real)))

    def backward_D_basic(self, netD: nn.Module, real: Tensor, fake: Tensor) -> None:  # noqa: N802
        loss = self.criterionGAN(netD(real), True) + self.criterionGAN(netD(fake.detach()), False)
        self.manual_backward(loss * 0.5)

    def generator_loss(self, real_A: Tensor, real_B: Tensor, fake_A: Tensor, fake_B: Tensor) -> Tensor:
        cycle = F.l1_loss(self.netG_B(fake_B), real_A) + F.l1_loss(self.netG_A(fake_A), real_B)
        idt = F.l1_loss(self.netG_A(real_B), real_B) + F.l1_loss(self.netG_B(real_A), real_A)
        adversarial = self.criterionGAN(self.netD_A(fake_B), True) + self.criterionGAN(self.netD_B(fake_A), True)
        return adversarial + 10 * cycle + 5 * idt

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        real_A, real_B = batch[0].chunk(2, 1)
        optimizer_G, optimizer_D = self.optimizers()
        fake_B, fake_A = self.netG_A(real_A), self.netG_B(real_B)
        set_requires_grad([self.netD_A, self.netD_B], False)
        optimizer_G.zero_grad()
        self.manual_backward(self.generator_loss(real_A, real_B, fake_A, fake_B))
        optimizer_G.step()
        set_requires_grad([self.netD_A, self.netD_B], True)
        optimizer_D.zero_grad()
        self.backward_D_basic(self.netD_A, real_B, self.fake_B_pool.query(fake_B))
        self.backward_D_basic(self.netD_B, real_A, self.fake_A_pool.query(fake_A))
        optimizer_D.step()

    def on_train_epoch_end(self) -> None:
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self) -> Any:
        g = torch.optim.SGD(itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()), lr=0.002)
        d = torch.optim.SGD(itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()), lr=0.02)

        def lambda_rule(epoch: int, n_epochs: int = 1, n_epochs_decay: int = 2) -> float:
            return 1.0 - max(0, epoch + 1 - n_epochs) / float(n_epochs_decay + 1)

        return [g, d], [torch.optim.lr_scheduler.LambdaLR(o, lr_lambda=lambda_rule) for o in (g, d)]


class Pix2Pix(L.LightningModule):
    """Isola et al. 2017 with optimizers of its own, as pytorch-CycleGAN-and-pix2pix holds them beside the nets."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.netG, self.netD = translator(), critic(2)
        self.optimizer_G = torch.optim.SGD(self.netG.parameters(), lr=0.01, momentum=0.9)
        self.optimizer_D = torch.optim.SGD(self.netD.parameters(), lr=0.01, momentum=0.9)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        real_A, real_B = batch[0].chunk(2, 1)
        fake_B = self.netG(real_A)
        set_requires_grad([self.netD], True)
        self.optimizer_D.zero_grad()
        pred_fake, pred_real = self.netD(torch.cat((real_A, fake_B.detach()), 1)), self.netD(batch[0])
        ones, zeros = torch.ones_like(pred_real), torch.zeros_like(pred_real)
        bce = F.binary_cross_entropy_with_logits
        self.manual_backward(0.5 * (bce(pred_fake, zeros) + bce(pred_real, ones)))
        self.optimizer_D.step()
        set_requires_grad([self.netD], False)
        self.optimizer_G.zero_grad()
        gan_loss = bce(self.netD(torch.cat((real_A, fake_B), 1)), ones)
        self.manual_backward(gan_loss + 10 * F.l1_loss(fake_B, real_B))
        self.optimizer_G.step()

    def configure_optimizers(self) -> None:
        return None


class StarGAN(L.LightningModule):
    """Choi et al. 2018: labels beside the image, a gradient penalty, generator steps each `n_critic` iterations, and
    rates that the module lowers by hand."""

    def __init__(self, c_dim: int = 3, n_critic: int = 2) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.c_dim, self.n_critic, self.g_lr, self.d_lr = c_dim, n_critic, 0.01, 0.02
        self.G, self.D = translator(1 + c_dim), critic(1, 1 + c_dim)

    def generate(self, x: Tensor, c: Tensor) -> Tensor:
        return self.G(torch.cat([x, c.view(*c.shape, 1, 1).expand(-1, -1, *x.shape[2:])], dim=1))

    def gradient_penalty(self, x_hat: Tensor) -> Tensor:
        y = self.D(x_hat)[:, :1]
        dydx = torch.autograd.grad(y, x_hat, torch.ones_like(y), create_graph=True)[0]
        return torch.mean((dydx.flatten(1).square().sum(1).sqrt() - 1) ** 2)

    def update_lr(self, g_lr: float, d_lr: float) -> None:
        for optimizer, lr in zip(self.optimizers(), (g_lr, d_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        x_real, label_org = batch
        label_trg = label_org[torch.randperm(label_org.size(0))]
        c_org, c_trg = F.one_hot(label_org, self.c_dim).float(), F.one_hot(label_trg, self.c_dim).float()
        g_optimizer, d_optimizer = self.optimizers()
        out, x_fake = self.D(x_real), self.generate(x_real, c_trg)
        alpha = torch.rand(x_real.size(0), 1, 1, 1)
        x_hat = (alpha * x_real.data + (1 - alpha) * x_fake.data).requires_grad_(True)
        d_loss = self.D(x_fake.detach())[:, 0].mean() - out[:, 0].mean()
        d_loss = d_loss + F.cross_entropy(out[:, 1:], label_org) + 10 * self.gradient_penalty(x_hat)
        d_optimizer.zero_grad()
        self.manual_backward(d_loss)
        d_optimizer.step()
        if (batch_idx + 1) % self.n_critic == 0:
            x_fake = self.generate(x_real, c_trg)
            out, x_reconst = self.D(x_fake), self.generate(x_fake, c_org)
            g_loss = -out[:, 0].mean() + 10 * (x_real - x_reconst).abs().mean() + F.cross_entropy(out[:, 1:], label_trg)
            g_optimizer.zero_grad()
            self.manual_backward(g_loss)
            g_optimizer.step()
        self.g_lr, self.d_lr = self.g_lr - 0.0005, self.d_lr - 0.001
        self.update_lr(self.g_lr, self.d_lr)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.G.parameters(), self.g_lr), torch.optim.SGD(self.D.parameters(), self.d_lr)]


class LightningGAN(L.LightningModule):
    """Lightning's GAN: manual optimisation with `toggle_optimizer`, and noise to look at that is an attribute."""

    def __init__(self, latent_dim: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(latent_dim, 16, bias=False),
            nn.BatchNorm1d(16, 0.8),
            nn.LeakyReLU(0.2),
            nn.Linear(16, 64),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.validation_z = torch.randn(4, latent_dim)
        self.example_input_array = torch.zeros(2, latent_dim)

    def forward(self, z: Tensor) -> Tensor:
        return self.generator(z)

    def adversarial_loss(self, y_hat: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch: Batch) -> None:
        imgs, _ = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(imgs.shape[0], self.hparams.latent_dim).type_as(imgs)
        valid, fake = torch.ones(imgs.size(0), 1).type_as(imgs), torch.zeros(imgs.size(0), 1).type_as(imgs)
        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), valid)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(imgs), valid)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), fake)
        self.manual_backward((real_loss + fake_loss) / 2)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=0.0002, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999)),
        ], []


class SNGAN(L.LightningModule):
    """Miyato et al. 2018 with the two time scales of Heusel et al. 2017: hinge losses and hooks of spectral norm, whose
    `weight_u` and `weight_v` are buffers."""

    def __init__(self, z_dim: int = 8, n_dis: int = 2) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.z_dim, self.n_dis = z_dim, n_dis
        self.generator = nn.Sequential(nn.Linear(z_dim, 16), nn.ReLU(), nn.Linear(16, 64), nn.Tanh())
        self.discriminator = critic(wrap=nn.utils.spectral_norm)

    def fake(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, self.z_dim)).view(-1, 1, 8, 8)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        opt_g, opt_d = self.optimizers()
        real = batch[0]
        loss_d = (
            F.relu(1 - self.discriminator(real)).mean()
            + F.relu(1 + self.discriminator(self.fake(len(real)).detach())).mean()
        )
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()
        if batch_idx % self.n_dis == 0:
            opt_g.zero_grad()
            self.manual_backward(-self.discriminator(self.fake(len(real))).mean())
            opt_g.step()

    def configure_optimizers(self) -> Any:
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
        return opt_g, torch.optim.Adam(self.discriminator.parameters(), lr=4e-4, betas=(0.0, 0.9))


class ParametrisedSNGAN(SNGAN):
    """The same with today's spectral norm, a parametrisation with buffers `_u` and `_v`."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = critic(wrap=nn.utils.parametrizations.spectral_norm)


class PathLengthGAN(L.LightningModule):
    """Karras et al. 2020 as lucidrains/stylegan2-pytorch has it: a lazy path-length penalty against `pl_mean`, which is
    None, then a tensor beside the buffers, counted by `steps`; and an average of the generator."""

    def __init__(self, z_dim: int = 6, every: int = 2) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.z_dim, self.every, self.steps = z_dim, every, 0
        self.pl_mean: Tensor | None = None
        self.G = nn.Sequential(nn.Linear(z_dim, 12), nn.Softplus(), nn.Linear(12, 64))
        self.GE = nn.Sequential(nn.Linear(z_dim, 12), nn.Softplus(), nn.Linear(12, 64))
        self.GE.load_state_dict(self.G.state_dict())
        self.GE.requires_grad_(False)
        self.D = nn.Sequential(nn.Linear(64, 12), nn.Softplus(), nn.Linear(12, 1))

    @torch.no_grad()
    def ema_inplace(self, beta: float = 0.9) -> None:
        for average, weight in zip(self.GE.parameters(), self.G.parameters(), strict=True):
            average.data = average.data * beta + (1 - beta) * weight.data

    def path_lengths(self, styles: Tensor, fakes: Tensor) -> Tensor:
        noise = torch.randn(fakes.shape) / 8
        gradients = torch.autograd.grad((fakes * noise).sum(), styles, create_graph=True)[0]
        return (gradients**2).sum(dim=1).sqrt()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        opt_g, opt_d = self.optimizers()
        real, apply_path_penalty = batch[0].flatten(1), self.steps % self.every == 0
        z = torch.randn(len(real), self.z_dim)
        opt_d.zero_grad()
        self.manual_backward((F.relu(1 + self.D(real)) + F.relu(1 - self.D(self.G(z).detach()))).mean())
        opt_d.step()
        opt_g.zero_grad()
        styles = torch.randn(len(real), self.z_dim).requires_grad_(True)
        fakes = self.G(styles)
        loss = self.D(fakes).mean()
        if apply_path_penalty:
            pl_lengths = self.path_lengths(styles, fakes)
            if self.pl_mean is not None:
                loss = loss + 10 * ((pl_lengths - self.pl_mean) ** 2).mean()
            average = pl_lengths.detach().mean()
            self.pl_mean = average if self.pl_mean is None else self.pl_mean * 0.9 + average * 0.1
        self.manual_backward(loss)
        opt_g.step()
        self.ema_inplace()
        self.steps += 1

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.G, self.D)]


def two_channels() -> Any:
    """Images of two channels, a domain each."""
    return images(2)


ZHU = "junyanz/pytorch-CycleGAN-and-pix2pix"
CASES = [
    Case(
        "CycleGAN, pools kept by clients",
        f"{ZHU}, models/cycle_gan_model.py, util/image_pool.py",
        "pools of images, schedules by epochs",
        CycleGAN,
        two_channels,
        rules={"fake_?_pool.*": "personal"},
        interval=3,
    ),
    Case(
        "CycleGAN, nothing declared",
        f"{ZHU}, models/cycle_gan_model.py, util/image_pool.py",
        "pools of images and their lengths, reset together",
        CycleGAN,
        two_channels,
        interval=3,
    ),
    Case(
        "pix2pix",
        f"{ZHU}, models/pix2pix_model.py",
        "own optimizers, reset",
        Pix2Pix,
        two_channels,
        warns=("`LightningModule.configure_optimizers` returned `None`",),
    ),
    Case(
        "StarGAN",
        "yunjey/stargan, solver.py",
        "rates lowered by hand, n_critic by batch_idx",
        StarGAN,
        rules={"?_lr": "mean"},
        moves=("g_lr", "d_lr"),
        python=("g_lr", "d_lr"),
        interval=5,
    ),
    Case(
        "GAN",
        "Lightning, examples/pytorch/domain_templates/generative_adversarial_net.py",
        "BatchNorm",
        LightningGAN,
        moves=("generator.1.running_mean",),
    ),
    Case(
        "SNGAN with TTUR",
        "Miyato et al. 2018, Heusel et al. 2017; torch.nn.utils.spectral_norm",
        "vectors of power iterations",
        SNGAN,
        moves=("discriminator.0.weight_u",),
        interval=5,
    ),
    Case(
        "SNGAN, parametrised",
        "torch.nn.utils.parametrizations.spectral_norm",
        "vectors of power iterations",
        ParametrisedSNGAN,
        moves=("discriminator.0.parametrizations.weight.0._u",),
        interval=5,
    ),
    Case(
        "StyleGAN2's path lengths and average",
        "lucidrains/stylegan2-pytorch",
        "frozen copy, a tensor that was None, Python counter",
        PathLengthGAN,
        moves=("GE.0.weight", "steps"),
        python=("steps",),
    ),
]
