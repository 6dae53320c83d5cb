"""A client that is left out of a round leaves no trace in the round's means, whatever the model."""

import math

import pytest
import torch

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.models import GAN, FineTuning, Glow, Hinge
from fedgen.models.networks import GlowNetwork, SmallCritic, SmallGenerator
from tests.models.test_gan_games import train

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|is left out)")


def in_pixels():
    return EmbeddedLoss(FastFIDLoss(), ["pixels"])


def gan(**options):
    networks = SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2)
    return GAN(*networks, Hinge(), n_critic=1, generator_losses=[in_pixels()], **options)


MODELS = {
    "ddpm": lambda make_ddpm: make_ddpm(),
    "gan": lambda make_ddpm: gan(),
    "server": lambda make_ddpm: gan(generator_trained_by="server"),
    "fine-tuning": lambda make_ddpm: FineTuning(SmallGenerator(latent_dim=3, width=2), [in_pixels()], batch=4),
    "glow": lambda make_ddpm: Glow(GlowNetwork(depth=1, width=4, bits=4), generator_losses=[in_pixels()]),
}


class Poisoning(ClientAlgorithm):
    """The last client's weights are NaN before its first iteration."""

    @torch.no_grad()
    def start_turn(self, client, model, server):
        for tensor in model.values() if client == 4 else ():
            tensor.fill_(math.nan)


@pytest.mark.parametrize("name", MODELS)
def test_its_values_are_not_in_the_means(make_ddpm, name, tmp_path):
    torch.manual_seed(0)
    trainer = train(MODELS[name](make_ddpm), tmp_path, strategy=FedAvgStrategy(1, seed=0, client_algorithm=Poisoning()))
    assert [left["client"] for left in trainer.strategy.left_out] == [4]
    logged = trainer.callback_metrics
    assert len(logged) >= 1
    assert all(torch.isfinite(value) for value in logged.values()), logged
    assert ("generator_loss" in logged) is (name in ("gan", "server", "fine-tuning"))
    assert ("fid_loss/pixels" in logged) is (name != "ddpm")
