import warnings
from types import SimpleNamespace

import lightning
import pytest
import torch
from torch import nn

from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# ---- training ----


class Seed(lightning.Callback):
    """Seeds each iteration by its place."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        torch.manual_seed(100 * trainer.current_epoch + batch_idx)


class Steps(lightning.Callback):
    """Which iterations changed which network."""

    def __init__(self):
        self.generator, self.critic = [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = weights(module.generator), weights(module.critic)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.generator.append(not torch.equal(self.before[0], weights(module.generator)))
        self.critic.append(not torch.equal(self.before[1], weights(module.critic)))


def test_the_generator_steps_every_n_critic_th_iteration_across_epochs(make_gan, fit):
    steps = Steps()
    fit(make_gan(n_critic=3), batches=4, epochs=2, callbacks=[steps])
    assert steps.critic == [True] * 8
    assert steps.generator == [False, False, True, False, False, True, False, False]


def test_one_iteration_equals_a_plain_loop(make_gan, fit):
    module, twin = make_gan(n_critic=1, lr=0.01), make_gan()
    fit(module, batches=1, callbacks=[Seed()])

    real = torch.rand(2, 1, 8, 8, generator=seeded()) * 2 - 1
    optimizers = [torch.optim.Adam(n.parameters(), lr=0.01, betas=(0.0, 0.9)) for n in (twin.generator, twin.critic)]
    torch.manual_seed(0)
    fake = twin.generator(torch.randn(2, 3)).detach()
    position = torch.rand(2, 1, 1, 1)
    points = (real + position * (fake - real)).requires_grad_()
    slopes = torch.autograd.grad(twin.critic(points).sum(), points, create_graph=True)[0].flatten(1).norm(dim=1)
    (twin.critic(fake).mean() - twin.critic(real).mean() + 10 * (slopes - 1).square().mean()).backward()
    optimizers[1].step()
    (-twin.critic(twin.generator(torch.randn(2, 3))).mean()).backward(inputs=list(twin.generator.parameters()))
    optimizers[0].step()

    for name in ("critic", "generator"):
        network = getattr(twin, name)
        gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        # Adam scales gradients that are zero but for rounding (the critic's last bias, ...) to full steps: left out
        clear = gradients.abs() > 1e-6
        assert clear.sum() > 0.8 * len(clear)
        assert torch.allclose(weights(getattr(module, name))[clear], weights(network)[clear], atol=1e-5)


def test_requires_grad_is_left_as_found_and_frozen_parameters_stay(make_gan, fit):
    module = make_gan(n_critic=1)
    frozen = module.generator.body[0].weight.requires_grad_(False)
    before = frozen.clone()
    flags = [parameter.requires_grad for parameter in module.parameters()]
    fit(module)
    assert [parameter.requires_grad for parameter in module.parameters()] == flags
    assert torch.equal(frozen, before)


def test_extra_losses_join_the_generators_loss_and_leave_the_critic_alone(make_gan, fit):
    seen = []

    def brightness(images):
        seen.append(tuple(images.shape))
        return 1e6 * images.mean()

    module = make_gan(n_critic=2, lr=0.01, generator_losses=[brightness])
    trainer = fit(module, batches=4, epochs=3)
    assert seen == [(2, 1, 8, 8)] * 6
    assert trainer.callback_metrics["generator_loss"].abs() > 1e3
    assert module.sample(8, seeded()).mean() < make_gan().sample(8, seeded()).mean()


def test_losses_are_logged_once_a_round_as_means(make_gan, fit):
    class Recorder(nn.Module):
        image_values = ()

        def forward(self, images):
            self.image_values = (*self.image_values, images.mean().item())
            return images.mean()

    recorder = Recorder()
    module = make_gan(n_critic=2, generator_losses=[recorder])
    logged = fit(module, batches=4).callback_metrics
    assert set(logged) == {"critic_loss", "critic_gap", "generator_loss"}
    assert all(torch.isfinite(value) for value in logged.values())
    assert len(recorder.image_values) == 2


def test_the_learning_rate_falls_linearly_over_rounds(make_gan, fit):
    class Rates(lightning.Callback):
        rates = ()

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.rates = (*self.rates, *(optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers))

    rates = Rates()
    fit(make_gan(lr=0.1, lr_decay_rounds=4, n_critic=1), batches=2, epochs=5, callbacks=[rates])
    expected = [rate for rate in (0.1, 0.075, 0.05, 0.025, 0.0) for _ in range(4)]
    assert list(rates.rates) == pytest.approx(expected)


@pytest.mark.slow
def test_a_resumed_run_continues_as_if_it_had_not_stopped(make_gan, fit, tmp_path):
    arguments = {"n_critic": 3, "lr": 0.01, "lr_decay_rounds": 4, "ema_decay": 0.5, "ema_warmup": True}

    whole = make_gan(**arguments)
    fit(whole, epochs=3, callbacks=[Seed()])
    fit(make_gan(**arguments), epochs=1, callbacks=[Seed()]).save_checkpoint(tmp_path / "first.ckpt")
    resumed = make_gan(**arguments)
    fit(resumed, epochs=3, callbacks=[Seed()], ckpt_path=tmp_path / "first.ckpt")
    found = resumed.state_dict()
    for key, value in whole.state_dict().items():
        assert torch.equal(value, found[key]), key


def test_the_average_moves_at_round_ends_by_the_decay_of_all_its_iterations(make_gan, fit):
    module = make_gan(ema_decay=0.9, n_critic=1, lr=0.01)
    before = weights(module.generator)
    fit(module, batches=4, epochs=1)
    expected = 0.9**4 * before + (1 - 0.9**4) * weights(module.generator)
    assert torch.allclose(weights(module.generator_ema), expected, atol=1e-6)
    assert not torch.equal(before, weights(module.generator))


# ---- sampling ----


def test_samples_follow_the_generator_whatever_the_batch_size(make_gan):
    module = make_gan()
    images = module.sample(7, seeded())
    assert images.shape == (7, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.abs().max() <= 1
    assert torch.equal(images, module.sample(7, seeded()))
    assert torch.allclose(images, module.sample(7, seeded(), batch_size=2), atol=1e-6)
    assert not torch.equal(images, module.sample(7, seeded(1)))


def test_sampling_leaves_no_trace(make_gan):
    module = make_gan(ema_decay=0.9)
    module.train()
    module.generator.body[1].eval()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    modes = [each.training for each in module.modules()]
    stream = torch.get_rng_state()
    images = module.sample(3, seeded())
    assert not images.requires_grad
    assert torch.equal(stream, torch.get_rng_state())
    assert modes == [each.training for each in module.modules()]
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_images_come_from_the_average_if_there_is_one(make_gan):
    with_average, without = make_gan(ema_decay=0.9), make_gan()
    expected = without.sample(4, seeded())
    for module in (with_average, without):
        with torch.no_grad():
            module.generator.body[0].weight.mul_(-3)
    assert torch.equal(with_average.sample(4, seeded()), expected)
    assert not torch.equal(without.sample(4, seeded()), expected)


def test_labels_and_empty_samples_are_refused(make_gan):
    with pytest.raises(ValueError, match="WGANGP"):
        make_gan().sample(2, labels=torch.zeros(2))
    with pytest.raises(ValueError, match="num_images"):
        make_gan().sample(0)


# ---- checkpoints ----


def test_a_checkpoint_loads_without_arguments_and_without_pickles(make_gan, fit, tmp_path):
    module = make_gan(ema_decay=0.9, penalty=3.0, betas=(0, 0.99), lr_decay_rounds=7, n_critic=2)
    path = tmp_path / "model.ckpt"
    fit(module, batches=2).save_checkpoint(path)
    saved = torch.load(path, weights_only=True)["hyper_parameters"]
    assert saved["generator"]["init_args"] == {"image_size": 8, "channels": 1, "latent_dim": 3, "width": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = WGANGP.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(loaded.sample(4, seeded()), module.sample(4, seeded()))
    assert (loaded.loss.penalty, loaded.betas, loaded.lr_decay_rounds) == (3.0, (0.0, 0.99), 7)
    assert loaded.hparams == module.hparams


class ForeignGenerator(nn.Module):
    latent_dim = 2

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 64)

    def forward(self, latents):
        return self.layer(latents).view(-1, 1, 8, 8).tanh()


def test_a_foreign_network_is_asked_for_when_its_checkpoint_is_loaded(make_gan, fit, tmp_path):
    module = make_gan(generator=ForeignGenerator())
    path = tmp_path / "model.ckpt"
    fit(module, batches=2).save_checkpoint(path)
    with pytest.raises(ValueError, match="ForeignGenerator"):
        WGANGP.load_from_checkpoint(path, weights_only=True)
    loaded = WGANGP.load_from_checkpoint(path, weights_only=True, generator=ForeignGenerator())
    assert torch.equal(loaded.sample(4, seeded()), module.sample(4, seeded()))


@pytest.mark.slow
def test_losses_with_state_keep_it_in_the_checkpoint_but_are_not_needed_for_sampling(make_gan, fit, tmp_path):
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, images):
            self.calls += 1
            return images.mean()

    path = tmp_path / "model.ckpt"
    module = make_gan(n_critic=1, generator_losses=[Remembering()])
    fit(module, batches=4).save_checkpoint(path)
    WGANGP.load_from_checkpoint(path, weights_only=True).sample(2)
    again = WGANGP.load_from_checkpoint(path, weights_only=True, generator_losses=[Remembering()])
    assert again.generator_losses[0].calls == 4


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_critic": 0}, "n_critic must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\), got 1.0"),
        ({"lr_decay_rounds": 0}, "lr_decay_rounds must be above 0: 0"),
        ({"generator": nn.Linear(2, 2)}, "the generator Linear needs an attribute latent_dim"),
    ],
)
def test_arguments_out_of_range_are_refused(make_gan, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_gan(**arguments)


def test_networks_of_different_sizes_are_refused_before_training(make_gan, fit):
    with pytest.raises(ValueError, match="critic"):
        fit(make_gan(critic=SmallCritic(image_size=12)))
    with pytest.raises(ValueError, match="generator"):
        fit(make_gan(critic=nn.Conv2d(3, 1, 8)))
    with pytest.raises(ValueError, match=r"one score an image, \[N\], got \[2, 1, 1, 1\]"):
        fit(make_gan(critic=nn.Conv2d(1, 1, 8)))


def test_data_of_another_shape_are_refused_at_the_first_iteration(make_gan, fit):
    with pytest.raises(ValueError, match="generator"):
        fit(make_gan(), shape=(3, 8, 8))


def test_data_of_another_shape_are_refused_before_training_if_their_module_tells_it(make_gan):
    module = make_gan()
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(image_shape=(3, 8, 8)))
    with pytest.raises(ValueError, match="generator"):
        module.setup("fit")


def test_a_command_line_can_name_networks_and_losses_by_class_path():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(WGANGP, "model")
    config = {
        "generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 2}},
        "critic": {"class_path": "fedgen.models.networks.SmallCritic"},
        "generator_losses": [{"class_path": "torch.nn.Identity"}],
        "betas": [0, 0.9],
    }
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # renamed in jsonargparse 4.49
    model = instantiate(parser.parse_object({"model": config})).model
    assert isinstance(model.generator, SmallGenerator)
    assert model.generator.settings["width"] == 2
    assert isinstance(model.generator_losses[0], nn.Identity)
    assert model.betas == (0.0, 0.9)
