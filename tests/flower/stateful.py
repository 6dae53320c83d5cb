"""A module with state of its own, as others' have: an average, a flag, a counter, a float, a sequence, a schedule."""

import copy
import random
from typing import ClassVar

import lightning as L
import numpy as np
import torch
from torch import nn


class Stateful(L.LightningModule):
    """Learns the images' mean; every kind of state changes what it learns next."""

    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.zeros(1, 8, 8))
        self.average = copy.deepcopy(self.image).requires_grad_(False)
        self.register_buffer("initialised", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("shift", torch.zeros(1))
        self.register_buffer("constant", torch.full((1,), 0.5))
        self.steps, self.heat, self.points = 0, 1.0, torch.quasirandom.SobolEngine(1)

    def training_step(self, batch, batch_idx):
        images = batch[0]
        self.heat *= 0.8 + 0.1 * float(images.mean())
        if not self.initialised:
            self.shift.copy_(images.mean()[None])
            self.initialised.fill_(True)
        weight = 1 / (1 + self.steps) + self.constant + self.heat * float(self.points.draw(1))
        self.steps += 1
        distance = (weight * (self.image + self.shift - images).square()).mean()
        return distance + (self.image - self.average).square().sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            self.average.lerp_(self.image, 0.1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([self.image], lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def sample(self, num_images, generator=None, labels=None):
        return self.average.detach().expand(num_images, -1, -1, -1).clone()


class Second:
    """Availability of one client in the first round, of none in the second and of the others in the third."""

    def __call__(self, client, round):
        return (round, client) in {(0, 1), (2, 0), (2, 2), (2, 3)}


class Lazy(L.LightningModule):
    """Learns classes with layers that get their shapes from the first batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LazyOfTexts(Lazy):
    """The same for batches that only its clients know the form of."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["text"], batch["label"]), batch_idx)


class Averages:
    """A moving average as tensors on an object."""

    def __init__(self, parameters):
        self.shadow = [parameter.detach().clone() for parameter in parameters]


class Annealed(L.LightningModule):
    """Learns the images' mean at a temperature, towards an average; neither is in state_dict."""

    federated_rules: ClassVar[dict[str, str]] = {"heat": "mean", "average.shadow*": "mean"}

    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.zeros(1, 8, 8))
        self.heat, self.average = 1.0, Averages([self.image])

    def training_step(self, batch, batch_idx):
        self.heat *= 1 - 0.1 * float(batch[0].abs().mean())
        (shadow,) = self.average.shadow
        shadow.lerp_(self.image.detach(), 0.1)
        return self.heat * (self.image - batch[0]).square().mean() + (self.image - shadow).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.image], lr=0.1)


class Late(Annealed):
    """Whose temperature has no value before the first step."""

    def __init__(self):
        super().__init__()
        self.heat = None

    def training_step(self, batch, batch_idx):
        self.heat = 1.0 if self.heat is None else self.heat
        return super().training_step(batch, batch_idx)


class Restless(Stateful):
    """Draws from every generator, and leaves behind whatever a module can: in itself, its hooks, its batches."""

    def __init__(self):
        super().__init__()
        self.image.data.normal_()
        self.first = float(torch.rand(()))
        self.own = torch.Generator().manual_seed(1)
        self.seen, self.calls = [], 0
        self.double = lambda images: images * (1 + len(self.seen))

    def on_train_start(self):
        self.register_forward_pre_hook(lambda module, given: self.seen.append(0))

    def forward(self, images):
        return self.double(images)

    def training_step(self, batch, batch_idx):
        self.calls += 1
        images, labels = batch
        drawn = random.random() + float(np.random.rand()) + float(torch.rand(())) + self.first
        noise = torch.randn(images.shape, generator=self.own)
        loss = super().training_step([self(images) + 0.1 * drawn * noise / self.calls, labels], batch_idx)
        images.zero_(), labels.fill_(-1)
        return loss


class Failing(Restless):
    """Whose second round's turn fails at clients with few images, after it has trained."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.trainer.current_epoch == 1 and len(self.trainer.datamodule.read) < 14 and batch_idx == 1:
            raise RuntimeError("no more of this")
        return loss
