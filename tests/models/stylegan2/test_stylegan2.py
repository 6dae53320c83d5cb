"""Training as published, centrally and over clients: phases, clocks, resume, and what is refused."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.federated import ClientSpeeds, FedAvgStrategy, FedBuffStrategy
from fedgen.federated.client_state.exchange import Exchange, Rules
from fedgen.models.stylegan2 import AdaptiveAugment, StyleGAN2, StyleGAN2Discriminator, StyleGAN2Generator
from fedgen.models.stylegan2.training_steps import (
    draw_noise,
    draw_styles,
    ema_decay,
    path_lengths,
    r1_penalty,
)
from fedgen.seeds import seed_all
from tests.trainers import quiet_trainer

SHARED = {"image_size": 8, "channels": 1, "channel_base": 32}


def make(num_classes=None, network=(), **options):
    """A StyleGAN2 of 8 x 8 pixels, the same weights each time."""
    torch.manual_seed(0)
    generator = StyleGAN2Generator(
        **SHARED, latent_dim=4, style_dim=4, mapping_layers=2, num_classes=num_classes, **dict(network)
    )
    critic = StyleGAN2Discriminator(**SHARED, group_size=2, num_classes=num_classes, mapping_layers=1)
    return StyleGAN2(generator, critic, **options)


def images(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def fit(module, batches=2, size=4, **options):
    """Trains on batches of random images, labels 0 1 2 ..."""
    count = batches * size
    loader = DataLoader(TensorDataset(images(count), torch.arange(count) % 3), batch_size=size)
    trainer = quiet_trainer(**options)
    trainer.fit(module, loader, ckpt_path=options.pop("ckpt_path", None))
    return trainer


def clients(count=3, size=8, batch_size=4):
    examples = Examples(
        (images(count * size) * 127.5 + 127.5).to(torch.uint8), torch.arange(count * size) % 3, "noise", ("a", "b", "c")
    )
    return FederatedDataModule(examples, IID(count), batch_size=batch_size, held_out=0.0)


def fit_clients(module, rounds=2, data=None, ckpt_path=None, interval=4, **options):
    strategy = FedAvgStrategy(communication_interval=interval, optimizer_state="average", seed=0)
    trainer = quiet_trainer(rounds, strategy=strategy, **options)
    trainer.fit(module, data or clients(), ckpt_path=ckpt_path)
    return trainer


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_an_iteration_is_the_published_one():
    """Two iterations by hand: Gmain, Greg, Dmain, Dreg, then Gmain and Dmain; corrected Adams, and the average."""
    module = make(style_mixing=0.0, r1_gamma=0.5, ema_kimg=0.01, ema_rampup=None, augment=None)
    other = make(style_mixing=0.0, r1_gamma=0.5)
    generator, critic = other.generator.train(), other.critic.train()
    average = copy.deepcopy(generator)
    real = images(8)
    g_adam = torch.optim.Adam(generator.parameters(), lr=0.0025 * 4 / 5, betas=(0.0, 0.99 ** (4 / 5)))
    d_adam = torch.optim.Adam(critic.parameters(), lr=0.0025 * 16 / 17, betas=(0.0, 0.99 ** (16 / 17)))
    softplus = torch.nn.functional.softplus

    def step(adam, parameters, loss):
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        adam.step()

    torch.manual_seed(5)
    mean = torch.zeros(())
    ours, theirs = list(generator.parameters()), list(critic.parameters())
    for iteration in range(2):
        batch = real[4 * iteration : 4 * iteration + 4]
        fake = generator.synthesize(draw_styles(generator, 4, None, 0))
        step(g_adam, ours, softplus(-critic(fake)).mean())
        if iteration == 0:
            styles = draw_styles(generator, 2, None, 0)
            lengths = path_lengths(generator.synthesize(styles), styles)
            mean = mean + 0.01 * (lengths.mean() - mean)
            step(g_adam, ours, 4 * 2 * (lengths - mean).square().mean())
        with torch.no_grad():
            fake = generator.synthesize(draw_styles(generator, 4, None, 0))
        step(d_adam, theirs, softplus(critic(fake)).mean() + softplus(-critic(batch)).mean())
        if iteration == 0:
            points = batch.clone().requires_grad_()
            step(d_adam, theirs, 16 * 0.5 / 2 * r1_penalty(critic(points), points).mean())
        decay = 0.5 ** (4 / 10)
        for kept, moved in zip(average.parameters(), generator.parameters()):
            kept.data.lerp_(moved.data, 1 - decay)

    module.on_train_epoch_start = lambda: torch.manual_seed(5)
    fit(module, batches=2)
    torch.testing.assert_close(dict(module.critic.named_parameters()), dict(critic.named_parameters()))
    torch.testing.assert_close(dict(module.generator.named_parameters()), dict(generator.named_parameters()))
    torch.testing.assert_close(dict(module.averaged.named_parameters()), dict(average.named_parameters()))
    assert float(module.clock.path_length) == pytest.approx(float(mean.detach()), rel=1e-5)
    assert float(module.clock.images) == 8
    torch.testing.assert_close(module.averaged.mapping.w_avg, generator.mapping.w_avg)  # buffers are copied


def test_lazy_phases_come_when_due(monkeypatch):
    module, ran = make(path_interval=2, r1_interval=3, ada_interval=2, augment=AdaptiveAugment(None)), []
    called = {
        "train_generator": "generator",
        "regularise_paths": "path",
        "train_critic": "critic",
        "penalise_slopes": "r1",
    }
    for name, phase in called.items():
        real = getattr(StyleGAN2, name)
        monkeypatch.setattr(
            StyleGAN2, name, lambda *given, phase=phase, real=real: (ran.append(phase), real(*given))[1]
        )
    fit(module, batches=4)
    expected = ["generator", "path", "critic", "r1", "generator", "critic", "generator", "path", "critic"]
    assert ran == [*expected, "generator", "critic", "r1"]


def test_what_it_logs():
    trainer = fit(make(augment=AdaptiveAugment("bg", p=0.5)), batches=4)
    logged = trainer.callback_metrics
    assert set(logged) == set(StyleGAN2.logged)
    assert float(logged["kimg"]) == pytest.approx(0.016)
    assert -1 <= float(logged["real_signs"]) <= 1
    moved = abs(float(logged["augment_p"]) - 0.5)
    assert moved == pytest.approx(4 * 4 / 500_000, rel=0.05)  # one step of p, after the fourth iteration


def test_micro_batches_sum_gradients():
    """As published: the sum, not the mean, over micro-batches; seen on the critic's R1 step, which draws nothing."""
    found = {}
    for micro in (None, 2):
        module = make(micro_batch=micro)
        module.manual_backward = lambda loss, inputs: loss.backward(inputs=inputs)
        module.end_step = lambda optimizer, own: None
        module.penalise_slopes(module.configure_optimizers()[1], images(4), None)
        found[micro] = torch.cat([p.grad.flatten() for p in module.critic.parameters() if p.grad is not None])
    module = make()
    points = images(4).requires_grad_()
    halves = [r1_penalty(module.critic(part), points)[rows].mean() for part, rows in halves_of(points)]
    by_hand = torch.autograd.grad(sum(halves) * 5 * 16, list(module.critic.parameters()), allow_unused=True)
    expected = torch.cat([g.flatten() for g in by_hand if g is not None])
    torch.testing.assert_close(found[2][: len(expected)], expected)
    assert not torch.allclose(found[None], found[2])


def halves_of(points):
    return [(points[:2], slice(0, 2)), (points[2:], slice(2, 4))]


def test_styles_are_mixed_as_often_as_asked():
    network = make().generator.eval()
    torch.manual_seed(1)
    mixed = [not torch.equal(s[:, 0], s[:, -1]) for s in (draw_styles(network, 2, None, 0.9) for _ in range(300))]
    assert 0.84 < sum(mixed) / 300 < 0.96  # three standard errors
    cuts = set()
    for _ in range(60):
        styles = draw_styles(network, 1, None, 1.0)[0]
        cuts.add(int((styles == styles[0]).all(dim=1).sum()))
    assert cuts == set(range(1, network.num_styles))


def test_gradients_are_cleaned_as_published():
    module = make()
    trainer = fit(module, batches=1)
    weight = module.critic.b4.out.weight
    weight.grad = torch.full_like(weight, float("nan"))
    weight.grad[0, 0] = float("inf")
    before = weight.detach().clone()

    class Optimizer:
        def step(self):
            assert float(weight.grad[0, 0]) == 1e5
            assert float(weight.grad[0, 1:].abs().sum()) == 0

    module.end_step(Optimizer(), [weight])
    assert torch.equal(weight, before)
    assert trainer.precision_plugin.precision == "32-true"


@pytest.mark.slow
def test_over_clients_the_clock_is_a_clients_own():
    module = make(ema_kimg=0.02)
    fit_clients(module, rounds=2, interval=2)
    assert float(module.clock.images) == 2 * 2 * 4  # rounds, iterations, images; not times three clients


@pytest.mark.parametrize("network", [{}, {"frozen_layers": 2}], ids=["trained", "frozen below"])
def test_constants_do_not_travel_where_what_travels_is_fixed_beforehand(network):
    """As under masks: filters, drawn noise, the augmentation's filters, and the weights of frozen layers."""
    torch.manual_seed(0)
    generator = StyleGAN2Generator(**SHARED, latent_dim=4, style_dim=4, mapping_layers=2)
    critic = StyleGAN2Discriminator(**SHARED, group_size=2, mapping_layers=1, **network)
    module = StyleGAN2(generator, critic, augment=AdaptiveAugment())
    exchange = Exchange(module, module.parameters(), [], Rules({}, module), fixed=True)
    assert {name.rpartition(".")[2] for name in exchange.moving} == {
        "w_avg",
        "images",
        "path_length",
        "p",
        "signs",
        "count",
    }
    assert {"resample_filter", "noise_const"} <= {name.rpartition(".")[2] for name in exchange.held}


def test_over_clients_the_average_moves_at_round_ends():
    module = make(ema_kimg=0.02, ema_rampup=None)
    start = copy.deepcopy(module.generator)
    fit_clients(module, rounds=1, data=clients(count=2), interval=2)
    decay = ema_decay(4, 0, 0.02, None) ** 2
    for before, merged, kept in zip(start.parameters(), module.generator.parameters(), module.averaged.parameters()):
        torch.testing.assert_close(kept, before.lerp(merged, 1 - decay))


def decays_of(strategy, rounds):
    """The decays of the averages of a training on three clients."""
    module, found = make(ema_kimg=0.02, ema_rampup=None), []
    module._average = lambda decay: found.append(decay)
    quiet_trainer(rounds, strategy=strategy).fit(module, clients(count=3))
    return found


def test_the_average_of_a_client_that_trains_alone_is_by_its_own_clock():
    """Two of three train in a round, not always the same, so that their clocks differ."""
    strategy = FedAvgStrategy(2, cohort_size=2, personal=["*"], optimizer_state="keep", seed=0)
    drawn = [strategy.sample_cohort(3, round) for round in range(4)]
    assert len(set(map(tuple, drawn))) > 1
    assert decays_of(strategy, 4) == pytest.approx([ema_decay(4, 0, 0.02, None) ** 2] * 8)


def test_the_average_of_asynchronous_clients_is_by_the_images_of_their_turns():
    speeds = ClientSpeeds([1.0, 2.5, 9.0])
    strategy = FedBuffStrategy(2, 3, 0.0, speeds, communication_interval=2, seed=0)
    assert decays_of(strategy, 5) == pytest.approx([ema_decay(4, 0, 0.02, None) ** 2] * 5)


def test_ramp_up_forgets_the_initial_weights():
    module = make(ema_rampup=0.05)
    fit_clients(module, rounds=1, data=clients(count=2), interval=2)
    torch.testing.assert_close(dict(module.averaged.named_parameters()), dict(module.generator.named_parameters()))


@pytest.mark.slow
def test_one_client_is_central_training_but_for_the_average():
    """A federation of one client with all data takes the same steps from the same draws."""
    module, central = make(), make()
    data = clients(count=1, size=8)
    strategy = FedAvgStrategy(communication_interval=2, optimizer_state="average", seed=0)
    quiet_trainer(strategy=strategy).fit(module, data)
    owner = data.clients[0]
    turn = Turn(owner.data, owner.train, data.batch_size, strategy.seed, 0, owner.name, 0)
    central.on_train_epoch_start = lambda: seed_all(strategy.seed, "turn", 0, 0)
    quiet_trainer().fit(central, DataLoader(list(turn.batches(2)), batch_size=None))
    for name, value in central.generator.named_parameters():
        torch.testing.assert_close(module.generator.get_parameter(name), value, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("federated", [False, True])
def test_resumes_to_the_bit(tmp_path, federated):
    """Optimizers, clock, p, mean path length and the average: all that the official resume forgets."""

    def train(epochs, ckpt_path=None):
        module = make(num_classes=3, augment=AdaptiveAugment("bg", kimg=0.05, p=0.2), path_interval=2, ada_interval=2)
        data = clients(count=2, size=4)
        if federated:
            return module, fit_clients(module, rounds=epochs, data=data, ckpt_path=ckpt_path, interval=2)
        trainer = quiet_trainer(epochs)
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return module, trainer

    whole, _ = train(2)
    half, trainer = train(1)
    path = tmp_path / "half.ckpt"
    trainer.save_checkpoint(path)
    resumed, _ = train(2, ckpt_path=path)
    expected, found = weights(whole), weights(resumed)
    assert float(found["augment.augment.p"]) != 0.2
    assert float(found["clock.path_length"]) != float(weights(half)["clock.path_length"])
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.slow
def test_a_checkpoint_samples_without_anything_else(tmp_path):
    module = make(num_classes=3, augment=AdaptiveAugment("bg"), truncation=0.7)
    trainer = fit(module)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = StyleGAN2.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert loaded.sampling == {"truncation": 0.7, "noise": "random"}
    one, two = (m.sample(5, torch.Generator().manual_seed(1)) for m in (module, loaded))
    assert torch.equal(one, two)


def test_samples_do_not_depend_on_the_batch_size():
    module = make(num_classes=3)
    for block in module.averaged.synthesis.blocks:
        torch.nn.init.constant_(block.conv1.noise_strength, 0.3)
    draws = [module.sample(7, torch.Generator().manual_seed(2), batch_size=size) for size in (7, 3)]
    torch.testing.assert_close(*draws)
    assert draws[0].abs().max() <= 1
    assert draws[0].shape == (7, 1, 8, 8)
    fixed = [module.sample(4, torch.Generator().manual_seed(2), noise="const") for _ in range(2)]
    assert torch.equal(*fixed)


def test_noise_is_an_images_own_however_batches_are_cut():
    network = make().generator
    whole = draw_noise(network, 5, torch.Generator().manual_seed(3))
    draws = torch.Generator().manual_seed(3)
    assert torch.equal(whole, torch.cat([draw_noise(network, 2, draws), draw_noise(network, 3, draws)]))


def test_truncation_is_a_setting_of_sampling():
    module = make()
    torch.nn.init.normal_(module.averaged.mapping.w_avg)
    whole = module.sample(6, torch.Generator().manual_seed(4), truncation=0.0, noise="const")
    assert torch.allclose(whole, whole[:1].expand_as(whole), atol=1e-6)  # all are the mean image
    module.sampling = {"truncation": 0.0, "noise": "const"}
    assert torch.equal(module.sample(6, torch.Generator().manual_seed(4)), whole)
    with pytest.raises(ValueError, match="steps"):
        module.sampling = {"steps": 3}
    with pytest.raises(ValueError, match="noise"):
        module.sampling = {"noise": "loud"}


def test_sampling_leaves_the_module_as_it_was():
    module = make().train()
    before = weights(module)
    module.sample(3)
    assert module.generator.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.slow
def test_generator_losses_join_the_game():
    module = make(generator_losses=[lambda fake: fake.square().mean() * 1e4])
    before = make()
    fit(module, batches=3)
    fit(before, batches=3)
    assert module.generator(torch.ones(8, 4)).square().mean() < before.generator(torch.ones(8, 4)).square().mean()


def test_real_images_are_mirrored():
    module, seen = make(flips=True), []
    module.critic.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    batch = images(64)
    loader = DataLoader(TensorDataset(batch, torch.zeros(64, dtype=torch.int64)), batch_size=64)
    quiet_trainer().fit(module, loader)
    real = seen[-1]  # of the R1 step
    mirrored = [bool(torch.equal(a, b.flip(2))) for a, b in zip(real, batch)]
    same = [bool(torch.equal(a, b)) for a, b in zip(real, batch)]
    assert all(m or s for m, s in zip(mirrored, same))
    assert 16 < sum(mirrored) < 48


@pytest.mark.slow
def test_compiled_steps_are_the_same_steps(monkeypatch):
    """By the compiler's own tracing of forward and backward passes, without the C++ at its end."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend="aot_eager"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # compiled code draws noise of its own
        one, two = (make(style_mixing=0.0, network={"use_noise": False}, compile=compile) for compile in (False, True))
        for module in (one, two):
            module.on_train_epoch_start = lambda: torch.manual_seed(5)
            fit(module, batches=2)
    for name, value in one.generator.named_parameters():
        torch.testing.assert_close(two.generator.get_parameter(name), value, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "rates must be above 0"),
        ({"r1_gamma": -1.0}, "weights from 0"),
        ({"style_mixing": 1.5}, "probability"),
        ({"r1_interval": 0}, "count iterations from 1"),
        ({"ema_kimg": 0.0}, "half-life"),
        ({"ema_rampup": -0.1}, "ema_rampup=-0.1"),
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"noise": "loud"}, "noise='loud'"),
    ],
)
def test_refuses_settings_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_refuses_networks_and_data_that_do_not_fit_before_training():
    with pytest.raises(ValueError, match="StyleGAN2Generator"):
        StyleGAN2(torch.nn.Linear(1, 1), make().critic)
    larger = StyleGAN2(make().generator, StyleGAN2Discriminator(16, 1, channel_base=64))
    with pytest.raises(ValueError, match="critic"):
        quiet_trainer().fit(larger, clients())
    with pytest.raises(ValueError, match="divide"):
        quiet_trainer().fit(make(), clients(size=3))
    with pytest.raises(ValueError, match="classes"):
        quiet_trainer().fit(make(num_classes=2), clients())
