"""Rounds on a GPU: the CPU's to rounding, themselves to the bit, also after a resume; memory, precision, transfers."""

import gc
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedgen.callbacks import RoundCheckpoint
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.federated import FedAdam, FedAvgStrategy, Median, Scaffold, VectorisedTurns
from fedgen.federated.compression import TopK
from fedgen.models import DDPM, WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator, UNet
from tests.devices import DEVICES, GPU, TWO_GPUS, on
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights
from tests.federated.rank_runs import SCRIPT_ON, pictures
from tests.launched import end, start

INTERVAL, ROUNDS = 4, 3
STRATEGIES = {
    "plain": {},
    "server-adam": {"server_optimizer": lambda p: FedAdam(p, lr=0.05), "cohort_size": 2},
    "kept": {"optimizer_state": "keep", "personal": ["net.4.*"]},
    "scaffold": {"client_algorithm": Scaffold()},
    "median": {"aggregator": Median()},
    # both rows of the last layer and its bias move alike: a share that keeps one of a pair hangs on rounding
    "sparse": {"compression": TopK(0.6)},
}


class Still(Automatic):
    """Draws nothing, so that all devices compute the same."""

    def __init__(self):
        super().__init__("SGD")
        self.net[3] = nn.Identity()


def train(make, device, rounds=ROUNDS, data=None, ckpt_path=None, callbacks=(), trainer=None, **options):
    torch.manual_seed(0)
    module = make()
    strategy = FedAvgStrategy(INTERVAL, seed=0, **options)
    fits = {**on(device), **(trainer or {}), "enable_checkpointing": bool(callbacks)}
    make_trainer(strategy, rounds, callbacks=list(callbacks), **fits).fit(
        module, data or make_data(), ckpt_path=ckpt_path
    )
    return module


def gan():
    return WGANGP(SmallGenerator(width=4), SmallCritic(width=4), n_critic=2, ema_decay=0.9)


def diffusion():
    return DDPM(UNet(image_size=8, channels=1, widths=[8], layers=1, attention=[]), lr=1e-3)


def of_pictures():
    return FederatedDataModule(pictures(), Natural(), 8, held_out=0.0, seed=1)


def on_cpu(module):
    return {name: value.cpu() for name, value in weights(module).items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_device_trains_the_cpus_model(name, device):
    expected = on_cpu(train(Still, "cpu", **STRATEGIES[name]))
    found = on_cpu(train(Still, device, **STRATEGIES[name]))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@cache
def trained(make, data, device):
    """Weights after two rounds in full precision."""
    return on_cpu(train(make, device, 2, data()))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make", "data"),
    [
        (Automatic, make_data),
        (Manual, make_data),
        (TwoOptimizers, make_data),
        (gan, of_pictures),
        (diffusion, of_pictures),
    ],
)
def test_a_training_repeats_itself_to_the_bit(make, data, device, deterministic):
    assert same(trained(make, data, device), on_cpu(train(make, device, 2, data())))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_a_resumed_training_ends_with_the_same_bits(mode, device, tmp_path, deterministic):
    options = {"optimizer_state": mode, "server_optimizer": lambda p: FedAdam(p, lr=0.1), "cohort_size": 2}
    whole = train(Automatic, device, 3, **options)
    train(Automatic, device, 2, callbacks=[RoundCheckpoint(tmp_path, every_n_rounds=1)], **options)
    resumed = train(Automatic, device, 3, ckpt_path=tmp_path / "last.ckpt", **options)
    assert same(on_cpu(whole), on_cpu(resumed))


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_one_device_is_read_on_the_cpu(device, tmp_path):
    trained = train(gan, device, 1, of_pictures(), callbacks=[RoundCheckpoint(tmp_path, every_n_rounds=1)])
    read = WGANGP.load_from_checkpoint(tmp_path / "last.ckpt", map_location="cpu", weights_only=True)
    assert same(on_cpu(trained), weights(read))
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    torch.testing.assert_close(trained.cpu().sample(4, draws[0]), read.sample(4, draws[1]))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [gan, diffusion])
def test_mixed_precision_trains_near_full_precision_and_keeps_full_weights(make, device):
    full = trained(make, of_pictures, device)
    mixed = on_cpu(train(make, device, 2, of_pictures(), trainer={"precision": "bf16-mixed"}))
    assert {value.dtype for value in mixed.values()} == {value.dtype for value in full.values()}
    moved = {name for name, value in full.items() if not torch.equal(mixed[name], value)}
    assert moved  # it really ran in half precision
    for name, value in full.items():
        torch.testing.assert_close(mixed[name], value, rtol=0.05, atol=0.02, msg=name)


@pytest.mark.parametrize("device", DEVICES)
def test_batches_of_loaders_arrive_whole_pinned_or_not(device):
    """Copies from pinned memory go on beside the steps: none may be read before it has arrived."""
    draws = torch.Generator().manual_seed(1)
    sets = [TensorDataset(torch.randn(16, 3, generator=draws), torch.arange(16) % 2) for _ in range(3)]

    def loaded(pinned):
        clients = {f"client {k}": DataLoader(own, batch_size=8, pin_memory=pinned) for k, own in enumerate(sets)}
        return FederatedDataModule(clients, held_out=0.0, seed=0)

    pinned = device == "cuda"
    expected = on_cpu(train(Still, "cpu", data=loaded(False)))
    found = on_cpu(train(Still, device, data=loaded(pinned)))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", [GPU])
def test_memory_does_not_grow_with_the_cohort_and_is_given_back(device):
    def peak(clients):
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        module = train(Wide, device, 2, make_data(sizes=(8,) * clients))
        used = torch.cuda.max_memory_allocated() - before
        del module
        gc.collect()
        assert torch.cuda.memory_allocated() - before < 2**20
        return used

    peak(2)  # libraries take their workspaces once
    few, many = peak(2), peak(12)
    assert many < 1.05 * few


class Wide(Automatic):
    """Four megabytes of weights and more."""

    def __init__(self):
        super().__init__("SGD")
        self.net = nn.Sequential(nn.Linear(3, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TWO_GPUS) for name in ("sgd", "stateful", "scaffold", "gan")]
)
def test_two_gpus_over_nccl_train_the_model_of_one(name, tmp_path):
    for devices in (1, 2):
        end(start("tests.federated.rank_runs", devices, tmp_path / str(devices), **{SCRIPT_ON: f"cuda {name}"}))
    one, two = (torch.load(tmp_path / str(k) / f"{name}.pt", weights_only=True, map_location="cpu") for k in (1, 2))
    for key, value in one["weights"].items():
        torch.testing.assert_close(two["weights"][key], value, rtol=1e-4, atol=2e-3 if name == "gan" else 1e-5)
    assert two["clients"]["iterations"] == one["clients"]["iterations"]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [gan, diffusion])
def test_turns_at_once_are_those_one_by_one(make, device):
    """In float64, with draws of the device's own generator, BatchNorm, a gradient penalty and kept states."""
    double = {"precision": "64-true"}
    one, many = (
        train(make, device, 2, of_pictures(), trainer=double, optimizer_state="keep", vectorised_turns=settings)
        for settings in (None, VectorisedTurns(always=True))
    )
    for name, tensor in weights(one).items():
        assert torch.allclose(tensor.double(), weights(many)[name].double(), rtol=1e-8, atol=1e-8), name
