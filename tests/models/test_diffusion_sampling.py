import pytest
import torch

from fedgen.models.diffusion.diffusion_process import (
    Diffusion,
    NoiseSchedule,
    Sampler,
    denoise,
    make_scheduler,
    predictor,
)


def knowing(image, schedule, prediction="epsilon"):
    """The perfect predictor of a distribution that holds one image."""
    diffusion = Diffusion(schedule, prediction)

    def predict(noisy, timestep, part):
        at = timestep.expand(len(noisy))
        noise = (noisy - diffusion.signal[timestep] * image) / diffusion.noise[timestep]
        return diffusion.target(image.expand_as(noisy), noise, at)

    return predict


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize(("solver", "steps"), [("dpm-solver++", None), ("ddim", None), ("ddpm", None), ("ddim", 8)])
def test_a_network_that_knows_the_only_image_leads_every_solver_to_it(solver, steps, kind, prediction):
    image = torch.tensor([[-1.0, 1.0], [0.25, -0.5]]).view(1, 1, 2, 2)
    schedule = NoiseSchedule(kind, timesteps=200)
    scheduler = make_scheduler(Sampler(solver, steps), schedule, prediction)
    latents = torch.randn(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    found = denoise(knowing(image, schedule, prediction), latents, scheduler, 2, torch.Generator().manual_seed(1))
    assert torch.allclose(found, image.expand(5, -1, -1, -1), atol=0.02)


def test_ancestral_noise_does_not_depend_on_the_batch_size_nor_on_the_global_generator():
    schedule = NoiseSchedule(timesteps=5)
    latents = torch.randn(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))

    def draw(batch_size, seed):
        scheduler = make_scheduler(Sampler("ddpm"), schedule, "epsilon")
        return denoise(lambda x, t, part: x / 2, latents, scheduler, batch_size, torch.Generator().manual_seed(seed))

    before = torch.get_rng_state()
    assert torch.equal(draw(5, 0), draw(2, 0))
    assert not torch.equal(draw(5, 0), draw(5, 1))
    assert torch.equal(before, torch.get_rng_state())


def test_one_ancestral_step_is_algorithm_2_of_the_paper():
    """x_{t-1} = (x_t - beta_t / sqrt(1 - abar_t) e) / sqrt(alpha_t) + sqrt(beta_t) z, checked at t = 1, 0 of two."""
    schedule = NoiseSchedule(timesteps=2, beta_start=0.1, beta_end=0.2, clip=False)
    scheduler = make_scheduler(Sampler("ddpm"), schedule, "epsilon")
    latents = torch.tensor([0.3]).view(1, 1, 1, 1)
    noise = torch.randn(1, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    found = denoise(lambda x, t, part: 0 * x + 0.05, latents, scheduler, 1, torch.Generator().manual_seed(0))
    first = (0.3 - 0.2 / (1 - 0.9 * 0.8) ** 0.5 * 0.05) / 0.8**0.5 + 0.2**0.5 * noise
    last = (first - 0.1 / 0.1**0.5 * 0.05) / 0.9**0.5
    assert torch.allclose(found, last.clamp(-1, 1), atol=1e-5)


class Counting(torch.nn.Module):
    """Predicts a number for each label, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.values, self.calls = torch.nn.Parameter(torch.tensor([1.0, 10.0, 100.0])), 0

    def forward(self, images, timesteps, labels):
        self.calls += 1
        return self.values[labels].view(-1, 1, 1, 1).expand_as(images)


@pytest.mark.parametrize(
    ("guidance", "expected", "calls"), [(1.0, [1, 10], 1), (0.0, [100, 100], 2), (3.0, [-197, -170], 2)]
)
def test_guidance_goes_from_any_class_to_the_class_and_beyond(guidance, expected, calls):
    """any + w (class - any): 100 + 3 (1 - 100) = -197."""
    network = Counting()
    predict = predictor(network, torch.tensor([0, 0, 1]), guidance, null_label=2)
    found = predict(torch.zeros(2, 1, 1, 1), torch.tensor(5), slice(1, 3))
    assert found.flatten().tolist() == expected
    assert network.calls == calls


def test_steps_follow_the_solver_unless_given():
    assert Sampler().num_steps(1000) == 20
    assert Sampler().num_steps(8) == 8
    assert Sampler("ddpm").num_steps(1000) == 1000
    assert Sampler("ddim").num_steps(1000) == 50
    assert Sampler("ddim").num_steps(60) == 30
    assert Sampler("ddim", 7).changed("ddpm", None, None) == Sampler("ddpm")
    assert Sampler("ddim", 7).changed("ddim", None, 2.0) == Sampler("ddim", 7, 2.0)
    assert Sampler("ddim", 7).changed(None, 9, None) == Sampler("ddim", 9)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="solver"):
        Sampler("euler")
    with pytest.raises(ValueError, match="steps"):
        Sampler(steps=0)
    with pytest.raises(ValueError, match="timesteps"):
        Sampler(steps=11).num_steps(10)
    with pytest.raises(ValueError, match="timesteps"):
        Sampler("ddim", 7).num_steps(10)
