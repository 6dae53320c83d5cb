"""A DDPM over clients: what travels, and that seeds and checkpoints fix the weights."""

import copy
import logging

import lightning
import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.io.files import in_bytes
from fedgen.models.fine_tuning.lora import LoRA

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|exists and is not)")


@pytest.fixture
def train(tmp_path):
    """Trains over three clients of a class each, two iterations a round."""

    def train(module, rounds, seed=0, ckpt_path=None, **options):
        draws = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=draws)
        examples = Examples(images, torch.tensor([0] * 6 + [1] * 4 + [2] * 2), "noise/train", ("a", "b", "c"))
        trainer = lightning.Trainer(
            strategy=FedAvgStrategy(2, seed=seed, **options),
            max_epochs=rounds,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        data = FederatedDataModule(examples, ByClass(), batch_size=2, held_out=0.0, seed=0)
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return trainer

    return train


def same(a, b):
    return all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())


def test_the_same_seed_gives_the_same_weights_and_another_does_not(make_ddpm, train):
    made = []
    for seed in (0, 0, 1):
        made.append(make_ddpm(num_classes=3, flips=True))
        train(made[-1], 2, seed)
        torch.rand(5)  # what happens between the runs does not matter
    assert same(made[0], made[1])
    assert not same(made[0], made[2])


@pytest.mark.parametrize("state", ["reset", "keep", "average"])
def test_resuming_ends_with_the_same_weights_to_the_bit(make_ddpm, train, tmp_path, state):
    options = {"warmup": 5, "ema_decay": 0.9, "num_classes": 3}
    whole, part, resumed = (make_ddpm(**options) for _ in range(3))
    train(whole, 4, optimizer_state=state, cohort_size=2)
    train(part, 2, optimizer_state=state, cohort_size=2).save_checkpoint(tmp_path / "two.ckpt")
    train(resumed, 4, ckpt_path=tmp_path / "two.ckpt", optimizer_state=state, cohort_size=2)
    assert same(whole, resumed)
    assert not same(whole, part)


def test_a_round_is_the_mean_of_clients_own_iterations(make_ddpm, train):
    """One round against loops by hand: each client's warm-up counts its own iterations, the average moves once."""
    from fedgen.clients.turn import Turn
    from fedgen.seeds import seed_all

    module = make_ddpm(lr=0.01, warmup=4, ema_decay=0.5, ema_warmup=False)
    start = copy.deepcopy(module.network).train()
    trainer = train(module, 1)
    clients = trainer.datamodule.clients
    mean = [torch.zeros_like(parameter) for parameter in start.parameters()]
    for index, client in enumerate(clients):
        network = copy.deepcopy(start)
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        turn = Turn(client.data, client.train, 2, 0, index, client.name, 0)
        seed_all(0, "turn", 0, index)
        for step, (images, _) in enumerate(turn.batches(2)):
            optimizer.param_groups[0]["lr"] = 0.01 * (step + 1) / 4
            timesteps = torch.randint(10, (len(images),))
            noise = torch.randn_like(images)
            noisy = module.diffusion.add_noise(images, noise, timesteps)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(noisy, timesteps), noise).backward()
            optimizer.step()
        for total, parameter in zip(mean, network.parameters()):
            total += parameter.detach() * len(client.train) / 12
    for mine, expected in zip(module.network.parameters(), mean):
        assert torch.allclose(mine, expected, atol=1e-6)
    for average, first, last in zip(module.averaged.parameters(), start.parameters(), mean):
        assert torch.allclose(average, 0.25 * first + 0.75 * last, atol=1e-6)


def test_labels_are_counted_over_clients_and_the_average_does_not_travel(make_ddpm, train):
    module = make_ddpm(num_classes=3)
    trainer = train(module, 1)
    assert module.label_frequencies.counts.tolist() == [6, 4, 2]
    assert {name.split(".")[0] for name in trainer.strategy.exchange.live} == {"network"}


def test_of_an_adapted_network_adapters_alone_travel_and_the_bytes_are_told(make_ddpm, train, caplog):
    module = make_ddpm(lora=LoRA(rank=2), ema_decay=None)
    frozen = {name: p.clone() for name, p in module.network.named_parameters() if not p.requires_grad}
    with caplog.at_level(logging.INFO):
        trainer = train(module, 1)
    exchange = trainer.strategy.exchange
    adapters = {name: p for name, p in module.named_parameters() if "lora_" in name}
    assert exchange.shared.keys() == adapters.keys()
    assert exchange.num_bytes == 4 * sum(p.numel() for p in adapters.values())
    assert all(torch.equal(p, frozen[name]) for name, p in module.network.named_parameters() if name in frozen)
    whole = 4 * sum(p.numel() for p in module.network.parameters())
    sent = in_bytes(exchange.num_bytes)
    assert f"each client sends {sent} a round" in caplog.text
    assert f"adapters alone train: {sent} of the network's {in_bytes(whole)}" in caplog.text
