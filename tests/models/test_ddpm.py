import warnings
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn

from fedgen.data import Examples
from fedgen.models import DDPM
from fedgen.models.diffusion.diffusion_process import NoiseSchedule, Sampler
from fedgen.models.networks import UNet
from tests.losses.live_bytes import LiveBytes
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


class Constant(nn.Module):
    """Predicts the same number everywhere."""

    image_shape = (1, 2, 2)

    def __init__(self, value=0.5, num_classes=None):
        super().__init__()
        self.value, self.num_classes, self.null_label = nn.Parameter(torch.tensor(value)), num_classes, True
        self.labels = []

    def forward(self, images, timesteps, labels=None):
        self.labels.append(labels)
        return self.value.expand(images.shape)


# ---- training ----


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_the_loss_is_the_mean_squared_error_of_equation_14(prediction):
    module = DDPM(Constant(0.5), prediction=prediction)
    images = torch.rand(3, 1, 2, 2, generator=seeded()) * 2 - 1
    torch.manual_seed(7)
    loss = module.training_step((images, torch.zeros(3)), 0).detach()
    torch.manual_seed(7)
    timesteps = torch.randint(1000, (3,))
    noise = torch.randn(3, 1, 2, 2)
    left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)[timesteps].view(3, 1, 1, 1)
    target = noise if prediction == "epsilon" else left.sqrt() * noise - (1 - left).sqrt() * images
    assert float(loss) == pytest.approx(float((0.5 - target).square().mean()), rel=1e-5)


def test_the_network_sees_noisy_images_and_timesteps():
    class Spy(Constant):
        def forward(self, images, timesteps):
            self.seen = images, timesteps
            return super().forward(images, timesteps)

    spy = Spy()
    images = torch.ones(4, 1, 2, 2)
    torch.manual_seed(7)
    DDPM(spy).training_step((images,), 0)
    torch.manual_seed(7)
    timesteps = torch.randint(1000, (4,))
    noise = torch.randn(4, 1, 2, 2)
    left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)[timesteps].view(4, 1, 1, 1)
    assert torch.equal(spy.seen[1], timesteps)
    assert torch.allclose(spy.seen[0], left.sqrt() * images + (1 - left).sqrt() * noise, atol=1e-5)


def test_images_in_half_precision_get_noise_in_full_and_the_network_its_own_precision():
    """As under "bf16-true", which hands on images in half precision."""

    class Spy(Constant):
        def forward(self, images, timesteps):
            self.seen = images.dtype
            return super().forward(images, timesteps)

    spy = Spy()
    torch.manual_seed(7)
    loss = DDPM(spy).training_step((torch.ones(4, 1, 2, 2, dtype=torch.bfloat16),), 0).detach()
    torch.manual_seed(7)
    torch.randint(1000, (4,))
    assert spy.seen == torch.bfloat16
    assert float(loss) == pytest.approx(float((0.5 - torch.randn(4, 1, 2, 2)).square().mean()), rel=1e-6)


def test_flips_mirror_about_half_of_the_images():
    class Sum(Constant):
        def forward(self, images, timesteps):
            self.seen = images
            return super().forward(images, timesteps)

    spy = Sum()
    images = torch.tensor([[1.0, -1.0], [1.0, -1.0]]).expand(1000, 1, 2, 2)
    schedule = NoiseSchedule(timesteps=1, beta_start=1e-9, beta_end=1e-9)
    torch.manual_seed(0)
    DDPM(spy, flips=True, schedule=schedule).training_step((images,), 0)
    mirrored = spy.seen[:, 0, 0, 0] < 0
    assert 400 < int(mirrored.sum()) < 600
    assert torch.allclose(spy.seen[mirrored], images[mirrored].flip(3), atol=1e-3)
    DDPM(spy, schedule=schedule).training_step((images,), 0)
    assert torch.allclose(spy.seen, images, atol=1e-3)


def test_labels_are_dropped_as_often_as_asked_for():
    network = Constant(num_classes=3)
    torch.manual_seed(0)
    labels = torch.arange(1000) % 3
    for dropout, least, most in ((0.0, 0, 0), (0.2, 150, 250), (1.0, 1000, 1000)):
        DDPM(network, label_dropout=dropout).training_step((torch.zeros(1000, 1, 2, 2), labels), 0)
        dropped = network.labels[-1] == 3
        assert least <= int(dropped.sum()) <= most
        assert torch.equal(network.labels[-1][~dropped], labels[~dropped])


def test_one_iteration_equals_a_plain_loop_of_diffusers(make_ddpm, fit):
    from diffusers import DDPMScheduler

    module, twin = make_ddpm(lr=0.01), make_ddpm()

    class Seed(lightning.Callback):
        def on_train_batch_start(self, *_):
            torch.manual_seed(5)

    fit(module, batches=1, callbacks=[Seed()])
    images = torch.rand(2, 1, 8, 8, generator=seeded()) * 2 - 1
    body, scheduler = twin.network.body.train(), DDPMScheduler(num_train_timesteps=10)
    optimizer = torch.optim.Adam(body.parameters(), lr=0.01)
    torch.manual_seed(5)
    timesteps = torch.randint(10, (2,))
    noise = torch.randn_like(images)
    predicted = body(scheduler.add_noise(images, noise, timesteps), timesteps).sample
    nn.functional.mse_loss(predicted, noise).backward()
    optimizer.step()
    # Adam scales gradients that are zero but for rounding to full steps: left out
    gradients = torch.cat([parameter.grad.flatten() for parameter in body.parameters()])
    clear = gradients.abs() > 1e-5
    assert clear.sum() > 0.8 * len(clear)
    assert torch.allclose(weights(module.network)[clear], weights(body)[clear], atol=1e-5)


def test_the_rate_warms_up_over_iterations_and_rounds(make_ddpm, fit):
    rates = []

    class Rates(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit(make_ddpm(lr=0.1, warmup=5), batches=3, epochs=2, callbacks=[Rates()])
    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])


def test_the_rounds_mean_loss_is_logged_once(make_ddpm, fit):
    losses = []

    class Losses(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, *_):
            losses.append(float(outputs["loss"]))

    logged = fit(make_ddpm(), batches=4, callbacks=[Losses()]).callback_metrics
    assert set(logged) == {"loss"}
    assert float(logged["loss"]) == pytest.approx(sum(losses) / 4, rel=1e-5)


def test_the_average_moves_at_round_ends_by_the_decay_of_all_its_iterations(make_ddpm, fit):
    module = make_ddpm(ema_decay=0.9, ema_warmup=False, lr=0.01)
    before = weights(module.network)
    fit(module, batches=4)
    expected = 0.9**4 * before + (1 - 0.9**4) * weights(module.network)
    assert torch.allclose(weights(module.network_ema), expected, atol=1e-6)
    assert not torch.equal(before, weights(module.network))


@pytest.mark.slow
def test_training_reduces_the_loss(make_ddpm, fit):
    module = make_ddpm(lr=0.01, ema_decay=None)
    images = torch.rand(8, 1, 8, 8, generator=seeded()) * 2 - 1  # those that it trains on
    before = module.example_losses(images).mean()
    fit(module, batches=4, epochs=6)
    assert module.example_losses(images).mean() < 0.9 * before


@pytest.mark.slow
def test_half_precision_and_clipping_train(make_ddpm):
    module = make_ddpm(num_classes=2)
    images = torch.rand(4, 1, 8, 8) * 2 - 1
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, torch.tensor([0, 1, 0, 1])), 2)
    for precision in ("bf16-mixed", "bf16-true", "32-true"):
        before = weights(module.network)
        trainer = quiet_trainer(precision=precision, gradient_clip_val=1.0)
        trainer.fit(module, loader)
        assert torch.isfinite(trainer.callback_metrics["loss"])
        assert not torch.equal(weights(module.network).float(), before.float())
        assert module.diffusion.signal.dtype == torch.float32
        assert torch.isfinite(module.sample(3)).all()
        module.float()


@pytest.mark.slow
def test_computing_activations_twice_trains_to_the_same_weights_in_less_memory(make_ddpm, fit):
    one, two = (make_ddpm(gradient_checkpointing=twice) for twice in (False, True))
    peaks = []
    for module in (one, two):
        torch.manual_seed(1)
        with LiveBytes() as memory:
            fit(module, batches=2)
        peaks.append(memory.peak)
    assert torch.allclose(weights(one.network), weights(two.network), atol=1e-6)
    assert peaks[1] < 0.9 * peaks[0]


@pytest.mark.slow
def test_compiled_steps_train_to_the_same_weights_under_the_same_names(make_ddpm, fit, monkeypatch):
    """By the compiler's own tracing of forward and backward pass, without the C++ at its end."""
    real, made = torch.compile, []

    def trace(function):
        made.append(real(function, backend="aot_eager"))
        return made[-1]

    monkeypatch.setattr(torch, "compile", trace)
    plain, compiled = make_ddpm(), make_ddpm(compile=True)
    for module in (plain, compiled):
        torch.manual_seed(1)
        fit(module, batches=2)
    assert len(made) == 1
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert torch.allclose(weights(compiled.network), weights(plain.network), atol=1e-5)
    assert torch.allclose(compiled.sample(2, seeded()), plain.sample(2, seeded()), atol=1e-3)


# ---- sampling ----


@pytest.mark.parametrize("solver", ["dpm-solver++", "ddim", "ddpm"])
def test_samples_follow_the_generator_whatever_the_batch_size(make_ddpm, solver):
    module = make_ddpm()

    def sample(seed=0, **options):
        return module.sample(5, seeded(seed), solver=solver, steps=5, **options)

    images = sample()
    assert images.shape == (5, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.abs().max() <= 1
    assert images.std() > 0.1
    assert torch.equal(images, sample())
    assert torch.allclose(images, sample(batch_size=3), atol=1e-4)
    assert not torch.equal(images, sample(1))


def test_sampling_leaves_no_trace(make_ddpm):
    module = make_ddpm(num_classes=3, sampler=Sampler("ddpm"))
    module.train()
    module.network.body.mid_block.eval()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    modes = [each.training for each in module.modules()]
    stream = torch.get_rng_state()
    images = module.sample(3, seeded())
    module.example_losses(images)
    assert not images.requires_grad
    assert torch.equal(stream, torch.get_rng_state())
    assert modes == [each.training for each in module.modules()]
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_images_come_from_the_average_if_there_is_one(make_ddpm):
    averaging, plain = make_ddpm(), make_ddpm(ema_decay=None)
    expected = plain.sample(4, seeded())
    for module in (averaging, plain):
        with torch.no_grad():
            module.network.body.conv_out.weight.mul_(-3)
    torch.testing.assert_close(averaging.sample(4, seeded()), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(plain.sample(4, seeded()), expected, atol=1e-2)


def test_a_conditional_model_draws_given_labels_or_the_datas(make_ddpm):
    module = make_ddpm(num_classes=3, sampler=Sampler(steps=3))
    zeros, ones = (module.sample(4, seeded(), labels=torch.full((4,), label)) for label in (0, 1))
    assert not torch.allclose(zeros, ones)
    assert torch.allclose(
        zeros, module.sample(4, seeded(), labels=torch.zeros(4, dtype=torch.int64), batch_size=3), atol=1e-4
    )
    module.label_frequencies.counts.copy_(torch.tensor([0, 5, 0]))
    assert torch.equal(module.sample(4, seeded()), ones)
    assert torch.equal(module.sample(4, seeded(), guidance=1.0), ones)
    assert not torch.allclose(module.sample(4, seeded(), guidance=3.0), ones)


def test_how_images_are_drawn_is_told_in_plain_types(make_ddpm):
    assert make_ddpm().sampling == {"solver": "dpm-solver++", "steps": 10}
    module = make_ddpm(num_classes=2, sampler=Sampler("ddim", 5, guidance=2.0))
    assert module.sampling == {"solver": "ddim", "steps": 5, "guidance": 2.0}
    images = module.sample(3, seeded())
    assert torch.equal(images, module.sample(3, seeded(), solver="ddim", steps=5, guidance=2.0))
    assert not torch.equal(images, module.sample(3, seeded(), guidance=0.0))


# ---- losses of examples ----


def test_example_losses_are_at_fixed_draws_whatever_the_batch_and_the_company(make_ddpm):
    module = make_ddpm()
    images = torch.rand(5, 1, 8, 8, generator=seeded()) * 2 - 1
    losses = module.example_losses(images, timesteps=4)
    assert losses.shape == (5,)
    assert torch.allclose(losses, module.example_losses(images, timesteps=4, batch_size=2), rtol=1e-5)
    assert torch.allclose(losses[:3], module.example_losses(images[:3], timesteps=4), rtol=1e-5)
    assert torch.allclose(losses[3:], module.example_losses(images[3:], timesteps=4, start=3), rtol=1e-5)
    assert not torch.allclose(losses, module.example_losses(images, timesteps=4, seed=1))


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_example_losses_measure_the_noise_by_hand(prediction):
    """A network that predicts 0.5: its noise is 0.5, or signal 0.5 + noise x_t for a velocity."""
    from fedgen.seeds import generator

    module = DDPM(Constant(0.5), prediction=prediction)
    images = torch.rand(2, 1, 2, 2, generator=seeded()) * 2 - 1
    found = module.example_losses(images, seed=3, timesteps=[0, 700])
    left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)[[0, 700]].view(2, 1, 1, 1)
    for index, image in enumerate(images):
        noise = torch.randn(2, 1, 2, 2, generator=generator(3, "example losses", index))
        noisy = left.sqrt() * image + (1 - left).sqrt() * noise
        guess = 0.5 if prediction == "epsilon" else left.sqrt() * 0.5 + (1 - left).sqrt() * noisy
        assert float(found[index]) == pytest.approx(float((guess - noise).square().mean()), rel=1e-4)


def test_example_losses_of_a_class_differ_from_those_of_any(make_ddpm):
    module = make_ddpm(num_classes=3)
    images = torch.rand(2, 1, 8, 8, generator=seeded()) * 2 - 1
    any_class, first = module.example_losses(images), module.example_losses(images, torch.tensor([0, 0]))
    assert not torch.allclose(any_class, first)
    with torch.no_grad():
        module.network.body.conv_out.weight.mul_(3)
    assert torch.equal(module.example_losses(images), any_class)
    assert not torch.equal(module.example_losses(images, average=False), any_class)


# ---- checkpoints ----


@pytest.mark.slow
def test_a_checkpoint_loads_without_arguments_and_without_pickles(make_ddpm, fit, tmp_path):
    module = make_ddpm(num_classes=3, prediction="v", warmup=7, flips=True, sampler=Sampler("ddim", 5, 2.0))
    module.label_frequencies.counts.copy_(torch.tensor([1, 0, 2]))
    path = tmp_path / "model.ckpt"
    fit(module, batches=1).save_checkpoint(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = DDPM.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(loaded.sample(4, seeded()), module.sample(4, seeded()))
    assert loaded.hparams == module.hparams
    assert (loaded.sampling, loaded.diffusion.schedule) == (module.sampling, NoiseSchedule(timesteps=10))


def test_a_foreign_network_is_asked_for_when_its_checkpoint_is_loaded(fit, tmp_path):
    path = tmp_path / "model.ckpt"
    fit(DDPM(Constant()), shape=(1, 2, 2)).save_checkpoint(path)
    with pytest.raises(ValueError, match="Constant"):
        DDPM.load_from_checkpoint(path, weights_only=True)
    assert DDPM.load_from_checkpoint(path, weights_only=True, network=Constant()).sample(2).shape == (2, 1, 2, 2)


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: the learning rate is positive"),
        ({"warmup": -1}, "warmup=-1: count iterations from 0"),
        ({"ema_decay": 1.0}, r"ema_decay=1.0: the decay lies in \[0, 1\)"),
        ({"label_dropout": 1.5}, "label_dropout=1.5: a probability"),
        ({"network": None}, "DDPM needs a network, or the name of a pretrained one"),
        ({"network": nn.Identity()}, "the network Identity needs an attribute image_shape"),
        ({"sampler": Sampler(guidance=2.0)}, "guidance=2.0 mixes .* num_classes and null_label"),
        ({"sampler": Sampler(steps=11)}, "steps=11: the model has 10 timesteps"),
        ({"network": Constant(), "gradient_checkpointing": True}, r"needs a network with save_memory\(\).*Constant"),
    ],
)
def test_arguments_out_of_range_are_refused(make_ddpm, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_ddpm(**arguments)


def data_of(classes, shape=(1, 8, 8)):
    examples = Examples(torch.zeros(2, *shape, dtype=torch.uint8), torch.tensor([0, 0]), "zeros/train", classes)
    client = SimpleNamespace(data=examples, train=torch.tensor([0, 1]))
    return SimpleNamespace(datamodule=SimpleNamespace(image_shape=shape, clients=[client]))


def test_data_that_do_not_fit_are_refused_before_training(make_ddpm):
    module = make_ddpm(num_classes=2)
    for data, message in (
        (data_of(("a", "b"), (3, 8, 8)), r"the network was built for images \[1, 8, 8\].* got \[3, 8, 8\]"),
        (data_of(()), "zeros/train has no labels"),
        (data_of(("a", "b", "c")), "zeros/train has 3 classes and the model 2"),
    ):
        module.trainer = data
        with pytest.raises(ValueError, match=message):
            module.setup("fit")
    module.trainer = data_of(("a", "b"))
    module.setup("fit")
    assert module.label_frequencies.counts.tolist() == [2, 0]


def test_data_of_another_shape_are_refused_at_the_first_iteration(make_ddpm, fit):
    with pytest.raises(ValueError, match="network"):
        fit(make_ddpm(), shape=(3, 8, 8))


def test_wrong_labels_numbers_and_timesteps_are_refused(make_ddpm):
    plain, conditional = make_ddpm(), make_ddpm(num_classes=3)
    images = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ValueError, match="DDPM"):
        plain.sample(2, labels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="DDPM"):
        plain.example_losses(images, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="num_images"):
        plain.sample(0)
    for size in (0, -1):
        for call in (plain.sample, lambda *_, **options: plain.example_losses(images, **options)):
            with pytest.raises(ValueError, match=f"batch_size={size}: the network gets at least one image"):
                call(2, batch_size=size)
    with pytest.raises(ValueError, match="labels"):
        conditional.sample(2, labels=torch.tensor([0, 3]))
    for timesteps in (0, [], [10], [-1]):
        with pytest.raises(ValueError, match="timesteps"):
            plain.example_losses(images, timesteps=timesteps)
    only = DDPM(UNet(8, 1, (8,), 1, (), num_classes=2, null_label=False))
    with pytest.raises(ValueError, match="labels"):
        only.example_losses(images)


def test_labels_of_a_plain_loader_are_checked_in_its_first_batch(make_ddpm):
    images = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ValueError, match="batches"):
        make_ddpm(num_classes=2).training_step((images,), 0)
    with pytest.raises(ValueError, match="labels"):
        make_ddpm(num_classes=2).training_step((images, torch.tensor([0, 2])), 0)


def test_settings_are_named_or_made():
    assert DDPM(Constant(), sampler="ddim").sampling == {"solver": "ddim", "steps": 50}
    with pytest.raises(ValueError, match="Sampler"):
        DDPM(Constant(), sampler=3)


def test_modules_in_eval_mode_are_warned_of_in_other_peoples_models_alone(make_ddpm, fit):
    class Other(BoringModel):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(1, 1).eval()

        def training_step(self, batch, batch_idx):
            return self.layer(torch.zeros(1, 32)).sum()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for module, expected in ((make_ddpm(), False), (Other(), True)):
            fit(module, batches=1)
            assert any("in eval mode" in str(warning.message) for warning in caught) is expected


def test_a_command_line_can_name_networks_and_settings():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(DDPM, "model")
    config = {
        "network": {
            "class_path": "fedgen.models.networks.UNet",
            "init_args": {"image_size": 8, "channels": 1, "widths": [8], "layers": 1, "attention": []},
        },
        "schedule": {"kind": "cosine", "timesteps": 20},
        "sampler": {"solver": "ddim", "steps": 10},
        "lora": {"rank": 2, "targets": ["to_q"]},
    }
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # renamed in jsonargparse 4.49
    model = instantiate(parser.parse_object({"model": config})).model
    assert isinstance(model.network, UNet)
    assert model.diffusion.schedule == NoiseSchedule("cosine", 20)
    assert model.sampling == {"solver": "ddim", "steps": 10}
    assert model.lora.targets == ("to_q",)
    config["schedule"] = "cosine"
    assert instantiate(parser.parse_object({"model": config})).model.diffusion.schedule == NoiseSchedule("cosine")
