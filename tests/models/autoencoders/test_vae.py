"""The variational autoencoder: its loss, its moments over clients, its files."""

import copy

import pytest
import torch
from diffusers import AutoencoderKL as Theirs
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.models import VAE
from fedgen.models.autoencoders import LatentMoments
from fedgen.models.networks import AutoencoderKL
from fedgen.models.round_clock import RoundMeans
from fedgen.seeds import seed_all
from tests.flower.runs import deploy, recipe, same_weights, simulate, write_images
from tests.trainers import quiet_trainer, same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|exists and is not)")


def make(**options):
    torch.manual_seed(0)
    network = AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1, attention=False)
    return VAE(**({"network": network, "lr": 0.01} | options))


def images_of(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def federation():
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=draws)
    examples = Examples(images, torch.tensor([0] * 6 + [1] * 4 + [2] * 2), "noise/train", ("a", "b", "c"))
    return FederatedDataModule(examples, ByClass(), batch_size=2, held_out=0.0, seed=0)


def train(module, rounds, folder, ckpt_path=None, **options):
    trainer = quiet_trainer(rounds, strategy=FedAvgStrategy(2, seed=0, **options), default_root_dir=folder)
    trainer.fit(module, federation(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(("reconstruction", "power"), [("l1", 1), ("l2", 2)])
def test_the_loss_is_the_error_of_a_pixel_and_the_divergence_by_hand(reconstruction, power):
    model, images = make(kl_weight=0.5, reconstruction=reconstruction), images_of(3)
    torch.manual_seed(7)
    model.means = RoundMeans("loss", "reconstruction", "kl")
    loss = model.training_step((images,), 0).detach()
    torch.manual_seed(7)
    mean, log_variance = model.network.body._encode(images).chunk(2, dim=1)
    latents = mean + (log_variance / 2).exp() * torch.randn(3, 2, 4, 4)
    error = (model.network.decode(latents) - images).abs().pow(power).mean().detach()
    kl = ((mean**2 + log_variance.exp() - 1 - log_variance) / 2).flatten(1).sum(1).mean().detach()
    assert float(loss) == pytest.approx(float(error + 0.5 * kl / 64), rel=1e-5)
    means = model.means.take(lambda sums: sums, model.device)
    assert (means["reconstruction"], means["kl"]) == pytest.approx((float(error), float(kl)), rel=1e-5)


def test_moments_are_those_of_all_clients_latents():
    """Of two clients far apart each is narrow, and the deviation is that of both."""
    clients = [LatentMoments(), LatentMoments()]
    for place, moments in zip((-3.0, 3.0), clients):
        for step in range(1500):
            moments.follow(place + 0.1 * torch.randn(50, generator=torch.Generator().manual_seed(step)))
    server = LatentMoments()
    for name, value in server.state_dict().items():
        value.copy_((clients[0].state_dict()[name] + clients[1].state_dict()[name]) / 2)
    assert server.shift == pytest.approx(0, abs=0.01)
    assert 1 / server.scaling == pytest.approx((9 + 0.01) ** 0.5, rel=0.01)
    assert 1 / clients[0].scaling == pytest.approx(0.1, rel=0.1)


def test_moments_stay_in_full_precision():
    moments = LatentMoments().bfloat16()
    assert {tensor.dtype for tensor in moments.state_dict().values()} == {torch.float32}


@pytest.mark.slow
def test_a_round_is_the_mean_of_clients_own_loops_moments_too(tmp_path):
    model = make(kl_weight=0.1)
    start = copy.deepcopy(model)
    trainer = train(model, 1, tmp_path)
    mean = {name: torch.zeros_like(value) for name, value in start.state_dict().items()}
    for index, client in enumerate(trainer.datamodule.clients):
        network, moments = copy.deepcopy(start.network), copy.deepcopy(start.moments)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        seed_all(0, "turn", 0, index)
        for images, _ in Turn(client.data, client.train, 2, 0, index, client.name, 0).batches(2):
            optimizer.zero_grad()
            posterior = network.encode(images)
            latents = posterior.sample()
            ((network.decode(latents) - images).abs().mean() + 0.1 * posterior.kl().mean() / 64).backward()
            optimizer.step()
            moments.follow(latents.detach())
        own = {f"network.{n}": v for n, v in network.state_dict().items()}
        for name, value in (own | {f"moments.{n}": v for n, v in moments.state_dict().items()}).items():
            mean[name] += value * len(client.train) / 12
    for name, value in model.state_dict().items():
        assert torch.allclose(value, mean[name], atol=1e-6), name
    assert set(trainer.callback_metrics) >= {"loss", "reconstruction", "kl"}


@pytest.mark.slow
def test_resuming_ends_with_the_same_weights_to_the_bit(tmp_path):
    whole, part, resumed = make(), make(), make()
    train(whole, 2, tmp_path, cohort_size=2)
    train(part, 1, tmp_path, cohort_size=2).save_checkpoint(tmp_path / "one.ckpt")
    train(resumed, 2, tmp_path, tmp_path / "one.ckpt", cohort_size=2)
    assert same_state(whole, resumed)
    assert not same_state(whole, part)


@pytest.mark.slow
def test_it_learns_to_give_images_back():
    """Of one grey level each, which latents have room for."""
    model = make()
    levels = torch.linspace(-0.9, 0.9, 16).view(16, 1, 1, 1).expand(16, 1, 8, 8)
    before = model.example_losses(levels)
    optimizer = torch.optim.Adam(model.network.parameters(), lr=0.02)
    for _ in range(70):  # after 40 it depends on the draws, and on the processor
        optimizer.zero_grad()
        model.training_step((levels,), 0).backward()
        optimizer.step()
    after = model.example_losses(levels)
    assert after.mean() < 0.4 * before.mean()
    assert torch.equal(after, (model.reconstruct(levels) - levels).abs().flatten(1).mean(1))


def test_images_of_it_have_the_latents_moments():
    model = make()
    model.moments.mean.fill_(0.5)
    model.moments.square.fill_(4.25)
    seen = []
    model.network.decode = lambda latents: seen.append(latents) or torch.full((len(latents), 1, 8, 8), 2.0)
    images = model.sample(500, torch.Generator().manual_seed(0), batch_size=200)
    latents = torch.cat(seen)
    assert (float(latents.mean()), float(latents.std())) == pytest.approx((0.5, 2.0), abs=0.05)
    assert torch.equal(images, torch.ones(500, 1, 8, 8))


def test_diffusers_loads_what_it_saves_with_shift_and_scaling(tmp_path):
    model, images = make(), images_of(2)
    model.moments.mean.fill_(0.5)
    model.moments.square.fill_(4.25)
    model.save_pretrained(tmp_path)
    theirs = Theirs.from_pretrained(tmp_path, low_cpu_mem_usage=False)
    assert (theirs.config.scaling_factor, theirs.config.shift_factor) == (0.5, 0.5)
    assert torch.equal(theirs.encode(images).latent_dist.mean, model.network.encode(images).mode())
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


def test_a_checkpoint_needs_nothing_else(tmp_path, fit):
    model = make()
    fit(model, batches=1).save_checkpoint(tmp_path / "vae.ckpt")
    again = VAE.load_from_checkpoint(tmp_path / "vae.ckpt", weights_only=True)
    assert same_state(model, again)
    assert torch.equal(
        again.sample(2, torch.Generator().manual_seed(0)), model.sample(2, torch.Generator().manual_seed(0))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_weight": -1.0}, r"kl_weight=-1\.0: the divergence's weight is not negative"),
        ({"lr": 0.0}, r"lr=0\.0: the learning rate is positive"),
        ({"reconstruction": "l3"}, "reconstruction='l3': choose 'l1' or 'l2'"),
        ({"network": nn.Flatten()}, "the network Flatten needs encode, decode, image_shape and latent_shape"),
    ],
)
def test_values_out_of_range_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_images_of_another_shape_are_told_before_training(tmp_path):
    model = make(network=AutoencoderKL(16, 1, 2, [4, 4], 1))
    with pytest.raises(ValueError, match="autoencoder"):
        train(model, 1, tmp_path)


def test_latents_without_a_deviation_are_told():
    model = make()
    model.moments.square.fill_(0.0)
    with pytest.raises(ValueError, match="autoencoder"):
        model.sample(1)


@pytest.mark.slow
def test_over_flower_it_is_the_simulations_model_with_the_moments_of_all_clients(tmp_path):
    widths = {"image_size": 8, "channels": 1, "latent_channels": 2, "widths": [4, 4], "layers": 1, "attention": False}
    network = {"class_path": "fedgen.models.networks.AutoencoderKL", "init_args": widths}
    model = {"class_path": "fedgen.models.VAE", "init_args": {"network": network, "lr": 0.01}}
    images, settings = write_images(tmp_path / "clients", {"a": 12, "b": 25}), recipe(1, model=model)
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(settings, images, tmp_path / "deployed")
    assert deployed["fedavg"]["left_out"] == []
    same_weights(simulated, deployed)
    moments = [name for name in simulated["state_dict"] if "moments" in name]
    assert moments
    assert all(simulated["state_dict"][name].ne(0).any() for name in moments)
