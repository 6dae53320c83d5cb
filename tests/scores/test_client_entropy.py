"""Client entropy: the estimator against answers that are known, and models that are fitted together or alone."""

import math

import pytest
import torch

from fedgen.clients.heterogeneity import client_entropy
from fedgen.clients.heterogeneity.client_entropy import (
    EntropyOptions,
    GroupedVAE,
    client_entropies,
    grey_floor,
    log_mean_weights,
)

QUICK = EntropyOptions(steps=100, lr=5e-3, width=16, samples=100)


def draws(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def normal(model, images, samples, *seeds):
    shape = *images.shape[1:2], samples, model.latent_dim
    return torch.stack([torch.randn(shape, generator=one) for one in draws(*seeds)])


def made(groups=2, pixels=12, width=8, latent_dim=2, wild=1.0):
    """Models with weights large enough for the latents to matter."""
    model = GroupedVAE(torch.full((groups, pixels), 0.3), width, latent_dim, draws(*range(groups)))
    with torch.no_grad():
        model.draw.mul_(4 * wild)
        model.unfold.mul_(3 * wild)
    return model


def pictures(groups=2, count=3, pixels=12, grey=False):
    values = torch.rand(groups, count, pixels, generator=draws(9)[0])
    return values if grey else values.round()


def log_normal(x, mean, covariance):
    return torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)


def exact_log_likelihood(model, images):
    """log of the integral of p(x | z) N(z; 0, I) on a fine grid, float64 [G, n]."""
    axis = torch.linspace(-6, 6, 101)
    latents = torch.cartesian_prod(axis, axis).expand(len(images), -1, -1)
    logits = model.logits(latents).double().unsqueeze(1)
    fit = (images.double().unsqueeze(2) * logits - torch.nn.functional.softplus(logits)).sum(3)
    prior = -latents.double().square().sum(2) / 2 - math.log(2 * math.pi)
    return (fit + prior.unsqueeze(1)).logsumexp(2) + 2 * math.log(float(axis[1] - axis[0]))


@torch.no_grad()
def test_importance_weights_are_their_definition():
    model, images = made(), pictures(grey=True)
    noise = torch.randn(2, 3, 5, 2, generator=draws(4)[0])
    mean, lower = model.posterior(images)
    found = model.log_weights(images, noise)
    for group, image, sample in [(0, 0, 0), (1, 2, 4), (0, 1, 3)]:
        own = lower[group, image]
        assert own[0, 1] == 0
        assert (own.diagonal() > 0).all()
        latent = mean[group, image] + own @ noise[group, image, sample]
        logits = model.logits(latent.expand(2, 1, 2))[group, 0]
        fit = -torch.nn.functional.binary_cross_entropy_with_logits(logits, images[group, image], reduction="sum")
        ratio = log_normal(latent, torch.zeros(2), torch.eye(2)) - log_normal(latent, mean[group, image], own @ own.T)
        assert float(found[group, image, sample]) == pytest.approx(float(fit + ratio), rel=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_the_elbo_is_the_mean_log_weight():
    model, images = made(), pictures()
    noise = torch.randn(4000, 2, 3, 2, generator=draws(4)[0])
    elbos = -torch.stack([model.negative_elbo(images, one) for one in noise]).mean(0)
    weights = model.log_weights(images, noise.permute(1, 2, 0, 3)).mean(2)
    assert torch.allclose(elbos, weights, atol=0.1)


@torch.no_grad()
def test_a_decoder_that_ignores_latents_has_the_likelihood_of_its_pixels():
    model, images = made(), pictures(grey=True)
    model.draw.zero_()
    expected = (images * model.draw_bias - torch.nn.functional.softplus(model.draw_bias)).sum(2).double()
    # whatever the posterior is, the weights are p(x) p(z) / q(z), of mean p(x)
    found = log_mean_weights(model, images, normal(model, images, 20_000, 0, 1))
    assert torch.allclose(found, expected, atol=0.05)
    model.encode.zero_()
    model.encode_bias.zero_()  # now q is the prior, and every single weight is p(x)
    assert torch.allclose(log_mean_weights(model, images, normal(model, images, 1, 0, 1)), expected, atol=1e-4)


@torch.no_grad()
def test_more_samples_come_nearer_to_the_exact_likelihood_from_below():
    model, images = made(groups=1), pictures(groups=1, count=20)
    exact = exact_log_likelihood(model, images).mean()
    found = [
        sum(log_mean_weights(model, images, normal(model, images, samples, seed)).mean() for seed in range(8)) / 8
        for samples in (1, 10, 100, 5000)
    ]
    gaps = [float(exact - one) for one in found]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 1
    assert abs(gaps[-1]) < 0.01


@pytest.mark.slow
def test_the_entropy_of_a_fitted_model_is_its_exact_one():
    images = (torch.rand(1, 12, 1, 6, 6, generator=draws(1)[0]) > 0.5).byte() * 255
    options = EntropyOptions(steps=100, lr=5e-3, width=16, samples=2000)
    group = client_entropy._Group(torch.stack(client_entropy._check(list(images))), [12], [0], options, 0)
    model = group.fit("")
    with torch.no_grad():
        exact = -exact_log_likelihood(model, group.images).mean()
    assert float(group.entropies(model)) == pytest.approx(float(exact), abs=0.02)
    assert float(group.entropies(model)) == float(client_entropies(list(images), options))


@pytest.mark.slow
def test_copies_of_a_picture_say_nothing_and_four_pictures_at_least_the_logarithm_of_four():
    one = (torch.rand(1, 1, 8, 8, generator=draws(0)[0]) > 0.5).byte() * 255
    four = (torch.rand(4, 1, 8, 8, generator=draws(1)[0]) > 0.5).byte() * 255
    options = EntropyOptions(steps=400, lr=5e-3, width=32, samples=500)
    copies, several = client_entropies([one.expand(8, -1, -1, -1), four.repeat(2, 1, 1, 1)], options).tolist()
    assert 0 <= copies < 0.2
    independent = float(grey_floor([four.float().mean(0, keepdim=True).byte()]))  # of the mean picture's pixels
    # no model has less than the entropy of what it is read on; without latents it has that of its pixels
    assert math.log(4) <= several < 0.25 * independent


def test_varied_images_have_more_entropy_than_images_alike():
    alike = torch.randint(0, 256, (1, 1, 6, 6), dtype=torch.uint8, generator=draws(0)[0])
    noise = torch.randint(-20, 20, (10, 1, 6, 6), generator=draws(1)[0])
    near = (alike + noise).clamp(0, 255).byte()
    far = torch.randint(0, 256, (10, 1, 6, 6), dtype=torch.uint8, generator=draws(2)[0])
    found = client_entropies([near, far], QUICK) - grey_floor([near, far])
    assert found[0] < found[1]


def test_models_fitted_together_are_those_fitted_alone():
    options = EntropyOptions(steps=30, width=8, batch_size=6, samples=50)
    parts = [
        torch.randint(0, 256, (count, 1, 5, 5), dtype=torch.uint8, generator=draws(count)[0]) for count in (3, 6, 20)
    ]
    together = client_entropies(parts, options)
    for place, part in enumerate(parts):
        images = torch.stack(client_entropy._check([part]))
        alone = client_entropy._Group(images, [len(part)], [place], options, 0)
        assert float(alone.entropies(alone.fit(""))) == pytest.approx(float(together[place]), rel=1e-4)


def test_groups_that_do_not_fit_together_are_fitted_in_parts(monkeypatch):
    parts = [torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8) for count in (5, 2, 4)]
    options = EntropyOptions(steps=30, width=8, samples=20)
    whole = client_entropies(parts, options)
    monkeypatch.setattr(client_entropy, "TOGETHER", 1)
    assert torch.allclose(client_entropies(parts, options), whole, rtol=1e-4)


def test_names_decide_the_draws():
    part = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8, generator=draws(0)[0])
    options = EntropyOptions(steps=30, width=8, samples=20)
    found = client_entropies([part, part, part], options, names=[7, 7, 8])
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-5)
    assert float(found[0]) != pytest.approx(float(found[2]), rel=1e-5)


def test_the_same_seed_gives_the_same_and_global_generators_do_not_matter():
    parts = [torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8, generator=draws(0)[0])]
    options = EntropyOptions(steps=20, width=4, samples=10)
    first = client_entropies(parts, options, seed=1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert torch.equal(client_entropies(parts, options, seed=1), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(client_entropies(parts, options, seed=2), first)


def test_the_grey_floor_by_hand():
    half = torch.full((3, 1, 1, 2), 127.5).byte()  # 127 / 255, nearly a half: log 2 a pixel
    assert float(grey_floor([half])) == pytest.approx(2 * math.log(2), abs=1e-4)
    assert float(grey_floor([torch.tensor([[[[0, 255]]]], dtype=torch.uint8)])) == 0


def test_the_papers_settings():
    options = EntropyOptions.paper()
    assert (options.steps, options.latent_dim, options.samples) == (10_000, 2, 1000)
    ours = EntropyOptions()  # for what the paper leaves open
    assert (options.lr, options.width, options.batch_size) == (ours.lr, ours.width, ours.batch_size)


def test_mistakes_are_named():
    image = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
    for parts, message in (
        ([], "no groups of images"),
        ([image, image[:0]], "group 1 must be uint8"),
        ([image, torch.zeros(2, 1, 3, 4, dtype=torch.uint8)], "group 1 must be uint8"),
        ([torch.zeros(4, 2)], "points have no grey levels"),
    ):
        with pytest.raises(ValueError, match=message):
            client_entropies(parts)
    for option in ({"steps": -1}, {"width": 0}, {"samples": 0}, {"lr": 0.0}, {"batch_size": 0}, {"latent_dim": 0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            EntropyOptions(**option)
