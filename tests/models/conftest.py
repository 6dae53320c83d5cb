"""The smallest things that train: one-pixel-wide networks and a few random images."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedgen.models import DDPM, WGANGP
from fedgen.models.diffusion.diffusion_process import NoiseSchedule
from fedgen.models.networks import SmallCritic, SmallGenerator, UNet
from tests.trainers import quiet_trainer


@pytest.fixture
def make_gan():
    """A WGANGP of tiny networks, the same weights each time, with any arguments."""

    def make(**arguments):
        torch.manual_seed(0)
        networks = {"generator": SmallGenerator(latent_dim=3, width=2), "critic": SmallCritic(width=2)}
        return WGANGP(**(networks | arguments))

    return make


@pytest.fixture
def make_ddpm():
    """A DDPM of a tiny UNet and ten timesteps, the same weights each time, with any arguments."""

    def make(num_classes=None, **arguments):
        torch.manual_seed(0)
        network = UNet(8, 1, (8,), 1, (), num_classes=num_classes)
        # as it is born, a UNet's last layer hides what the others do
        torch.nn.init.normal_(network.body.conv_out.weight, std=0.1)
        return DDPM(**({"network": network, "schedule": NoiseSchedule(timesteps=10)} | arguments))

    return make


@pytest.fixture
def fit(tmp_path):
    """Trains a module on random images [2, 1, 8, 8] a batch with a stock Trainer; returns the trainer."""

    def fit(module, batches=4, epochs=1, shape=(1, 8, 8), callbacks=(), ckpt_path=None, **options):
        images = torch.rand(2 * batches, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        trainer = quiet_trainer(epochs, default_root_dir=tmp_path, callbacks=list(callbacks), **options)
        loader = DataLoader(TensorDataset(images, torch.zeros(2 * batches, dtype=torch.int64)), batch_size=2)
        trainer.fit(module, loader, ckpt_path=ckpt_path)
        return trainer

    return fit
