"""Glow: likelihood, its starting point, samples, losses of samples, and what FedAvg does with it."""

import copy
import math
import sys

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.federated import FedAvgStrategy
from fedgen.federated.client_state.exchange import Exchange
from fedgen.images import from_uint8
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, FastFIDLoss
from fedgen.models import FineTuning, Glow
from fedgen.models.glow import pooled_patches
from fedgen.models.networks import GlowNetwork, SmallGenerator
from tests.losses.simple import MeanLoss, two_numbers
from tests.trainers import quiet_trainer


@pytest.fixture
def digits():
    return from_uint8(Digits().load("train").inputs[:400])


def network(**sizes):
    torch.manual_seed(0)
    return GlowNetwork(**({"depth": 2, "width": 4, "bits": 4} | sizes))


def shaken(net, scale=0.1):
    """The network with couplings that do something: the weights that start at zero are random."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn_like(parameter)
    return net


def federate(module, tmp_path, rounds=2, interval=2, ckpt_path=None, batch_size=16):
    data = FederatedDataModule(Digits(), ByClass(classes_per_client=5), batch_size=batch_size, seed=0)
    trainer = quiet_trainer(
        rounds, strategy=FedAvgStrategy(communication_interval=interval, seed=0),
        num_sanity_val_steps=0, limit_val_batches=0, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


# ---- the network ----


@pytest.mark.parametrize("shape", [(1, 8, 2), (3, 8, 3), (1, 32, 3)])
def test_latents_and_images_are_one_to_one_in_every_shape(shape):
    channels, size, levels = shape
    net = shaken(network(image_size=size, channels=channels, levels=levels, bits=8), 0.02)
    images = torch.randint(0, 256, (3, channels, size, size)).float() / 127.5 - 1
    points = net.points(images)
    latents, _ = net.flow.inverse_and_log_det(points)
    again = net(torch.cat([part.flatten(1) for part in latents], dim=1))
    assert again.shape == images.shape
    torch.testing.assert_close(again, images, atol=1e-6, rtol=0)


def test_the_likelihood_is_the_priors_times_the_jacobians_determinant():
    net = shaken(network(image_size=4, levels=1)).double()
    points = torch.rand(2, 1, 4, 4, dtype=torch.float64) - 0.5

    def latents(flat):
        parts, _ = net.flow.inverse_and_log_det(flat.view(1, 1, 4, 4))
        return torch.cat([part.flatten() for part in parts])

    for point, bits in zip(points, net.bits_per_dim(points).tolist()):
        jacobian = torch.autograd.functional.jacobian(latents, point.flatten())
        z = latents(point.flatten()).detach()
        log_density = -0.5 * z.square().sum() - 8 * math.log(2 * math.pi) + jacobian.slogdet().logabsdet
        assert bits == pytest.approx(float(4 - log_density / (16 * math.log(2))), rel=1e-9)


def test_uniform_images_cost_as_many_bits_as_they_have():
    """A density of 1 on the unit cube: no bit is saved."""
    net = network(bits=3)
    net.flow.log_prob = lambda points, _: torch.zeros(len(points))
    assert net.bits_per_dim(torch.zeros(2, 1, 8, 8)).tolist() == [3, 3]


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_points_lie_in_their_levels_bin(bits):
    net = network(bits=bits)
    levels = torch.arange(64).view(1, 1, 8, 8) % 2**bits
    images = 2 * levels / (2**bits - 1) - 1
    points = net.points(images)
    assert torch.equal(((points + 0.5) * 2**bits).floor(), levels.float())


def test_the_gradient_of_samples_ignores_the_quantiser():
    net = shaken(network())
    latents = torch.randn(3, 64, requires_grad=True)
    (found,) = torch.autograd.grad(net(latents).sum(), latents)
    parts = [part.view(-1, *base.shape) for part, base in zip(latents.split([32, 32], dim=1), net.flow.q0)]
    (wanted,) = torch.autograd.grad(2 * net.flow.forward_and_log_det(parts)[0].sum(), latents)
    torch.testing.assert_close(found, wanted)
    levels = (net(latents) + 1) * 7.5
    torch.testing.assert_close(levels, levels.round(), atol=1e-5, rtol=0)


# ---- where actnorms start ----


def test_actnorms_start_from_pooled_moments_as_they_would_from_the_images(digits):
    by_images, by_moments = network(levels=3), network(levels=3)
    by_images.initialise(digits_points := by_images.points(digits))
    by_moments.initialise_from(pooled_patches(by_moments, digits.split([100, 300])))
    for (name, one), other in zip(by_images.named_parameters(), by_moments.parameters()):
        torch.testing.assert_close(one, other, atol=0.05, rtol=0, msg=name)
    assert by_images.initialised
    assert by_moments.initialised
    before = network(levels=3).bits_per_dim(digits_points).mean()
    assert by_moments.bits_per_dim(digits_points).mean() < before - 1


def test_an_actnorms_output_has_mean_0_and_deviation_1(digits):
    net = network(levels=1, depth=1)
    net.initialise_from(pooled_patches(net, [digits]))
    (norm,) = net._norms
    squeezed, _ = net.flow.flows[0][-1].inverse(net.points(digits))
    seen, _ = norm.inverse(squeezed)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(4), atol=0.01, rtol=0)
    torch.testing.assert_close(seen.std((0, 2, 3)), torch.ones(4), atol=0.01, rtol=0)


def test_a_new_flow_samples_without_taking_its_samples_for_data():
    net = network()
    before = copy.deepcopy(net.state_dict())
    module = Glow(net)
    assert module.sample(4).shape == (4, 1, 8, 8)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not net.initialised


def test_without_clients_the_first_batch_decides(fit):
    module = Glow(network(), lr=1e-9)
    fit(module, batches=1)
    wanted = network()
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    wanted.initialise(wanted.points(images))
    assert module.flow.initialised
    torch.testing.assert_close(module.flow._norms[-1].s, wanted._norms[-1].s, atol=0.2, rtol=0)


# ---- federated training ----


def test_only_what_trains_is_averaged(digits):
    """normflows keeps permutations, signs and the prior as floating buffers, which FedAvg would average."""
    module = Glow(network())
    optimizer = module.configure_optimizers()
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    exchange = Exchange(module, owned, ())
    assert set(exchange.shared) == exchange.trained
    assert {name.rsplit(".", 1)[1] for name in exchange.counters} == {"initialised", "data_dep_init_done"}
    assert not exchange.personal
    constants = {"P", "sign_S", "eye", "loc", "log_scale"}
    assert constants <= {name.rsplit(".", 1)[1] for name in module.state_dict()}
    assert not constants & {name.rsplit(".", 1)[1] for name in exchange.shared}


@pytest.mark.slow
def test_every_client_starts_from_the_same_actnorms(tmp_path):
    """With a step that moves nothing, what comes back is what the pooled moments gave."""
    module, wanted = Glow(network(), lr=1e-12), network()
    federate(module, tmp_path, rounds=1)
    data = FederatedDataModule(Digits(), ByClass(classes_per_client=5), batch_size=16, seed=0)
    data.setup("fit")
    wanted.initialise_from(
        pooled_patches(wanted, (from_uint8(client.train_examples.inputs) for client in data.clients))
    )
    for found, given in zip(module.flow._norms, wanted._norms):
        torch.testing.assert_close(found.s, given.s)
        torch.testing.assert_close(found.t, given.t)


@pytest.mark.slow
def test_training_lowers_the_bits_that_digits_cost(tmp_path, digits):
    module = Glow(network(), lr=5e-3)
    trainer = federate(module, tmp_path, rounds=1, interval=1)
    first = float(trainer.callback_metrics["bits_per_dim"])
    trainer = federate(module, tmp_path, rounds=4, interval=5)
    assert float(trainer.callback_metrics["bits_per_dim"]) < first - 0.3
    assert module.bits_per_dim(digits).mean() < first - 0.3


@pytest.mark.slow
def test_a_run_resumed_from_its_checkpoint_is_the_same_run(tmp_path):
    def build():
        loss = EmbeddedLoss(FastFIDLoss(), ["pixels"], weight=AdaptiveWeight())
        return Glow(network(), warmup_rounds=3, ema_decay=0.9, generator_losses=[loss])

    whole = build()
    federate(whole, tmp_path, rounds=2)
    path = tmp_path / "half.ckpt"
    federate(build(), tmp_path, rounds=1).save_checkpoint(path)
    second = build()
    federate(second, tmp_path, rounds=2, ckpt_path=path)
    found = second.state_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, found[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_a_loss_of_samples_pulls_them_towards_the_clients(tmp_path, separate):
    """With the likelihood drowned, the samples' mean and mean square go to the digits'."""
    loss = EmbeddedLoss(MeanLoss("all"), [two_numbers()], 1000.0, separate=separate, chunk=8 if separate else None)
    module = Glow(network(), lr=0.01, clip=None, generator_losses=[loss])
    trainer = federate(module, tmp_path, rounds=1)
    before = trainer.callback_metrics["mean_loss/two-numbers"]
    trainer = federate(module, tmp_path, rounds=3)
    assert trainer.callback_metrics["mean_loss/two-numbers"] < before / 2
    assert module.optimised_on == ["two-numbers"]


def test_an_adaptive_weight_makes_a_score_as_large_as_the_likelihood(tmp_path):
    loss = EmbeddedLoss(MeanLoss("all"), [two_numbers()], weight=AdaptiveWeight(decay=0, floor=0))
    trainer = federate(Glow(network(), generator_losses=[loss]), tmp_path, rounds=1, interval=1)
    logged = trainer.callback_metrics
    # one step of each of two clients: the mean weight is that of single ratios
    assert float(logged["mean_loss/weight"]) > 0
    assert float(logged["mean_loss/weight"] * logged["mean_loss/two-numbers"]) == pytest.approx(
        float(logged["bits_per_dim"]), rel=0.2
    )


def test_the_gradient_is_clipped_as_a_whole(fit):
    norms = []

    class Watching(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            parameters = [p for p in pl_module.parameters() if p.grad is not None]
            norms.append(float(torch.cat([p.grad.flatten() for p in parameters]).norm()))

    fit(Glow(network(), clip=0.01), callbacks=[Watching()])
    assert norms == pytest.approx([0.01] * 4, rel=1e-3)


# ---- half precision ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_likelihood_samples_and_starting_point_as_they_are(digits, dtype):
    net, other = shaken(network(bits=8)), shaken(network(bits=8))
    points, latents = net.points(digits[:20]), torch.randn(5, 64)
    expected = net.bits_per_dim(points), net(latents)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(net.bits_per_dim(points), expected[0])
        assert torch.equal(net(latents), expected[1])
        other.initialise(points)
    net.initialise(points)
    assert all(torch.equal(a.s, b.s) and torch.equal(a.t, b.t) for a, b in zip(net._norms, other._norms))


@pytest.mark.parametrize("dtype", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_trains_the_flow_as_full_precision_does(fit, dtype):
    """Scaled by a power of two, gradients of float32 and their bound are the same to the bit."""
    plain, mixed = (Glow(network(), clip=0.01, lr=0.01) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16) if dtype == "16-mixed" else None
    for module, plugins in ((plain, []), (mixed, [MixedPrecision(dtype, "cpu", scaler)])):
        torch.manual_seed(1)
        fit(module, plugins=plugins)
    found = mixed.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, found[name]), name


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_in_half_precision_have_no_likelihood(fit, precision):
    with pytest.raises(ValueError, match=rf"precision={precision} .* use 32-true, or bf16-mixed"):
        fit(Glow(network()), precision=precision)


def test_the_rate_rises_over_the_first_rounds(fit):
    rates = []

    class Watching(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit(Glow(network(), lr=0.3, warmup_rounds=3), batches=1, epochs=4, callbacks=[Watching()])
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3])


# ---- after training ----


@pytest.mark.slow
def test_a_checkpoint_needs_no_code_but_fedgens(tmp_path):
    loss = EmbeddedLoss(FastFIDLoss(), ["pixels"], weight=AdaptiveWeight())
    module = Glow(network(), ema_decay=0.5, temperature=0.8, generator_losses=[loss])
    path = tmp_path / "glow.ckpt"
    federate(module, tmp_path, rounds=1).save_checkpoint(path)
    again = Glow.load_from_checkpoint(path, weights_only=True)
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(module.sample(5, draws[0]), again.sample(5, draws[1]))
    load_weights(Glow(network(), ema_decay=0.5), path)
    tuned = FineTuning(str(path), [EmbeddedLoss(MeanLoss("all"), [two_numbers()])])
    assert torch.equal(tuned.sample(5, torch.Generator().manual_seed(3)), module.sample(
        5, torch.Generator().manual_seed(3), temperature=1.0))  # fmt: skip


def test_sampling_is_the_same_in_any_batches_and_cooler_by_temperature():
    module = Glow(shaken(network(bits=8)))

    def sample(**how):
        return module.sample(20, torch.Generator().manual_seed(0), **how)

    torch.testing.assert_close(sample(), sample(batch_size=3), atol=1 / 100, rtol=0)
    assert sample(temperature=0.1).std(0).mean() < 0.5 * sample().std(0).mean()
    assert sample().abs().max() <= 1


def test_a_fit_refuses_images_of_another_shape(tmp_path):
    with pytest.raises(ValueError, match="built"):
        federate(Glow(network(image_size=16)), tmp_path)


def test_values_out_of_range_are_refused():
    for options, message in (
        ({"lr": 0.0}, "lr must be positive"),
        ({"warmup_rounds": -1}, "warmup_rounds must not be negative"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"generator_losses": [FastFIDLoss()]}, "is one of features"),
    ):
        with pytest.raises(ValueError, match=message):
            Glow(network(), **options)
    for sizes, message in (
        ({"image_size": 12, "levels": 3}, "image_size=12 must be a multiple of 2\\^levels"),
        ({"bits": 9}, "bits=9"),
        ({"depth": 0}, "depth"),
    ):
        with pytest.raises(ValueError, match=message):
            GlowNetwork(**sizes)
    with pytest.raises(ValueError, match="SmallGenerator"):
        Glow(SmallGenerator())
    with pytest.raises(ValueError, match="labels"):
        Glow(network()).sample(2, labels=torch.zeros(2))


def test_without_normflows_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "normflows", None)
    with pytest.raises(ModuleNotFoundError, match="install"):
        GlowNetwork()
