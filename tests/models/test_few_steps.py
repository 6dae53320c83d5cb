"""A DDPM as a generator of latents: the same images, gradients through all steps, and training on scores."""

import pytest
import torch

from fedgen.losses import DistributedLoss, EmbeddedLoss, MMD2Loss
from fedgen.models import GAN, FewStepGenerator, FineTuning, Hinge
from fedgen.models.diffusion.diffusion_process import NoiseSchedule
from fedgen.models.networks import SmallCritic
from tests.losses.simple import two_numbers
from tests.models.test_distributed_fine_tuning import SIZES, make, noise
from tests.models.test_distributed_fine_tuning import fit as fit_clients
from tests.quick import first_quick

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def objective(**options):
    loss = EmbeddedLoss(DistributedLoss(MMD2Loss()), [two_numbers("a")], **options)
    return loss.set_references(noise(sum(SIZES), 1).inputs.split(SIZES))


CASES = [
    ({}, True, 5),
    ({"prediction": "v"}, False, 5),
    ({}, False, 2),
    ({"num_classes": 3}, True, 2),
    ({}, True, 1),
    ({"ema_decay": None}, False, 1),
]


@pytest.mark.parametrize(("options", "clip", "steps"), first_quick(CASES, of=2, several=True), ids=str)
def test_its_images_are_those_of_ddim(make_ddpm, options, clip, steps):
    """Those that the model draws with that solver, from the same noise."""
    ddpm = make_ddpm(**options, schedule=NoiseSchedule(timesteps=10, clip=clip, beta_end=0.3))
    generator = FewStepGenerator(ddpm, steps).eval()
    labels = torch.tensor([0, 2, 1, 1]) if ddpm.num_classes else None
    expected = ddpm.sample(4, draws(), labels, solver="ddim", steps=steps)
    with torch.no_grad():
        found = generator(torch.randn(4, 64, generator=draws()), *(() if labels is None else (labels,)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (generator.latent_dim, generator.num_classes, generator.image_shape) == (64, ddpm.num_classes, (1, 8, 8))


def test_it_starts_from_the_average_in_a_copy_that_trains(make_ddpm):
    ddpm = make_ddpm(ema_decay=0.9)
    for parameter in ddpm.network_ema.network.parameters():
        parameter.data.mul_(0.5)
    generator = FewStepGenerator(ddpm, 2)
    for mine, average, live in zip(
        generator.network.parameters(), ddpm.averaged.parameters(), ddpm.network.parameters()
    ):
        assert torch.equal(mine, average)
        assert mine.requires_grad
        assert mine.data_ptr() not in (average.data_ptr(), live.data_ptr())


def test_every_step_and_every_pixel_has_a_gradient(make_ddpm):
    generator = FewStepGenerator(make_ddpm(), 5)
    latents = (3 * torch.randn(4, 64, generator=draws())).requires_grad_()
    images = generator(latents)
    assert (images.abs() == 1).any()
    (gradient,) = torch.autograd.grad(images.sum(), latents)
    assert (gradient != 0).all()


def test_one_gradient_step_lowers_the_loss(make_ddpm):
    generator, loss = FewStepGenerator(make_ddpm(), 2), objective(weight=5.0)
    latents = torch.randn(16, 64, generator=draws())
    before = loss(generator(latents))
    before.backward()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter -= 0.01 * parameter.grad
        assert loss(generator(latents)) < before


@pytest.mark.slow
def test_fine_tuning_trains_it_in_chunks_and_its_checkpoint_samples_by_itself(make_ddpm, fit, tmp_path):
    module = FineTuning(FewStepGenerator(make_ddpm(), 2), [objective()], batch=8, chunk=3, lr=1e-3)
    trainer = fit(module, batches=3)
    first = float(trainer.callback_metrics["kid_loss/a"])
    trainer = fit(module, batches=3)
    assert float(trainer.callback_metrics["kid_loss/a"]) < first
    trainer.save_checkpoint(tmp_path / "few.ckpt")
    again = FineTuning.load_from_checkpoint(tmp_path / "few.ckpt", weights_only=True)
    assert torch.equal(again.sample(3, draws()), module.sample(3, draws()))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["exact", "local"])
def test_it_plays_a_game_on_the_servers_images_towards_the_clients(make_ddpm, form):
    torch.manual_seed(0)
    model = GAN(FewStepGenerator(make_ddpm(), 2), SmallCritic(width=2), Hinge())
    trainer = fit_clients(make(form, model))
    assert trainer.callback_metrics["megabytes_up"] > 0


@pytest.mark.slow
def test_a_checkpoints_path_does_too(make_ddpm, fit, tmp_path):
    ddpm = make_ddpm()
    fit(ddpm, batches=1).save_checkpoint(tmp_path / "ddpm.ckpt")
    generator = FewStepGenerator(str(tmp_path / "ddpm.ckpt"), 2)
    for mine, average in zip(generator.network.parameters(), ddpm.averaged.parameters()):
        assert torch.equal(mine, average)


def test_steps_divide_the_timesteps(make_ddpm):
    with pytest.raises(ValueError, match="timesteps"):
        FewStepGenerator(make_ddpm(), 4)
