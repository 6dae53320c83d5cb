"""A pretrained generator trained on scores alone: where it comes from, what trains, and how a step is made."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, FastFIDLoss, QueueMoments
from fedgen.models import GAN, WGANGP, FineTuning, Hinge
from fedgen.models.networks import SAGANGenerator, SmallCritic, SmallGenerator
from tests.devices import ACCELERATORS
from tests.losses.simple import MeanLoss, two_numbers
from tests.trainers import quiet_trainer

FIRST = "body.0.*"


def network():
    """The same weights each time."""
    torch.manual_seed(0)
    return SmallGenerator(latent_dim=3, width=4)


def embedded(aggregate="all", **options):
    return EmbeddedLoss(MeanLoss(aggregate), [two_numbers()], **options)


def make(**arguments):
    return FineTuning(
        **({"generator": network(), "generator_losses": [embedded()], "batch": 8, "lr": 0.02} | arguments)
    )


def train(module, tmp_path, rounds=1, strategy=None, ckpt_path=None, accelerator="cpu", **options):
    """Fits over digits with five classes a client: by FedAvg, or on the pooled data for strategy "auto"."""
    strategy = strategy or FedAvgStrategy(communication_interval=2, seed=0)
    more = {"iterations": 2} if strategy == "auto" else {}
    data = FederatedDataModule(Digits(), ByClass(classes_per_client=5), batch_size=8, seed=0, **more)
    trainer = quiet_trainer(
        rounds,
        strategy=strategy,
        accelerator=accelerator,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        default_root_dir=tmp_path,
        **options,
    )
    torch.manual_seed(1)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


def weights(generator):
    return torch.cat([p.detach().flatten() for p in generator.parameters()])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, "auto"])
def test_it_moves_the_images_to_the_data_by_fedavg_and_centrally(tmp_path, strategy):
    module = make()
    before = train(module, tmp_path, strategy=strategy).callback_metrics["mean_loss/two-numbers"]
    metrics = train(module, tmp_path, rounds=9, strategy=strategy).callback_metrics
    assert metrics["mean_loss/two-numbers"] < before / 4
    assert metrics["generator_loss"] == pytest.approx(float(metrics["mean_loss/two-numbers"]), rel=1e-5)


def test_a_step_equals_a_plain_loop(tmp_path):
    module, twin = make(fixed_latents=8, seed=3), network().eval()
    latents = module.latents.clone()
    train(module, tmp_path, strategy="auto", limit_train_batches=1)
    loss = module.embedded_losses[0].losses[0]
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02, betas=(0.0, 0.9))
    value = loss(two_numbers()(twin(latents)))
    value.backward()
    optimizer.step()
    assert torch.allclose(weights(module.generator), weights(twin), atol=1e-6)
    assert not torch.allclose(weights(twin), weights(network()), atol=1e-3)


# ---- where the generator comes from ----


def save_gan(tmp_path, **arguments):
    """A checkpoint of a GAN whose average differs from its generator."""
    gan = WGANGP(network(), SmallCritic(width=2), n_critic=1, lr=0.05, **arguments)
    train(gan, tmp_path).save_checkpoint(tmp_path / "gan.ckpt")
    return gan, str(tmp_path / "gan.ckpt")


def test_a_checkpoint_gives_its_moving_average_and_samples_as_its_gan_does(tmp_path):
    gan, path = save_gan(tmp_path, ema_decay=0.9)
    module = make(generator=path)
    assert torch.equal(module.sample(5, seeded()), gan.sample(5, seeded()))
    assert not torch.equal(weights(module.generator), weights(gan.generator))


def test_a_checkpoint_without_an_average_gives_its_generator(tmp_path):
    gan, path = save_gan(tmp_path)
    assert torch.equal(weights(make(generator=path).generator), weights(gan.generator))


@pytest.mark.slow
def test_what_was_fine_tuned_is_saved_rebuilt_and_can_be_fine_tuned_again(tmp_path):
    module = make(ema_decay=0.5, layers=[FIRST], fixed_latents=9, batch_statistics=True)
    train(module, tmp_path, rounds=2).save_checkpoint(tmp_path / "tuned.ckpt")
    again = FineTuning.load_from_checkpoint(tmp_path / "tuned.ckpt", weights_only=True)
    assert torch.equal(again.sample(5, seeded()), module.sample(5, seeded()))
    assert again.hparams == module.hparams
    assert torch.equal(again.latents, module.latents)
    further = make(generator=str(tmp_path / "tuned.ckpt"))
    assert torch.equal(further.sample(5, seeded()), module.sample(5, seeded()))


def test_a_command_line_can_give_a_path_or_a_network():
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FineTuning, "model", instantiate=False)
    losses = [{"class_path": "torch.nn.Identity"}]
    for generator in ("runs/gan.ckpt", {"class_path": "fedgen.models.networks.SmallGenerator"}):
        parsed = parser.parse_object({"model": {"generator": generator, "generator_losses": losses}}).model
        given = parsed.generator
        assert given == generator if isinstance(generator, str) else given.class_path == generator["class_path"]


# ---- what trains ----


@pytest.mark.parametrize("strategy", [None, "auto"])
def test_only_the_layers_asked_for_train_and_travel(tmp_path, strategy):
    module = make(layers=[FIRST], batch_statistics=True)
    before = {name: value.clone() for name, value in module.generator.state_dict().items()}
    trainer = train(module, tmp_path, rounds=2, strategy=strategy)
    after = module.generator.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"body.0.weight"}
    if strategy is None:
        assert list(trainer.strategy.exchange.live) == ["generator.body.0.weight", "loss_modules.0.losses.0.seen"]


def test_batchnorm_keeps_the_pretrained_statistics_unless_told_to_follow_the_batch(tmp_path):
    for follows in (False, True):
        module = make(batch_statistics=follows)
        before = module.generator.body[1].running_mean.clone()
        train(module, tmp_path, strategy="auto")
        assert torch.equal(before, module.generator.body[1].running_mean) is not follows


def test_the_average_moves_at_round_ends(tmp_path):
    module = make(ema_decay=0.9)
    before = weights(module.generator)
    train(module, tmp_path)
    expected = 0.9**2 * before + (1 - 0.9**2) * weights(module.generator)
    assert torch.allclose(weights(module.averaged), expected, atol=1e-6)


def test_a_network_may_be_trained_again_after_another_model_has_left_it_alone(tmp_path):
    """What a GAN's server trained, or an earlier fine-tuning froze, is trained and exchanged by the next."""
    generator = network()
    GAN(generator, SmallCritic(width=2), Hinge(), n_critic=2, generator_trained_by="server")
    make(generator=generator, layers=[FIRST])
    trainer = train(make(generator=generator), tmp_path)
    expected = {f"generator.{name}" for name, value in generator.state_dict().items() if value.is_floating_point()}
    exchange = trainer.strategy.exchange
    assert expected == exchange.shared.keys() | exchange.quiet.keys()
    assert exchange.trained == {f"generator.{name}" for name, _ in generator.named_parameters()}
    assert all(parameter.requires_grad for parameter in generator.parameters())


def test_what_its_user_froze_stays_frozen():
    generator = network()
    frozen = generator.body[0].weight.requires_grad_(False)
    make(generator=generator, layers=["body.6.*"])
    make(generator=generator)
    assert [p for p in generator.parameters() if not p.requires_grad] == [frozen]


def test_an_averages_network_does_not_train_as_it_is():
    gan = WGANGP(network(), SmallCritic(width=2), ema_decay=0.9)
    with pytest.raises(ValueError, match="parameters"):
        make(generator=gan.averaged)


def spectral(**options):
    """A fine-tuning of a generator whose weights are spectrally normalised."""
    torch.manual_seed(0)
    generator = SAGANGenerator(8, 1, latent_dim=3, width=4, attention_size=4)
    return make(generator=generator, **options)


@pytest.mark.slow
def test_frozen_spectral_norms_stay_to_the_bit(tmp_path):
    module = spectral(layers=["end.*"], ema_decay=0.5)
    for each in (module.generator, module.generator_ema.network):
        before = {name: value.clone() for name, value in each.state_dict().items()}
        train(module, tmp_path, rounds=2)
        moved = {name for name, value in each.state_dict().items() if not torch.equal(value, before[name])}
        assert moved
        assert all(name.startswith("end.") for name in moved)


def test_a_chunked_step_is_that_of_the_whole_batch_with_spectral_norms_too(tmp_path):
    """Without a power iteration a pass, between which the weights would differ."""
    found = []
    for chunk in (None, 4):
        module = spectral(batch=20, chunk=chunk, fixed_latents=20, lr=0.01)
        for name, vector in module.generator.named_buffers():
            if name.endswith(("_u", "_v")):  # far from where power iterations lead
                draws = torch.randn(vector.shape, generator=seeded(5)) / len(vector) ** 0.5
                vector.copy_(torch.nn.functional.normalize(vector + 0.5 * draws, dim=0))
        train(module, tmp_path, strategy="auto", limit_train_batches=1)
        found.append(torch.cat([p.grad.flatten() for p in module.generator.parameters() if p.grad is not None]))
    assert (found[1] - found[0]).norm() < 1e-4 * found[0].norm()


# ---- a step ----


class Recording(nn.Module):
    """Their brightness, and the images of every call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, images):
        self.calls.append(images.detach().clone())
        return images.mean()


def test_fixed_latents_give_the_same_images_until_the_weights_move(tmp_path):
    seen = Recording()
    train(make(generator_losses=[seen], fixed_latents=8, lr=1e-9), tmp_path, strategy="auto")
    assert torch.allclose(seen.calls[0], seen.calls[1], atol=1e-5)
    fresh = Recording()
    train(make(generator_losses=[fresh], lr=1e-9), tmp_path, strategy="auto")
    assert not torch.allclose(fresh.calls[0], fresh.calls[1], atol=1e-2)


def test_each_step_takes_some_of_many_fixed_latents(tmp_path):
    seen = Recording()
    module = make(generator_losses=[seen], fixed_latents=20, lr=1e-9)
    train(module, tmp_path, strategy="auto")
    with torch.no_grad():
        possible = module.generator(module.latents).flatten(1)
    for images in seen.calls:
        nearest = torch.cdist(images.flatten(1), possible).min(1)
        assert nearest.values.max() < 1e-4
        assert len(set(nearest.indices.tolist())) == 8
    assert not torch.allclose(seen.calls[0], seen.calls[1], atol=1e-2)


def test_fixed_latents_are_the_seeds():
    assert torch.equal(make(fixed_latents=8, seed=1).latents, make(fixed_latents=8, seed=1).latents)
    assert not torch.equal(make(fixed_latents=8, seed=1).latents, make(fixed_latents=8, seed=2).latents)


def fid(**options):
    return EmbeddedLoss(FastFIDLoss(), ["pixels"], **options)


def test_a_chunked_step_is_that_of_the_whole_batch(tmp_path):
    found = []
    for chunk in (None, 7, 20):
        module = make(generator_losses=[fid(), Recording()], batch=20, chunk=chunk, fixed_latents=20)
        metrics = train(module, tmp_path, strategy="auto").callback_metrics
        found.append((weights(module.generator), float(metrics["generator_loss"])))
    for other, value in found[1:]:
        assert torch.allclose(other, found[0][0], atol=1e-4)
        assert value == pytest.approx(found[0][1], rel=1e-4)
    assert not torch.allclose(found[0][0], weights(network()), atol=1e-2)


def test_a_loss_of_its_own_pass_makes_its_own_images_beside_the_shared_ones(tmp_path):
    seen = Recording()
    own = embedded(separate=True, num_images=20, chunk=8)
    module = make(generator_losses=[seen, own], batch=4)
    train(module, tmp_path, strategy="auto")
    assert [len(images) for images in seen.calls] == [4, 4]
    assert own.losses[0].seen == 2 * 20


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("chunk", [None, 8])
def test_half_precision_trains_and_every_client_keeps_its_scaler_in_step(tmp_path, chunk, accelerator):
    ends = []
    for precision in ("32", "bf16", "fp16"):
        module = make(generator_losses=[fid()], batch=20, chunk=chunk, layers=["body.6.*"])
        options = {"precision": "bf16-mixed"} if precision == "bf16" else {}
        if precision == "fp16":
            device = "cuda" if accelerator == "gpu" else "cpu"
            scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
            options = {"plugins": [MixedPrecision("16-mixed", device, scaler)]}
        metrics = train(module, tmp_path, rounds=10, accelerator=accelerator, **options).callback_metrics
        assert torch.isfinite(weights(module.generator)).all()
        ends.append(float(metrics["fid_loss/pixels"]))
        if precision == "fp16":
            assert scaler.get_scale() >= 2.0**10
    start = float(train(make(generator_losses=[fid()], batch=20), tmp_path).callback_metrics["fid_loss/pixels"])
    assert max(ends) < 0.8 * start
    assert max(ends) < 1.1 * min(ends)


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_bit(tmp_path):
    options = {"generator_losses": None, "fixed_latents": 30, "batch": 10, "chunk": 4, "ema_decay": 0.5}

    def build():
        return make(**options | {"generator_losses": [EmbeddedLoss(FastFIDLoss(QueueMoments(40)), [two_numbers()])]})

    whole, first, second = build(), build(), build()
    train(whole, tmp_path, rounds=4)
    train(first, tmp_path, rounds=2).save_checkpoint(tmp_path / "half.ckpt")
    train(second, tmp_path, rounds=4, ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(weights(second.generator), weights(whole.generator))
    assert torch.equal(weights(second.averaged), weights(whole.averaged))


def test_scores_know_what_was_trained_on():
    assert make(generator_losses=[embedded(), fid()]).optimised_on == ["two-numbers", "pixels"]


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch=0: a step needs at least one image"),
        ({"chunk": 0}, "chunk=0: at least one image at a time"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\)"),
        ({"layers": ["body.0.*", "head.*"]}, r"layers \['head.\*'\] match no parameter.*it has body.0.weight"),
        ({"layers": []}, "leave nothing to train"),
        ({"fixed_latents": 7}, "fixed_latents=7: a step needs 8"),
        ({"fixed_latents": 8, "generator_losses": [embedded(separate=True, num_images=9)]}, "a step needs 9"),
        ({"generator_losses": [embedded(weight=AdaptiveWeight())]}, "here is no critic; give the loss a number"),
        ({"generator_losses": [FastFIDLoss()]}, r"one of features.*EmbeddedLoss\(FastFIDLoss"),
        ({"generator": nn.Linear(2, 2)}, "Linear needs an attribute latent_dim"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_a_missing_checkpoint_is_named(tmp_path):
    (tmp_path / "other.ckpt").touch()
    with pytest.raises(FileNotFoundError, match="checkpoints"):
        make(generator=str(tmp_path / "gan.ckpt"))


def test_training_needs_losses_their_references_and_images_of_the_datas_shape(tmp_path):
    with pytest.raises(ValueError, match="generator_losses"):
        train(make(generator_losses=None), tmp_path)
    with pytest.raises(ValueError, match="built"):
        train(make(generator=SmallGenerator(image_size=9)), tmp_path)
    loader = torch.utils.data.DataLoader(torch.zeros(4, 1))
    trainer = quiet_trainer(default_root_dir=tmp_path)
    with pytest.raises(ValueError, match="set_references"):
        trainer.fit(make(), loader)


# ---- conditional generators ----


class ByLabel(nn.Module):
    """A picture for each class, whatever the latent."""

    latent_dim, num_classes = 2, 10

    def __init__(self):
        super().__init__()
        self.pictures = nn.Parameter(torch.linspace(-0.9, 0.9, 10).reshape(10, 1, 1, 1).expand(10, 1, 8, 8).clone())

    def forward(self, latents, labels):
        return self.pictures[labels]


def test_a_conditional_generator_gets_labels_as_often_as_the_clients_have_them(tmp_path):
    for fixed in (None, 2000):
        seen = Recording()
        module = make(generator=ByLabel(), generator_losses=[seen], batch=2000, chunk=300, fixed_latents=fixed, lr=1e-9)
        train(module, tmp_path, strategy="auto")
        counts = [torch.bincount(_labels_of(images), minlength=10) for images in seen.calls]
        expected = 2000 * module.label_frequencies.counts / module.label_frequencies.counts.sum()
        assert all((count - expected).abs().max() < 60 for count in counts)
        assert torch.equal(counts[0], counts[1]) is (fixed is not None)


def _labels_of(images):
    return ((images[:, 0, 0, 0] + 0.9) / 0.2).round().long()
