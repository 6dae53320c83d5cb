"""Flow matching: paths, couplings, losses and samples, on data whose velocities are known."""

import math
import warnings
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from fedgen.models import FlowMatching, FlowSampler
from fedgen.models.diffusion.flow_matching import FlowPath, couple
from fedgen.models.diffusion.flow_ode import integrate_fixed
from fedgen.models.networks import UNet
from tests.models.gaussian_data import DEVIATION, MEAN, ExactVelocity, seeded, velocity

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


class Constant(nn.Module):
    """Predicts the same number everywhere; remembers what it saw."""

    def __init__(self, num_classes=None, shape=(1, 2, 2)):
        super().__init__()
        self.image_shape, self.num_classes, self.null_label = shape, num_classes, True
        self.value, self.seen = nn.Parameter(torch.tensor(0.5)), []

    def forward(self, images, timesteps, labels=None):
        self.seen.append((images, timesteps, labels))
        return self.value.expand(images.shape)


def make_flow(num_classes=None, **arguments):
    torch.manual_seed(0)
    network = UNet(8, 1, (8,), 1, (), num_classes=num_classes)
    nn.init.normal_(network.body.conv_out.weight, std=0.1)
    return FlowMatching(**({"network": network} | arguments))


# ---- the path ----


@pytest.mark.parametrize("sigma_min", [0.0, 0.1])
def test_paths_lead_from_noise_to_images_at_the_velocity(sigma_min):
    path, images, noise = FlowPath(sigma_min), torch.rand(3, 2, dtype=torch.float64), torch.randn(3, 2).double()
    start, end = (path.at(torch.full((3,), t).double(), images, noise) for t in (0.0, 1.0))
    assert torch.equal(start, noise)
    assert torch.allclose(end, images + sigma_min * noise, rtol=1e-12)
    assert torch.allclose(path.velocity(images, noise), end - start, rtol=1e-12)


def test_it_is_the_flow_of_diffusers_with_time_turned_round():
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler, steps = FlowMatchEulerDiscreteScheduler(shift=1.0), 7
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps).tolist())
    images, noise = torch.rand(3, 4), torch.randn(3, 4)
    theirs = scheduler.scale_noise(images, scheduler.timesteps[2:3], noise)
    assert torch.allclose(theirs, FlowPath().at(torch.full((3,), 2 / steps), images, noise), atol=1e-6)
    points = noise
    for timestep in scheduler.timesteps:
        at = (1 - timestep / 1000).expand(3)
        points = scheduler.step(-velocity(points, at), timestep, points).prev_sample
    ours = integrate_fixed(lambda t, x, who: velocity(x, t), noise, "euler", FlowSampler("euler", steps).times)
    assert torch.allclose(ours, points, atol=1e-5)


def test_times_are_uniform_or_logit_normal():
    torch.manual_seed(0)
    device = torch.device("cpu")
    uniform = FlowPath().draw_times(2000, device).double()
    esser = FlowPath(times="logit-normal").draw_times(2000, device).double()
    assert kstest(uniform.numpy(), "uniform").pvalue > 0.01
    assert kstest(torch.logit(esser).numpy(), "norm").pvalue > 0.01


# ---- coupling ----


def test_the_coupling_is_the_best_of_all_permutations():
    for seed in range(5):
        images, noise = torch.randn(2, 6, 3, generator=seeded(seed)).unbind()
        best = min(float((images - noise[list(order)]).square().sum()) for order in permutations(range(6)))
        coupled = couple(images, noise)
        assert float((images - coupled).square().sum()) == pytest.approx(best, rel=1e-6)
        assert torch.equal(coupled.sort(0).values, noise.sort(0).values)


def test_with_labels_each_label_keeps_the_noise_that_came_with_it():
    images, noise = torch.randn(2, 9, 2, generator=seeded()).unbind()
    labels = torch.tensor([0, 1, 2] * 3)
    coupled = couple(images, noise, labels)
    assert not torch.equal(coupled, noise)
    for label in range(3):
        own = labels == label
        assert torch.equal(coupled[own], couple(images[own], noise[own]))


def test_coupled_noise_is_normal_given_the_label_and_would_not_be_if_dealt_over_labels():
    """Of two labels far apart, over many batches: the marginals that sampling by labels relies on."""
    draws = seeded()
    kept, dealt = [], []
    for _ in range(200):
        labels = torch.randint(0, 2, (8,), generator=draws)
        images = 3 * labels[:, None] + 0.1 * torch.randn(8, 1, generator=draws)
        noise = torch.randn(8, 1, generator=draws)
        kept.append(couple(images, noise, labels)[labels == 0])
        dealt.append(couple(images, noise)[labels == 0])
    assert kstest(torch.cat(kept)[:, 0].numpy(), "norm").pvalue > 0.01
    assert kstest(torch.cat(dealt)[:, 0].numpy(), "norm").pvalue < 1e-10


def test_training_couples_noise_with_each_labels_images():
    images = torch.randn(6, 1, 2, 2, generator=seeded())
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    network = Constant(num_classes=2)
    model = FlowMatching(network, coupling="optimal-transport", label_dropout=0.0)
    torch.manual_seed(7)
    loss = model.training_step((images, labels), 0).detach()
    torch.manual_seed(7)
    times, noise = torch.rand(6), torch.randn(6, 1, 2, 2)
    coupled = couple(images, noise, labels)
    assert not torch.equal(coupled, noise)
    assert torch.equal(network.seen[0][0], FlowPath().at(times, images, coupled))
    assert float(loss) == pytest.approx(float((0.5 - (images - coupled)).square().mean()), rel=1e-5)


# ---- training ----


@pytest.mark.parametrize("sigma_min", [0.0, 0.2])
def test_the_loss_is_that_of_equation_23_at_a_thousand_times_the_time(sigma_min):
    network, images = Constant(), torch.rand(3, 1, 2, 2, generator=seeded())
    torch.manual_seed(7)
    loss = FlowMatching(network, sigma_min=sigma_min).training_step((images,), 0).detach()
    torch.manual_seed(7)
    times, noise = torch.rand(3), torch.randn(3, 1, 2, 2)
    t = times.view(3, 1, 1, 1)
    seen, timesteps, _ = network.seen[0]
    assert torch.allclose(seen, t * images + (1 - (1 - sigma_min) * t) * noise, atol=1e-6)
    assert torch.equal(timesteps, 1000 * times)
    assert float(loss) == pytest.approx(float((0.5 - images + (1 - sigma_min) * noise).square().mean()), rel=1e-5)


@pytest.mark.parametrize(("sigma_min", "at"), [(0.0, 0.3), (0.1, 0.8)])
def test_least_squares_over_draws_find_the_exact_velocity(sigma_min, at):
    """The target regressed on the noisy point: slope and intercept, within five standard errors."""
    count, path = 20_000, FlowPath(sigma_min)
    images = MEAN + DEVIATION * torch.randn(count, 1, generator=seeded(), dtype=torch.float64)
    noise = torch.randn(count, 1, generator=seeded(1), dtype=torch.float64)
    noisy, target = path.at(torch.full((count,), at).double(), images, noise), path.velocity(images, noise)
    design = torch.cat([torch.ones_like(noisy), noisy], dim=1)
    found = torch.linalg.lstsq(design, target).solution[:, 0]
    residual = float((target - design @ found[:, None]).std())
    errors = residual * torch.linalg.inv(design.T @ design).diagonal().sqrt()
    ends = velocity(torch.tensor([[0.0], [1.0]]).double(), torch.full((2,), at).double(), sigma_min)[:, 0]
    exact = torch.stack([ends[0], ends[1] - ends[0]])
    assert ((found - exact).abs() < 5 * errors).all()


@pytest.mark.parametrize("sigma_min", [0.0, 0.1])
def test_the_loss_of_the_exact_velocity_is_the_conditional_variance_and_of_another_more(sigma_min):
    network, t = ExactVelocity((4,), sigma_min), 0.6
    model = FlowMatching(network, sigma_min=sigma_min, ema_decay=None)
    images = MEAN + DEVIATION * torch.randn(1500, 4, generator=seeded())
    losses = model.example_losses(images, times=[t]).double()
    factor, left = 1 - sigma_min, 1 - (1 - sigma_min) * t
    shared = t * DEVIATION**2 - factor * left
    variance = DEVIATION**2 + factor**2 - shared**2 / (t**2 * DEVIATION**2 + left**2)
    assert float(losses.mean()) == pytest.approx(variance, abs=4 * float(losses.std()) / 1500**0.5)
    with torch.no_grad():
        network.factor.fill_(0.9)
    assert model.example_losses(images, times=[t]).mean() > losses.mean()


def test_training_images_get_noise_inside_their_grey_level():
    network, levels = Constant(), torch.randint(0, 4, (50, 1, 2, 2), generator=seeded())
    model = FlowMatching(network, dequantise=2)
    torch.manual_seed(7)
    model.training_step((2 * levels / 3 - 1,), 0)
    torch.manual_seed(7)
    places, times, noise = torch.rand(50, 1, 2, 2), torch.rand(50), torch.randn(50, 1, 2, 2)
    expected = FlowPath().at(times, (levels + places) / 2 - 1, noise)
    assert torch.allclose(network.seen[0][0], expected, atol=1e-6)


def test_a_unet_tells_times_between_whole_timesteps_apart():
    model = make_flow(num_classes=3)
    images = torch.randn(1, 1, 8, 8, generator=seeded())
    with torch.no_grad():
        found = [model.network(images, torch.tensor([time])) for time in (500.0, 500.5, 501.0)]
        whole = model.network(images, torch.tensor([500]))
    assert torch.equal(found[0], whole)
    steps = [float((a - b).abs().max()) for a, b in ((found[0], found[1]), (found[1], found[2]))]
    assert min(steps) > 1e-6


# ---- sampling ----


def test_points_follow_the_exact_flow_by_every_solver():
    """The exact map of noise is mean + deviation x."""
    model = FlowMatching(ExactVelocity(), ema_decay=None)
    exact = MEAN + DEVIATION * torch.randn(6, 2, generator=seeded())
    for options, bound in (
        ({"solver": "euler", "steps": 200}, 1e-2),
        ({"solver": "heun", "steps": 50}, 1e-3),
        ({"solver": "dopri5"}, 1e-4),
    ):
        assert torch.allclose(model.sample(6, seeded(), **options), exact, atol=bound)
    with_rest = FlowMatching(ExactVelocity(sigma_min=0.3), sigma_min=0.3, ema_decay=None).sample(6, seeded())
    wider = (DEVIATION**2 + 0.3**2) ** 0.5
    assert torch.allclose(with_rest, MEAN + wider * torch.randn(6, 2, generator=seeded()), atol=1e-3)


@pytest.mark.parametrize("shift", [0.3, 1.0, 4.0])
def test_the_velocity_of_a_step_gives_the_score(shift):
    """Two steps of Euler's method show the velocity v at the time t between them, and (t v - x) / (1 - t) is the score.

    That of N(t mean, t^2 deviation^2 + (1 - t)^2), of the path's points x at t.
    """
    model = FlowMatching(ExactVelocity((3,)), ema_decay=None, sampler=FlowSampler("euler", 2, shift=shift))
    noise, t = torch.randn(5, 3, generator=seeded()), 1 / (1 + shift)
    between = noise + t * (MEAN - noise)  # of noise alone the mean of all there is is expected
    velocities = (model.sample(5, seeded()) - between) / (1 - t)
    score = -(between - t * MEAN) / (t**2 * DEVIATION**2 + (1 - t) ** 2)
    torch.testing.assert_close((t * velocities - between) / (1 - t), score, rtol=1e-4, atol=1e-4)


def test_guidance_mixes_the_velocities():
    """Labels shift the mean; "any class" is the label after the last."""
    model = FlowMatching(ExactVelocity(num_classes=3), ema_decay=None)
    noise, labels = torch.randn(4, 2, generator=seeded()), torch.tensor([0, 1, 2, 2])
    found = model.sample(4, seeded(), labels=labels, steps=100)
    assert torch.allclose(found, MEAN + labels[:, None] + DEVIATION * noise, atol=1e-3)
    guided = model.sample(4, seeded(), labels=labels, steps=100, guidance=2.0)
    assert torch.allclose(guided, MEAN + 3 + 2 * (labels[:, None] - 3) + DEVIATION * noise, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_images_follow_the_generator_whatever_the_batch_size(solver):
    model = make_flow()
    images = model.sample(5, seeded(), solver=solver, steps=4)
    assert images.shape == (5, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.abs().max() <= 1
    assert torch.equal(images, model.sample(5, seeded(), solver=solver, steps=4))
    assert torch.allclose(images, model.sample(5, seeded(), batch_size=2, solver=solver, steps=4), atol=1e-4)
    assert not torch.equal(images, model.sample(5, seeded(1), solver=solver, steps=4))


def test_denoising_ends_at_the_expected_image_and_asks_nothing_at_the_end():
    network = ExactVelocity()
    model = FlowMatching(network, ema_decay=None, sampler=FlowSampler("heun", 1, denoise=True))
    images = model.sample(3, seeded())
    # of noise alone the mean of all there is
    assert torch.allclose(images, torch.full_like(images, MEAN), atol=1e-6)

    asked = []

    def asked_field(times, states, who):
        asked.append(float(times[0]))
        return velocity(states, times)

    start = torch.randn(4, 2, generator=seeded())
    times = [0, 0.25, 0.5, 0.75, 1]
    found = integrate_fixed(asked_field, start, "heun", times, euler_to_one=True)
    assert len(asked) == 7
    assert max(asked) == 0.75
    before = integrate_fixed(field, start, "heun", times)
    assert 1e-4 < float((found - before).abs().max()) < 0.5
    backward = [integrate_fixed(field, start, "heun", times[::-1], euler_to_one=flag) for flag in (False, True)]
    assert torch.equal(*backward)


def field(times, states, who):
    return velocity(states, times)


def test_shifted_steps_are_those_of_diffusers_and_as_exact_in_the_end():
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 0.25, 4).tolist())
    times = FlowSampler("heun", 4, shift=3.0).times
    assert torch.allclose(1 - scheduler.sigmas.double(), torch.tensor(times, dtype=torch.float64))
    assert times == pytest.approx([0, 0.1, 0.25, 0.5, 1])  # noise of 1, 0.9, 0.75 and 0.5 is left
    assert FlowSampler("heun", 4).times == [0, 0.25, 0.5, 0.75, 1]
    samplers = [FlowSampler("heun", steps, shift=3.0) for steps in (128, 256, 512)]
    noise = torch.randn(3, 2, generator=seeded(), dtype=torch.float64)
    errors = [float((one.solve(field, noise) - (MEAN + DEVIATION * noise)).abs().max()) for one in samplers]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(2, abs=0.3)


def test_an_adaptive_solvers_calls_become_smaller_as_images_arrive_and_batches_do_not_matter():
    network = ExactVelocity(num_classes=9)
    model = FlowMatching(network, ema_decay=None)
    labels = torch.arange(7)  # whose velocities differ
    points = model.sample(7, seeded(), labels=labels, solver="dopri5")
    assert min(network.sizes) < max(network.sizes) == 7
    assert torch.allclose(points, model.sample(7, seeded(), labels, batch_size=2, solver="dopri5"), atol=1e-6)


def test_how_images_are_drawn_is_told_in_plain_types_and_changed():
    model = FlowMatching(Constant(num_classes=2))
    assert model.sampling == {"solver": "heun", "steps": 25, "shift": 1.0, "denoise": False, "guidance": 1.0}
    model.sampling = {"solver": "dopri5"}
    assert model.sampling == {"solver": "dopri5", "rtol": 1e-5, "atol": 1e-5, "guidance": 1.0}
    model.sampling = {"rtol": 1e-3, "guidance": 2.0}
    assert model.sampling == {"solver": "dopri5", "rtol": 1e-3, "atol": 1e-5, "guidance": 2.0}
    model.sampling = {"solver": "euler", "steps": 3}
    assert model.sampling == {"solver": "euler", "steps": 3, "shift": 1.0, "guidance": 2.0}
    model.sampling = {"solver": "heun"}
    assert model.sampling["steps"] == 25
    model.sampling = {"denoise": True, "shift": 3.0}
    assert model.sampling == {"solver": "heun", "steps": 25, "shift": 3.0, "denoise": True, "guidance": 2.0}
    model.sampling = {"solver": "dopri5"}
    assert not {"denoise", "shift"} & set(model.sampling)


# ---- losses of examples ----


def test_example_losses_are_at_fixed_draws_whatever_the_batch_and_the_company():
    model = FlowMatching(ExactVelocity((1, 2, 2)), ema_decay=None)
    images = torch.rand(5, 1, 2, 2, generator=seeded())
    losses = model.example_losses(images, times=4)
    assert torch.allclose(losses, model.example_losses(images, times=4, batch_size=2), rtol=1e-5)
    assert torch.allclose(losses[3:], model.example_losses(images[3:], times=4, start=3), rtol=1e-5)
    assert not torch.allclose(losses, model.example_losses(images, times=4, seed=1))


def test_times_of_examples_are_one_in_each_part():
    network = Constant()
    FlowMatching(network, ema_decay=None).example_losses(torch.zeros(3, 1, 2, 2), times=4)
    seen = torch.stack([timesteps for _, timesteps, _ in network.seen]) / 1000
    assert ((4 * seen).floor() == torch.arange(4)[:, None]).all()


# ---- checkpoints and errors ----


@pytest.mark.slow
def test_a_checkpoint_loads_without_arguments_and_without_pickles(fit, tmp_path):
    options = {"coupling": "optimal-transport", "sigma_min": 0.1, "times": "logit-normal", "warmup": 7}
    model = make_flow(num_classes=3, sampler=FlowSampler("euler", 5, guidance=2.0), dequantise=8, **options)
    path = tmp_path / "model.ckpt"
    fit(model, batches=1).save_checkpoint(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = FlowMatching.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(loaded.sample(4, seeded()), model.sample(4, seeded()))
    assert loaded.hparams == model.hparams
    assert (loaded.path, loaded.dequantise) == (FlowPath(0.1, "optimal-transport", "logit-normal"), 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma_min": 1.0}, "sigma_min=1.0: the noise left"),
        ({"coupling": "greedy"}, "coupling='greedy': choose 'independent' or 'optimal-transport'"),
        ({"times": "cosine"}, "times='cosine': choose 'uniform' or 'logit-normal'"),
        ({"dequantise": 9}, "bits=9: a grey level has 1 to 8"),
        ({"lr": 0.0}, "lr=0.0: the learning rate is positive"),
        ({"sampler": "rk4"}, "solver='rk4': choose 'euler', 'heun', 'dopri5'"),
        ({"sampler": {"solver": "dopri5", "steps": 3}}, "steps=3: 'dopri5' chooses its own"),
        ({"sampler": {"solver": "dopri5", "denoise": True}}, "denoise=True: 'dopri5' ends by its own steps"),
        ({"sampler": {"solver": "dopri5", "shift": 2.0}}, "shift=2.0: 'dopri5' chooses its own steps"),
        ({"sampler": {"shift": 0.0}}, "shift=0.0: it is positive and finite"),
        ({"sampler": {"rtol": 0.0}}, "rtol=0.0, atol=1e-05: tolerances are positive"),
        ({"sampler": {"steps": 0}}, "steps=0: an image takes at least one step"),
        ({"sampler": {"guidance": 2.0}, "network": Constant(), "label_dropout": 2.0}, "label_dropout=2.0"),
        ({"network": ExactVelocity(), "flips": True}, r"flips=True mirrors images, and the network's inputs are \[2\]"),
        ({"network": ExactVelocity(), "sampler": {"guidance": 2.0}}, "guidance=2.0 mixes .* num_classes"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FlowMatching(**({"network": Constant()} | arguments))


def test_losses_and_samples_that_cannot_be_are_refused():
    model, images = FlowMatching(ExactVelocity((1, 2, 2))), torch.zeros(2, 1, 2, 2)
    for times in (0, [], [1.5], [-0.1]):
        with pytest.raises(ValueError, match="times"):
            model.example_losses(images, times=times)
    with pytest.raises(ValueError, match="FlowMatching"):
        model.sample(2, labels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="batch_size"):
        model.sample(2, batch_size=0)
    with pytest.raises(ValueError, match="FlowMatching"):
        model.load_adapters("nowhere")
