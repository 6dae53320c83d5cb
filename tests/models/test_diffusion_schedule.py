import math

import pytest
import torch
from diffusers import DDPMScheduler

from fedgen.models.diffusion.ddpm import draw_timesteps
from fedgen.models.diffusion.diffusion_process import Diffusion, NoiseSchedule


def test_the_linear_schedule_is_the_papers():
    remaining = NoiseSchedule().remaining()
    left = 1.0
    for t in range(1000):
        left *= 1 - (1e-4 + (0.02 - 1e-4) * t / 999)
        assert float(remaining[t]) == pytest.approx(left, rel=1e-4)
    assert left == pytest.approx(4.04e-5, rel=1e-2)


def test_the_cosine_schedule_is_equation_17_of_nichol_and_dhariwal():
    def f(t):
        return math.cos((t / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2

    remaining = NoiseSchedule("cosine").remaining()
    for t in (0, 1, 10, 500, 900):  # the last ones are capped: beta <= 0.999
        assert float(remaining[t]) == pytest.approx(f(t + 1) / f(0), rel=1e-3)


@pytest.mark.parametrize("kind", ["linear", "cosine", "scaled_linear"])
def test_noisy_images_and_velocities_are_those_of_diffusers(kind):
    draws = torch.Generator().manual_seed(0)
    images, noise = torch.randn(2, 4, 1, 3, 3, generator=draws)
    timesteps = torch.tensor([0, 1, 500, 999])
    schedule = NoiseSchedule(kind)
    theirs = DDPMScheduler(**schedule.settings("v"))
    ours = Diffusion(schedule, "v")
    assert torch.allclose(ours.add_noise(images, noise, timesteps), theirs.add_noise(images, noise, timesteps))
    assert torch.allclose(ours.target(images, noise, timesteps), theirs.get_velocity(images, noise, timesteps))
    assert torch.equal(Diffusion(schedule, "epsilon").target(images, noise, timesteps), noise)


def test_a_velocity_tells_the_noise():
    images, noise = torch.randn(2, 4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    timesteps = torch.tensor([0, 1, 500, 999])
    diffusion = Diffusion(NoiseSchedule(), "v")
    noisy = diffusion.add_noise(images, noise, timesteps)
    found = diffusion.epsilon(diffusion.target(images, noise, timesteps), noisy, timesteps)
    assert torch.allclose(found, noise, atol=1e-5)


def test_half_precision_leaves_the_schedule_as_it_is_and_nothing_is_saved():
    diffusion = Diffusion(NoiseSchedule(), "epsilon")
    before = diffusion.signal.clone()
    assert torch.equal(diffusion.bfloat16().signal, before)
    assert diffusion.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_in_half_precision_are_noised_in_full(dtype):
    images, noise = torch.randn(2, 4, 1, 3, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    timesteps = torch.tensor([0, 1, 500, 999])
    half, full = Diffusion(NoiseSchedule(), "v").to(dtype), Diffusion(NoiseSchedule(), "v")
    for name in ("add_noise", "target", "epsilon"):
        found = getattr(half, name)(images, noise, timesteps)
        assert found.dtype == torch.float32
        assert torch.equal(found, getattr(full, name)(images.float(), noise.float(), timesteps))


def test_timesteps_are_one_in_each_equal_part():
    found = draw_timesteps(10, 1000, torch.Generator().manual_seed(0))
    assert (found // 100).tolist() == list(range(10))
    assert draw_timesteps(1000, 10, torch.Generator().manual_seed(0)).bincount().tolist() == [100] * 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "square"}, "schedule='square': choose 'linear' or 'cosine'"),
        ({"timesteps": 0}, "timesteps=0"),
        ({"beta_end": 1.0}, r"beta_end=1.0: .*0 < beta_start <= beta_end < 1"),
        ({"variance": "learned"}, "variance='learned': choose 'fixed_large' or 'fixed_small'"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        NoiseSchedule(**arguments)
    with pytest.raises(ValueError, match="prediction"):
        Diffusion(NoiseSchedule(), "x0")
