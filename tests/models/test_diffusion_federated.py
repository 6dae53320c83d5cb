"""DDPM, flow matching and EDM over clients: loops by hand, seeds, resuming, what travels, and Flower."""

import copy
import logging

import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.federated import ExponentialDecay, FedAvgStrategy, VectorisedTurns
from fedgen.io.files import in_bytes
from fedgen.models import DDPM, EDM, FlowMatching
from fedgen.models.diffusion.diffusion_process import Diffusion, NoiseSchedule
from fedgen.models.diffusion.flow_matching import FlowPath, couple
from fedgen.models.diffusion.lora import LoRA
from fedgen.models.networks import UNet
from fedgen.seeds import seed_all
from tests.flower.runs import deploy, recipe, same_weights, simulate, write_images
from tests.trainers import quiet_trainer, same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|exists and is not)")

SCHEDULE = NoiseSchedule(timesteps=10)
KINDS = {
    "ddpm": (DDPM, {"schedule": SCHEDULE}),
    "flow": (FlowMatching, {"coupling": "optimal-transport"}),
    "edm": (EDM, {}),
}
NAMES = list(KINDS)
CONTINUOUS = ["flow", "edm"]  # in time


@pytest.fixture
def train(tmp_path):
    """Trains over three clients of a class each, two iterations a round."""

    def train(module, rounds, seed=0, ckpt_path=None, **options):
        draws = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=draws)
        examples = Examples(images, torch.tensor([0] * 6 + [1] * 4 + [2] * 2), "noise/train", ("a", "b", "c"))
        trainer = quiet_trainer(rounds, strategy=FedAvgStrategy(2, seed=seed, **options), default_root_dir=tmp_path)
        data = FederatedDataModule(examples, ByClass(), batch_size=2, held_out=0.0, seed=0)
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return trainer

    return train


def make(name, num_classes=None, **options):
    torch.manual_seed(0)
    network = UNet(8, 1, (8,), 1, (), num_classes=num_classes)
    torch.nn.init.normal_(network.body.conv_out.weight, std=0.1)
    kind, own = KINDS[name]
    return kind(network, **own, **options)


def ddpm_loss(network, images):
    timesteps = torch.randint(10, (len(images),))
    noise = torch.randn_like(images)
    noisy = Diffusion(SCHEDULE, "epsilon").add_noise(images, noise, timesteps)
    return torch.nn.functional.mse_loss(network(noisy, timesteps), noise)


def flow_loss(network, images):
    times = torch.rand(len(images))
    noise = couple(images, torch.randn_like(images))
    predicted = network(FlowPath().at(times, images, noise), 1000 * times)
    return torch.nn.functional.mse_loss(predicted, images - noise)


def edm_loss(network, images):
    sigma = (-1.2 + 1.2 * torch.randn(len(images))).exp()
    wide = sigma.view(-1, 1, 1, 1)
    noisy = images + wide * torch.randn_like(images)
    root = (wide**2 + 0.5**2).sqrt()
    target = (images - 0.5**2 / (wide**2 + 0.5**2) * noisy) / (wide * 0.5 / root)
    return torch.nn.functional.mse_loss(network(1 / root * noisy, sigma.log() / 4), target)


LOSSES = {"ddpm": ddpm_loss, "flow": flow_loss, "edm": edm_loss}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_round_is_the_mean_of_clients_own_loops(name, train):
    """Each client's warm-up counts its own iterations, the average moves once."""
    module = make(name, lr=0.01, warmup=4, ema_decay=0.5, ema_warmup=False)
    start = copy.deepcopy(module.network).train()
    clients = train(module, 1).datamodule.clients
    mean = [torch.zeros_like(parameter) for parameter in start.parameters()]
    for index, client in enumerate(clients):
        network = copy.deepcopy(start)
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        turn = Turn(client.data, client.train, 2, 0, index, client.name, 0)
        seed_all(0, "turn", 0, index)
        for step, (images, _) in enumerate(turn.batches(2)):
            optimizer.param_groups[0]["lr"] = 0.01 * (step + 1) / 4
            optimizer.zero_grad()
            LOSSES[name](network, images).backward()
            optimizer.step()
        for total, parameter in zip(mean, network.parameters()):
            total += parameter.detach() * len(client.train) / 12
    for mine, expected in zip(module.network.parameters(), mean):
        assert torch.allclose(mine, expected, atol=1e-6)
    for average, first, last in zip(module.averaged.parameters(), start.parameters(), mean):
        assert torch.allclose(average, 0.25 * first + 0.75 * last, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_alone_is_a_plain_loop_to_the_bit(name, train):
    module = make(name, lr=0.01, ema_decay=None)
    network = copy.deepcopy(module.network).train()
    trainer = train(module, 2, cohort_size=1, optimizer_state="keep")
    optimizers = {}
    for round in range(2):
        index = trainer.strategy.sample_cohort(3, round)[0]
        client = trainer.datamodule.clients[index]
        optimizer = optimizers.setdefault(index, torch.optim.Adam(network.parameters(), lr=0.01, fused=True))
        seed_all(0, "turn", round, index)
        for images, _ in Turn(client.data, client.train, 2, 0, index, client.name, round).batches(2):
            optimizer.zero_grad()
            LOSSES[name](network, images).backward()
            optimizer.step()
    assert same_state(module.network, network)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_does_not(train):
    made = []
    for seed in (0, 0, 1):
        made.append(make("flow", num_classes=3, flips=True))
        train(made[-1], 1, seed)
        torch.rand(5)  # what happens between the runs does not matter
    assert same_state(made[0], made[1])
    assert not same_state(made[0], made[2])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), [("ddpm", "reset"), ("flow", "average")])
def test_resuming_ends_with_the_same_weights_to_the_bit(name, state, train, tmp_path):
    """An EDM does in latents, see test_latent_diffusion.py."""
    options = {"warmup": 5, "ema_decay": 0.9, "num_classes": 3}
    whole, part, resumed = (make(name, **options) for _ in range(3))
    federated = {"optimizer_state": state, "cohort_size": 2}
    train(whole, 2, **federated)
    train(part, 1, **federated).save_checkpoint(tmp_path / "one.ckpt")
    train(resumed, 2, ckpt_path=tmp_path / "one.ckpt", **federated)
    assert same_state(whole, resumed)
    assert not same_state(whole, part)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_in_half_precision_times_and_noise_are_drawn_in_full(name, fit):
    """As under "bf16-true", which hands on images in half precision and makes it the default type of draws."""
    module, seen = make(name), []
    hook = module.network.register_forward_pre_hook(lambda network, given: seen.append([one.dtype for one in given]))
    before = torch.cat([parameter.detach().flatten() for parameter in module.network.parameters()])
    trainer = fit(module, batches=2, precision="bf16-true")
    hook.remove()
    assert seen == [[torch.bfloat16, torch.float32]] * 2
    assert torch.isfinite(trainer.callback_metrics["loss"])
    after = torch.cat([parameter.detach().flatten() for parameter in module.network.parameters()])
    assert not torch.equal(after.float(), before)
    assert torch.isfinite(module.sample(2, torch.Generator().manual_seed(0), steps=2)).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_counted_over_clients_and_the_average_does_not_travel(name, train):
    module = make(name, num_classes=3)
    trainer = train(module, 1, cohort_size=1)
    assert module.label_frequencies.counts.tolist() == [6, 4, 2]
    assert {key.split(".")[0] for key in trainer.strategy.exchange.live} == {"network"}


@pytest.mark.parametrize("name", NAMES)
def test_adapters_alone_train_and_travel_and_the_bytes_are_told(name, train, caplog):
    module = make(name, lora=LoRA(rank=2), ema_decay=None)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with caplog.at_level(logging.INFO):
        exchange = train(module, 1, cohort_size=1).strategy.exchange
    adapters = {key: parameter for key, parameter in module.named_parameters() if "lora_" in key}
    assert {key for key, value in module.state_dict().items() if not torch.equal(value, before[key])} == set(adapters)
    assert exchange.shared.keys() == adapters.keys()
    assert exchange.num_bytes == 4 * sum(parameter.numel() for parameter in adapters.values())
    sent = in_bytes(exchange.num_bytes)
    whole = in_bytes(4 * sum(parameter.numel() for parameter in module.network.parameters()))
    assert f"each client sends {sent} a round" in caplog.text
    assert f"adapters alone train: {sent} of the network's {whole}" in caplog.text


@pytest.mark.slow
def test_over_flower_it_is_the_simulations_model(tmp_path):
    """An EDM's is in latents, see test_latent_diffusion.py."""
    kind, own = KINDS["flow"]
    unet = {"image_size": 8, "channels": 1, "widths": [8], "layers": 1, "attention": []}
    network = {"class_path": "fedgen.models.networks.UNet", "init_args": unet}
    model = {"class_path": f"fedgen.models.{kind.__name__}", "init_args": {"network": network, **own}}
    images, settings = write_images(tmp_path / "clients", {"a": 12, "b": 25}), recipe(2, model=model)
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(settings, images, tmp_path / "deployed")
    assert deployed["fedavg"]["left_out"] == []
    same_weights(simulated, deployed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "together"), [("ddpm", None), ("flow", VectorisedTurns(always=True))], ids=["one by one", "at once"]
)
def test_a_warm_up_leaves_the_strategys_schedule_its_effect(train, name, together):
    """A warm-up of one iteration is over as soon as it begins, so training is that without one."""
    found = []
    for warmup, schedule in ((0, ExponentialDecay(0.1, rounds=1)), (1, ExponentialDecay(0.1, rounds=1)), (1, None)):
        module = make(name, lr=0.01, warmup=warmup)
        train(module, 2, client_schedule=schedule, vectorised_turns=together, cohort_size=2)
        found.append(module)
    assert same_state(found[0], found[1])
    assert not same_state(found[1], found[2])
