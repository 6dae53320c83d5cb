"""A pretrained generator trained on scores alone: where it comes from, what trains, and how a step is made."""

import lightning as L
import pytest
import torch
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, FastFIDLoss
from fedgen.models import FineTuning
from fedgen.models.networks import SmallGenerator
from tests.losses.simple import MeanLoss, two_numbers

FIRST = "body.0.*"


def network():
    """The same weights each time."""
    torch.manual_seed(0)
    return SmallGenerator(latent_dim=3, width=4)


def embedded(aggregate="all", **options):
    return EmbeddedLoss(MeanLoss(aggregate), [two_numbers()], **options)


def make(**arguments):
    return FineTuning(
        **({"generator": network(), "generator_losses": [embedded()], "batch": 8, "lr": 0.02} | arguments)
    )


def train(module, tmp_path, rounds=1, strategy=None, interval=2, **options):
    """Fits over digits with two classes a client: by FedAvg, or on the pooled data for strategy "auto"."""
    strategy = strategy or FedAvgStrategy(communication_interval=interval, seed=0)
    more = {"iterations": 2} if strategy == "auto" else {}
    data = FederatedDataModule(Digits(), ByClass(classes_per_client=2), batch_size=8, seed=0, **more)
    trainer = L.Trainer(
        strategy=strategy,
        max_epochs=rounds,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        default_root_dir=tmp_path,
        **options,
    )
    torch.manual_seed(1)
    trainer.fit(module, data)
    return trainer


def weights(generator):
    return torch.cat([p.detach().flatten() for p in generator.parameters()])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("strategy", [None, "auto"])
def test_it_moves_the_images_to_the_data_by_fedavg_and_centrally(tmp_path, strategy):
    module = make()
    before = train(module, tmp_path, strategy=strategy).callback_metrics["mean_loss/two-numbers"]
    metrics = train(module, tmp_path, rounds=20, strategy=strategy).callback_metrics
    assert metrics["mean_loss/two-numbers"] < before / 4
    assert metrics["generator_loss"] == pytest.approx(float(metrics["mean_loss/two-numbers"]), rel=1e-5)


def test_a_step_equals_a_plain_loop(tmp_path):
    module, twin = make(fixed_latents=8, seed=3), network().eval()
    latents = module.latents.clone()
    train(module, tmp_path, strategy="auto", limit_train_batches=1)
    loss = module.embedded_losses[0].losses[0]
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02, betas=(0.0, 0.9))
    value = loss(two_numbers()(twin(latents)))
    value.backward()
    optimizer.step()
    assert torch.allclose(weights(module.generator), weights(twin), atol=1e-6)
    assert not torch.allclose(weights(twin), weights(network()), atol=1e-3)
