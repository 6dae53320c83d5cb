"""Modules without state of their own, and the ways in which people optimise: schedules, warm-up, closures, own loops.

Written anew after the sources named in each case, with their hooks, names of state and order of calls.
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.cases import Case, points

Batch = tuple[Tensor, Tensor]


def classifier(width: int = 8) -> nn.Module:
    """A convolutional net with BatchNorm for 8 x 8 images of three classes."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * width, 3),
    )


class LitAutoEncoder(L.LightningModule):
    """Lightning's autoencoder: flattened images through a bottleneck of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class BoltsVAE(L.LightningModule):
    """The VAE of lightning-bolts: `fc_mu`, `fc_var`, a sampled posterior and `kl_coeff`."""

    def __init__(self, kl_coeff: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.kl_coeff = kl_coeff
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.fc_mu, self.fc_var = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 64))

    def sample(self, mu: Tensor, log_var: Tensor) -> tuple[Any, Any, Tensor]:
        p = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(log_var))
        q = torch.distributions.Normal(mu, torch.exp(log_var / 2))
        return p, q, q.rsample()

    def step(self, batch: Batch, batch_idx: int) -> tuple[Tensor, dict[str, Tensor]]:
        x, _ = batch
        hidden = self.encoder(x)
        p, q, z = self.sample(self.fc_mu(hidden), self.fc_var(hidden))
        recon_loss = F.mse_loss(self.decoder(z), x.flatten(1))
        kl = torch.distributions.kl_divergence(q, p).mean() * self.kl_coeff
        return kl + recon_loss, {"recon_loss": recon_loss, "kl": kl}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, logs = self.step(batch, batch_idx)
        self.log_dict({f"train_{k}": v for k, v in logs.items()}, on_step=True, on_epoch=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class BetaVAE(L.LightningModule):
    """Burgess et al. 2018 as PyTorch-VAE has it: the capacity grows with `num_iter`, a number that the class holds
    until a loss first counts it."""

    num_iter = 0

    def __init__(self, gamma: float = 10.0, max_capacity: float = 5.0, capacity_max_iter: int = 40) -> None:
        super().__init__()
        self.gamma, self.capacity_stop = gamma, capacity_max_iter
        self.C_max = torch.Tensor([max_capacity])
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LeakyReLU())
        self.fc_mu, self.fc_var = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 64), nn.Tanh())

    def loss_function(self, recons: Tensor, x: Tensor, mu: Tensor, log_var: Tensor) -> Tensor:
        self.num_iter += 1
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        C = torch.clamp(self.C_max / self.capacity_stop * self.num_iter, 0, self.C_max.data[0])
        return F.mse_loss(recons, x) + self.gamma * 0.01 * (kld_loss - C).abs().mean()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        hidden = self.encoder(batch[0])
        mu, log_var = self.fc_mu(hidden), self.fc_var(hidden)
        z = torch.randn_like(mu) * torch.exp(0.5 * log_var) + mu
        return self.loss_function(self.decoder(z), batch[0].flatten(1), mu, log_var)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02)


class AnnealedVAE(BoltsVAE):
    """Bowman et al. 2016: the weight of the KL term follows a sigmoid of a count of steps that the module keeps."""

    def __init__(self, k: float = 0.5, x0: int = 6) -> None:
        super().__init__(kl_coeff=0.0)
        self.k, self.x0 = k, x0
        self.kl_step = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.kl_step += 1
        self.kl_coeff = float(1 / (1 + torch.tensor(-self.k * (self.kl_step - self.x0)).exp()))
        return super().training_step(batch, batch_idx)


class LitClassifier(L.LightningModule):
    """An image classifier with BatchNorm and a running accuracy (torchmetrics), logged over the epoch."""

    def __init__(self) -> None:
        from torchmetrics.classification import MulticlassAccuracy

        super().__init__()
        self.net, self.train_acc = classifier(), MulticlassAccuracy(num_classes=3)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        return F.cross_entropy(logits, y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Plateau(LitClassifier):
    """Halves its rate when the training loss no longer falls (`ReduceLROnPlateau`, as Lightning's docs have it)."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        # every loss counts as no better than the first, so that the rate falls within the few rounds of a test
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train_loss"}}


class EpochCosine(LitClassifier):
    """Cosine annealing by epochs, Lightning's default interval."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)]


class OneCycle(LitClassifier):
    """Smith and Topin 2018, a step each batch: rates and momentum both move."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.2, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class WarmUp(LitClassifier):
    """Warm-up by `trainer.global_step` in the `optimizer_step` hook, as Lightning's docs have it."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 10:
            scale = min(1.0, float(self.trainer.global_step + 1) / 10.0)
            for group in optimizer.param_groups:
                group["lr"] = scale * 0.05


class LastBatchSchedule(LitClassifier):
    """Manual optimisation whose schedule moves `if self.trainer.is_last_batch`, as Lightning's docs have it."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        schedule = self.lr_schedulers()
        if self.trainer.is_last_batch and (self.trainer.current_epoch + 1) % 1 == 0:
            schedule.step()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.3)]


class ManualAccumulation(LitClassifier):
    """Accumulates gradients over N batches by hand and steps the rest at an epoch's end (Lightning's docs)."""

    N = 2

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx) / self.N
        self.manual_backward(loss)
        if (batch_idx + 1) % self.N == 0 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()


class LBFGSRegression(L.LightningModule):
    """A small regression whose closure L-BFGS calls several times a step, by automatic optimisation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x, y = batch
        return F.mse_loss(self.net(x).squeeze(1), y.float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, history_size=4)


class Compiled(LitAutoEncoder):
    """The autoencoder with its encoder compiled when it is made (names begin with `_orig_mod`)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.compile(self.encoder, backend="eager")


class WeightNormed(LitAutoEncoder):
    """Salimans and Kingma 2016 by `torch.nn.utils.parametrizations.weight_norm`."""

    def __init__(self) -> None:
        super().__init__()
        for net in (self.encoder, self.decoder):
            for part in (net[0], net[2]):
                nn.utils.parametrizations.weight_norm(part)


CASES = [
    Case("Autoencoder", "Lightning, examples/pytorch/basics/autoencoder.py", "none", LitAutoEncoder),
    Case("VAE", "lightning-bolts, models/autoencoders/basic_vae", "none", BoltsVAE),
    Case(
        "Beta-VAE with capacity",
        "PyTorch-VAE, models/beta_vae.py",
        "Python counter, held by the class at first",
        BetaVAE,
        moves=("num_iter",),
        python=("num_iter",),
    ),
    Case(
        "VAE with KL annealing",
        "Bowman et al. 2016",
        "Python counter",
        AnnealedVAE,
        moves=("kl_step",),
        python=("kl_step",),
    ),
    Case(
        "Image classifier",
        "Lightning, examples/pytorch/basics/backbone_image_classifier.py",
        "BatchNorm; torchmetrics",
        LitClassifier,
        moves=("net.1.running_mean", "net.1.num_batches_tracked"),
    ),
    Case("ReduceLROnPlateau", "Lightning docs, Optimization", "schedule by a metric", Plateau, rounds=3),
    Case("Cosine annealing", "Lightning docs, Optimization", "schedule by epochs", EpochCosine, rounds=3),
    Case("OneCycle", "Smith and Topin 2018; torch", "schedule by steps", OneCycle, rounds=3),
    Case("Warm-up by global_step", "Lightning docs, optimizer_step", "rates set by hand", WarmUp, rounds=3),
    Case("Schedule by is_last_batch", "Lightning docs, Manual optimization", "schedule by hand", LastBatchSchedule),
    Case("Accumulation by hand", "Lightning docs, Manual optimization", "gradients", ManualAccumulation, interval=5),
    Case("L-BFGS", "torch.optim.LBFGS", "closures", LBFGSRegression, points),
    Case("torch.compile", "torch", "renamed tensors", Compiled, warns=("The .grad attribute of a Tensor",)),
    Case("Weight norm", "torch.nn.utils.parametrizations", "parametrised weights", WeightNormed),
]
