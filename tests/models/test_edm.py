"""EDM: the formulas of its Table 1, losses and samples, on data whose denoiser is known, and against diffusers."""

import math
import warnings

import pytest
import torch
from torch import nn

from fedgen.models import EDM, EDMSampler
from fedgen.models.diffusion.edm import Preconditioning, denoise_edm, noise_levels
from fedgen.models.networks import UNet
from tests.models.gaussian_data import DEVIATION, MEAN, ExactDenoiser, denoised, seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")
SIGMAS = torch.tensor([0.002, 0.1, 0.5, 3.0, 80.0], dtype=torch.float64)


class Constant(nn.Module):
    """Gives the same number everywhere; remembers what it saw."""

    def __init__(self, num_classes=None):
        super().__init__()
        self.image_shape, self.num_classes, self.null_label = (1, 2, 2), num_classes, True
        self.value, self.seen = nn.Parameter(torch.tensor(0.5)), []

    def forward(self, images, times, labels=None):
        self.seen.append((images, times, labels))
        return self.value.expand(images.shape)


def make_edm(num_classes=None, **arguments):
    torch.manual_seed(0)
    network = UNet(8, 1, (8,), 1, (), num_classes=num_classes)
    nn.init.normal_(network.body.conv_out.weight, std=0.1)
    return EDM(**({"network": network} | arguments))


def exact(points, times, part):
    """The network's exact output in float64."""
    sigma = (4 * times).exp()
    conditions = Preconditioning()
    noisy = points / conditions.c_in(sigma)
    return conditions.target(denoised(noisy, sigma), noisy, sigma)


# ---- formulas ----


def test_inputs_and_targets_have_unit_variance_and_errors_unit_weight():
    """For images of deviation sigma_data, at all noise levels: the identities of the paper's appendix B.6."""
    conditions = Preconditioning(sigma_data=0.7)
    own = 0.7**2
    assert torch.allclose(conditions.c_in(SIGMAS) ** 2 * (own + SIGMAS**2), torch.ones(5).double())
    skip, out = conditions.c_skip(SIGMAS), conditions.c_out(SIGMAS)
    assert torch.allclose(((1 - skip) ** 2 * own + skip**2 * SIGMAS**2) / out**2, torch.ones(5).double())
    assert torch.allclose(conditions.weight(SIGMAS) * out**2, torch.ones(5).double())
    for sigma in (0.1, 0.5, 3.0):  # c_skip amplifies the network's errors least
        least = min(
            (((1 - skip) ** 2 * own + skip**2 * sigma**2), skip) for skip in torch.linspace(0, 1, 10_001).tolist()
        )
        assert float(conditions.c_skip(torch.tensor(sigma))) == pytest.approx(least[1], abs=1e-4)


def test_they_are_those_of_diffusers():
    from diffusers import EDMDPMSolverMultistepScheduler, EDMEulerScheduler

    conditions = Preconditioning(sigma_data=0.7)
    sample, output = torch.randn(2, 4, 3, generator=seeded(), dtype=torch.float64).unbind()
    for kind in (EDMEulerScheduler, EDMDPMSolverMultistepScheduler):
        theirs = kind(sigma_min=0.01, sigma_max=20.0, sigma_data=0.7, rho=5.0)
        for sigma in SIGMAS:
            assert torch.allclose(theirs.precondition_inputs(sample, sigma), conditions.c_in(sigma) * sample)
            assert torch.allclose(theirs.precondition_noise(sigma), conditions.c_noise(sigma))
            clean = conditions.c_skip(sigma) * sample + conditions.c_out(sigma) * output
            assert torch.allclose(theirs.precondition_outputs(sample, output, sigma), clean)
        theirs.set_timesteps(9)
        assert torch.allclose(theirs.sigmas.double(), noise_levels(9, 0.01, 20.0, 5.0), rtol=1e-5)


def test_steps_of_euler_are_those_of_diffusers():
    from diffusers import EDMEulerScheduler

    scheduler = EDMEulerScheduler()
    scheduler.set_timesteps(6)
    noise = torch.randn(3, 4, generator=seeded())
    images = noise * scheduler.sigmas[0]
    for place, timestep in enumerate(scheduler.timesteps):
        scaled = scheduler.scale_model_input(images, timestep)
        predicted = exact(scaled, torch.as_tensor(scheduler.sigmas[place]).log() / 4, slice(None))
        images = scheduler.step(predicted, timestep, images).prev_sample
    ours = denoise_edm(exact, noise, Preconditioning(), EDMSampler("euler", 6), 2, None)
    assert torch.allclose(ours, images, atol=1e-3)


def test_noise_levels_are_log_normal_and_spread_over_equally_probable_parts():
    from scipy.stats import kstest, norm

    conditions = Preconditioning(p_mean=-0.4, p_std=0.9)
    torch.manual_seed(0)
    drawn = (conditions.draw_sigmas(2000, torch.device("cpu")).log() + 0.4) / 0.9
    assert kstest(drawn.numpy(), "norm").pvalue > 0.01
    spread = conditions.spread_sigmas(8, seeded())
    places = norm.cdf(((spread.log() + 0.4) / 0.9).numpy())
    assert (8 * places).astype(int).tolist() == list(range(8))


# ---- training ----


def test_the_loss_is_that_of_equation_8():
    """Written as the paper does: lambda times the squared error of the denoised image."""
    network, images = Constant(), torch.rand(3, 1, 2, 2, generator=seeded()) * 2 - 1
    torch.manual_seed(7)
    loss = EDM(network, sigma_data=0.6, p_mean=-1.0, p_std=1.1).training_step((images,), 0).detach()
    torch.manual_seed(7)
    sigma = (1.1 * torch.randn(3) - 1.0).exp().view(3, 1, 1, 1)
    noisy = images + sigma * torch.randn(3, 1, 2, 2)
    root = (sigma**2 + 0.36).sqrt()
    clean = 0.36 / root**2 * noisy + 0.6 * sigma / root * 0.5
    weighted = root**2 / (0.6 * sigma) ** 2 * (clean - images).square()
    assert float(loss) == pytest.approx(float(weighted.mean()), rel=1e-4)
    seen, times, _ = network.seen[0]
    assert torch.allclose(seen, noisy / root, atol=1e-6)
    assert torch.allclose(times, sigma.flatten().log() / 4)


def test_the_loss_of_the_exact_denoiser_is_the_conditional_variance_and_of_another_more():
    conditions, sigma = Preconditioning(), 0.3
    network = ExactDenoiser(conditions, (4,))
    model = EDM(network, ema_decay=None)
    images = MEAN + DEVIATION * torch.randn(1500, 4, generator=seeded())
    losses = model.example_losses(images, sigmas=[sigma]).double()
    variance = DEVIATION**2 * sigma**2 / (DEVIATION**2 + sigma**2) * float(conditions.weight(torch.tensor(sigma)))
    assert float(losses.mean()) == pytest.approx(variance, abs=4 * float(losses.std()) / 1500**0.5)
    with torch.no_grad():
        network.factor.fill_(0.8)
    assert model.example_losses(images, sigmas=[sigma]).mean() > losses.mean()


@pytest.mark.parametrize("sigma", SIGMAS.tolist())
def test_a_step_to_no_noise_ends_at_the_denoised_image_which_gives_the_score(sigma):
    """One step of Euler's method from sigma to 0 is D(x; sigma), and (D(x; sigma) - x) / sigma^2 is the score (Eq. 3).

    That of N(mean, deviation^2 + sigma^2), the data and their noise. The network is written by Table 1 and the data's
    precisions alone, so that factors of the library that are wrong do not cancel.
    """
    data = 0.7  # sigma_data

    def network(scaled, noise, part):
        level = (4 * noise).exp()
        root = (level**2 + data**2).sqrt()
        noisy = scaled * root
        clean = (noisy / level**2 + MEAN / DEVIATION**2) / (1 / level**2 + 1 / DEVIATION**2)
        return (clean - data**2 / root**2 * noisy) / (level * data / root)

    sampler = EDMSampler("euler", 1, sigma_min=sigma / 2, sigma_max=sigma)
    noise = torch.randn(5, 3, generator=seeded(), dtype=torch.float64)
    points = sigma * noise
    denoised_points = denoise_edm(network, noise, Preconditioning(data), sampler, 5, None)
    score = -(points - MEAN) / (DEVIATION**2 + sigma**2)
    torch.testing.assert_close((denoised_points - points) / sigma**2, score, rtol=1e-7, atol=1e-9)


def test_example_losses_are_at_fixed_draws_whatever_the_batch_and_the_company():
    model = EDM(ExactDenoiser(Preconditioning(), (1, 2, 2)), ema_decay=None)
    images = torch.rand(5, 1, 2, 2, generator=seeded())
    losses = model.example_losses(images, sigmas=4)
    assert torch.allclose(losses, model.example_losses(images, sigmas=4, batch_size=2), rtol=1e-4)
    assert torch.allclose(losses[3:], model.example_losses(images[3:], sigmas=4, start=3), rtol=1e-4)
    assert not torch.allclose(losses, model.example_losses(images, sigmas=4, seed=1))


# ---- sampling ----


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
def test_solvers_converge_to_normal_data_with_their_order(solver, order):
    """The exact map shrinks the distance to the mean from sigma_max's deviation to the data's."""
    noise, top = torch.randn(4, 3, generator=seeded(), dtype=torch.float64), 20.0
    end = MEAN + (top * noise - MEAN) * DEVIATION / math.sqrt(DEVIATION**2 + top**2)

    def error(steps):
        sampler = EDMSampler(solver, steps, sigma_min=1e-4, sigma_max=top)
        return float((denoise_edm(exact, noise, Preconditioning(), sampler, 3, None) - end).abs().max())

    assert error(40) < 0.1
    assert math.log2(error(80) / error(160)) == pytest.approx(order, abs=0.15)


@pytest.mark.slow
def test_points_are_normal_with_and_without_churn():
    """Churned noise is taken away again: mean and deviation stay, and points become others."""
    model = EDM(ExactDenoiser(Preconditioning()), ema_decay=None)
    plain = model.sample(4000, seeded(), steps=100)
    model.sampling = {"churn": 20.0}
    churned = model.sample(4000, seeded(), steps=100)
    assert (churned - plain).abs().mean() > 0.1
    for points in (plain, churned):
        assert float(points.mean()) == pytest.approx(MEAN, abs=4 * DEVIATION / 8000**0.5)
        assert float(points.std()) == pytest.approx(DEVIATION, rel=0.04)


def test_churn_is_bounded_and_inside_its_levels():
    sampler = EDMSampler(steps=10, churn=2.0, churn_from=0.1, churn_to=5.0)
    assert [sampler.gamma(sigma) for sigma in (0.05, 0.1, 5.0, 6.0)] == [0.0, 0.2, 0.2, 0.0]
    assert EDMSampler(steps=2, churn=80.0).gamma(50.0) == math.sqrt(2) - 1
    assert EDMSampler().gamma(1.0) == 0.0


def test_churned_steps_of_euler_are_those_of_diffusers():
    """With a network that gives the same whatever it is asked: diffusers asks before it adds the noise."""
    from diffusers import EDMEulerScheduler

    noise, output = torch.randn(2, 3, 4, generator=seeded(1)).unbind()
    sampler = EDMSampler("euler", 30, churn=10.0, churn_from=0.1, churn_to=30.0, churn_noise=1.1)
    scheduler = EDMEulerScheduler()
    scheduler.set_timesteps(30)
    raised = [sampler.gamma(float(level)) for level in scheduler.sigmas[:30]]
    assert (raised.count(0.0), raised.count(10 / 30)) == (12, 18)  # 5 levels above 30, 7 below 0.1
    images, draws = noise * scheduler.sigmas[0], seeded()
    churn = {"s_churn": 10.0, "s_tmin": 0.1, "s_tmax": 30.0, "s_noise": 1.1, "generator": draws}
    for timestep in scheduler.timesteps:
        scheduler.scale_model_input(images, timestep)
        images = scheduler.step(output, timestep, images, **churn).prev_sample
    ours = denoise_edm(lambda scaled, times, part: output[part], noise, Preconditioning(), sampler, 2, seeded())
    torch.testing.assert_close(ours, images, rtol=1e-4, atol=1e-5)


def test_a_churned_step_of_heun_is_that_of_algorithm_2():
    """Its lines one by one, with S_noise of 1.5, from level 2 over level 1 to 0; D(x; sigma) is x / (1 + sigma^2).

    That is the denoiser of N(0, 1), and with sigma_data of 1 the network gives 0 for it.
    """
    asked = []

    def network(scaled, times, part):
        asked.append((float(scaled), float(times)))
        return torch.zeros_like(scaled)

    noise, drawn = torch.tensor([[1.0]]), torch.randn(1, 1, generator=seeded())
    sampler = EDMSampler("heun", 2, sigma_min=1.0, sigma_max=2.0, churn=0.5, churn_from=1.5, churn_noise=1.5)
    assert sampler.gamma(2.0) == 0.25
    raised = 2 * (1 + 0.25)  # line 6: t^ = t + gamma t
    noisy = 2.0 + math.sqrt(raised**2 - 2.0**2) * 1.5 * float(drawn)  # lines 4 and 6: x^, eps of N(0, S_noise^2)
    slope = (noisy - noisy / (1 + raised**2)) / raised  # line 7: d = (x^ - D(x^; t^)) / t^
    moved = noisy + (1 - raised) * slope  # line 8
    after = (moved - moved / (1 + 1)) / 1  # line 10: d'
    corrected = noisy + (1 - raised) * (slope + after) / 2  # line 11
    clean = corrected / (1 + 1)  # the last step, to 0, ends at D(x; 1)
    found = denoise_edm(network, noise, Preconditioning(1.0), sampler, 1, seeded())
    assert float(found) == pytest.approx(clean, rel=1e-5)
    expected = [(noisy, raised), (moved, 1.0), (corrected, 1.0)]
    for (scaled, time), (point, level) in zip(asked, expected, strict=True):
        assert scaled == pytest.approx(point / math.sqrt(1 + level**2), rel=1e-5)
        assert time == pytest.approx(math.log(level) / 4, abs=1e-6)


@pytest.mark.parametrize("churn", [0.0, 5.0])
def test_images_follow_the_generator_whatever_the_batch_size(churn):
    model = make_edm(sampler=EDMSampler(steps=4, churn=churn))
    images = model.sample(5, seeded())
    assert images.shape == (5, 1, 8, 8)
    assert images.abs().max() <= 1
    before = torch.get_rng_state()
    assert torch.equal(images, model.sample(5, seeded()))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.allclose(images, model.sample(5, seeded(), batch_size=2), atol=1e-4)
    assert not torch.equal(images, model.sample(5, seeded(1)))


def test_heuns_method_asks_the_network_twice_but_for_the_last_step():
    network = ExactDenoiser(Preconditioning())
    model = EDM(network, ema_decay=None)
    model.sample(2, seeded(), steps=6)
    assert len(network.seen) == 11
    model.sample(2, seeded(), solver="euler", steps=6)
    assert len(network.seen) == 11 + 6


@pytest.mark.slow
def test_guidance_mixes_the_denoised_images():
    """Labels shift the mean; "any class" is the label after the last."""
    model = EDM(ExactDenoiser(Preconditioning(), num_classes=3), ema_decay=None)
    noise, labels = torch.randn(4, 2, generator=seeded()), torch.tensor([0, 1, 2, 2])
    ratio = DEVIATION / math.sqrt(DEVIATION**2 + 80**2)
    for guidance in (1.0, 2.0):
        mean = MEAN + 3 + guidance * (labels[:, None] - 3)
        found = model.sample(4, seeded(), labels=labels, steps=200, guidance=guidance)
        assert torch.allclose(found, mean + (80 * noise - mean) * ratio, atol=2e-3)


def test_how_images_are_drawn_is_told_in_plain_types_and_changed():
    model = EDM(Constant(num_classes=2))
    told = {"solver": "heun", "steps": 18, "sigma_min": 0.002, "sigma_max": 80.0, "rho": 7.0, "churn": 0.0}
    assert model.sampling == told | {"guidance": 1.0}
    model.sampling = {"solver": "euler", "sigma_max": 40.0, "guidance": 2.0}
    assert model.sampling == told | {"solver": "euler", "sigma_max": 40.0, "guidance": 2.0}
    model.sampling = {"churn": 3.0, "churn_noise": 1.01}
    assert model.sampling["churn_noise"] == 1.01


# ---- checkpoints and errors ----


@pytest.mark.slow
def test_a_checkpoint_loads_without_arguments_and_without_pickles(fit, tmp_path):
    options = {"sigma_data": 0.7, "p_mean": -1.0, "p_std": 1.1, "warmup": 7}
    model = make_edm(num_classes=3, sampler=EDMSampler(steps=3, churn=1.0, guidance=2.0), **options)
    path = tmp_path / "model.ckpt"
    fit(model, batches=1).save_checkpoint(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = EDM.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(loaded.sample(4, seeded()), model.sample(4, seeded()))
    assert loaded.hparams == model.hparams
    assert loaded.conditions == Preconditioning(0.7, -1.0, 1.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma_data": 0.0}, "sigma_data=0.0: the images' deviation is positive"),
        ({"p_std": 0.0}, "p_std=0.0: the deviation of ln sigma is positive"),
        ({"sampler": "dopri5"}, "solver='dopri5': choose 'heun' or 'euler'"),
        ({"sampler": {"steps": 0}}, "steps=0: an image takes at least one step"),
        ({"sampler": {"sigma_min": 2.0, "sigma_max": 1.0}}, "sigma_min=2.0, sigma_max=1.0.*noise falls"),
        ({"sampler": {"churn": -1.0}}, "churn=-1.0, .*: none is negative"),
        ({"sampler": {"guidance": 2.0}, "network": ExactDenoiser(Preconditioning())}, "guidance=2.0 mixes"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        EDM(**({"network": Constant()} | arguments))


def test_noise_levels_that_cannot_be_are_refused():
    model = EDM(ExactDenoiser(Preconditioning(), (1, 2, 2)))
    for sigmas in (0, [], [0.0]):
        with pytest.raises(ValueError, match="sigmas"):
            model.example_losses(torch.zeros(2, 1, 2, 2), sigmas=sigmas)
