"""One tiny model of each class that a folder may hold, and a run that trained one of them."""

import pytest
import torch

import fedgen
from fedgen.models import (
    DDPM,
    EDM,
    GAN,
    VAE,
    WGANGP,
    CharacterLSTM,
    CharacterTransformer,
    DistributedFineTuning,
    FineTuning,
    FlowMatching,
    StyleGAN2,
)
from fedgen.models.adversarial import Hinge
from fedgen.models.diffusion.diffusion_process import NoiseSchedule
from fedgen.models.networks import AutoencoderKL, SmallCritic, SmallGenerator, UNet
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from tests.trainers import quiet_trainer


def pair():
    return {"generator": SmallGenerator(latent_dim=3, width=2), "critic": SmallCritic(width=2)}


def styled():
    sizes = {"image_size": 8, "channels": 1, "channel_base": 32, "channel_max": 4}
    return {
        "generator": StyleGAN2Generator(latent_dim=4, style_dim=4, mapping_layers=1, **sizes),
        "critic": StyleGAN2Discriminator(**sizes),
    }


MAKERS = {
    "WGANGP": lambda: WGANGP(**pair(), ema_decay=0.9),
    "GAN": lambda: GAN(**pair(), loss=Hinge()),
    "DDPM": lambda: DDPM(UNet(8, 1, (8,), 1, ()), schedule=NoiseSchedule(timesteps=10)),
    "FlowMatching": lambda: FlowMatching(UNet(8, 1, (8,), 1, ()), coupling="optimal-transport"),
    "EDM": lambda: EDM(UNet(8, 1, (8,), 1, ()), sigma_data=0.7),
    "VAE": lambda: VAE(AutoencoderKL(8, 1, 2, (4, 4), 1)),
    "StyleGAN2": lambda: StyleGAN2(**styled()),
    "FineTuning": lambda: FineTuning(SmallGenerator(latent_dim=3, width=2), layers=["*"]),
    "DistributedFineTuning": lambda: DistributedFineTuning(WGANGP(**pair())),
    "CharacterTransformer": lambda: CharacterTransformer(length=8, width=8, layers=1, heads=2),
    "CharacterLSTM": lambda: CharacterLSTM(width=8, longest=5),
}


@pytest.fixture
def make():
    def make(name):
        torch.manual_seed(0)
        return MAKERS[name]().eval()

    return make


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run folder of four rounds with two scored checkpoints."""

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    torch.manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    examples = fedgen.Examples(images, torch.arange(40) % 2, "toy", ("zero", "one"))
    data = fedgen.FederatedDataModule(examples, fedgen.ByClass(), batch_size=4, seed=0)
    evaluation = fedgen.FederatedEvaluation(every_n_rounds=2, embeddings=["pixels"], num_images=20, report=False)
    trainer = quiet_trainer(
        4,
        strategy=fedgen.FedAvgStrategy(communication_interval=1, cohort_size=2),
        callbacks=[evaluation, fedgen.RoundCheckpoint()],
        enable_checkpointing=True,
        default_root_dir=folder,
    )
    trainer.fit(WGANGP(**pair()), data)
    return folder
