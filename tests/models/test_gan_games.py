"""The GAN core with other games than WGAN-GP's, with and without labels."""

import warnings

import lightning
import pytest
import torch
from torch.nn import functional as F

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.losses import EmbeddedLoss
from fedgen.models import GAN, Hinge, NonSaturating, WassersteinGP
from fedgen.models.networks import DCGANCritic, DCGANGenerator, SAGANCritic, SAGANGenerator, SmallCritic, SmallGenerator
from tests.losses.simple import MeanLoss, two_numbers
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make(loss=None, **arguments):
    torch.manual_seed(0)
    networks = {"generator": SmallGenerator(latent_dim=3, width=2), "critic": SmallCritic(width=2)}
    return GAN(**{"loss": loss or Hinge(), **networks, **arguments})


def make_conditional(**arguments):
    torch.manual_seed(0)
    options = {"image_size": 8, "channels": 1, "width": 4, "attention_size": 4, "num_classes": 10}
    return make(generator=SAGANGenerator(latent_dim=3, **options), critic=SAGANCritic(**options), **arguments)


def train(module, tmp_path, epochs=1, iterations=4, strategy="auto", ckpt_path=None, **options):
    """Fits over digits with two classes a client."""
    data = FederatedDataModule(Digits(), ByClass(classes_per_client=2), batch_size=8, iterations=iterations, seed=0)
    trainer = quiet_trainer(epochs, strategy=strategy, limit_val_batches=0, default_root_dir=tmp_path, **options)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


class Seed(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        torch.manual_seed(100 * trainer.current_epoch + batch_idx)


def binary_cross_entropy_step(twin, real):
    """The DCGAN's step as in its published code: BatchNorm sees real and made images apart, the targets are 1 and 0."""
    optimizers = [
        torch.optim.Adam(n.parameters(), lr=lr, betas=(0.5, 0.999))
        for n, lr in ((twin.generator, 0.01), (twin.critic, 0.02))
    ]
    fake = twin.generator(torch.randn(2, 3))
    on_real, on_fake = twin.critic(real), twin.critic(fake.detach())
    ones, zeros = torch.ones(2), torch.zeros(2)
    cross_entropy = F.binary_cross_entropy_with_logits
    (cross_entropy(on_real, ones) + cross_entropy(on_fake, zeros)).backward()
    optimizers[1].step()
    fake = twin.generator(torch.randn(2, 3))
    cross_entropy(twin.critic(fake), ones).backward(inputs=list(twin.generator.parameters()))
    optimizers[0].step()


def test_a_dcgan_iteration_equals_a_plain_loop(fit):
    def build():
        torch.manual_seed(0)
        return make(
            NonSaturating(), generator=DCGANGenerator(16, 1, 3, 4), critic=DCGANCritic(16, 1, 4, batch_norm=True),
            lr=0.01, critic_lr=0.02, betas=(0.5, 0.999),
        )  # fmt: skip

    module, twin = build(), build()
    fit(module, batches=1, shape=(1, 16, 16), callbacks=[Seed()])
    torch.manual_seed(0)
    binary_cross_entropy_step(twin, torch.rand(2, 1, 16, 16, generator=seeded()) * 2 - 1)
    for name, value in module.named_parameters():
        gradient = twin.get_parameter(name).grad
        clear = gradient.abs() > 1e-5  # Adam scales gradients that are zero but for rounding to full steps
        assert clear.any()
        assert torch.allclose(value[clear], twin.get_parameter(name)[clear], atol=1e-5), name
    for name, value in module.critic.named_buffers():
        assert torch.allclose(value.float(), twin.critic.get_buffer(name).float(), atol=1e-5), name


def test_two_time_scales_are_two_learning_rates():
    generator, critic = make(lr=0.1, critic_lr=0.4).configure_optimizers()
    assert [optimizer.param_groups[0]["lr"] for optimizer in (generator, critic)] == [0.1, 0.4]
    assert [o.param_groups[0]["lr"] for o in make(lr=0.1).configure_optimizers()] == [0.1, 0.1]


@pytest.mark.parametrize("loss", [Hinge(), NonSaturating(), WassersteinGP(2.5)])
def test_a_checkpoint_holds_networks_and_game_as_plain_types(loss, fit, tmp_path):
    module = make(loss, critic_lr=0.3, betas=(0, 0.99), generator_trained_by="server", ema_decay=0.9)
    path = tmp_path / "model.ckpt"
    fit(module, batches=2).save_checkpoint(path)
    saved = torch.load(path, weights_only=True)["hyper_parameters"]
    assert saved["loss"] == {
        "class_path": f"fedgen.models.adversarial.{type(loss).__name__}",
        "init_args": {"penalty": 2.5} if isinstance(loss, WassersteinGP) else {},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = GAN.load_from_checkpoint(path, weights_only=True)
    assert type(loaded.loss) is type(loss)
    assert loaded.loss.settings == loss.settings
    assert (loaded.critic_lr, loaded.betas, loaded.generator_trained_by) == (0.3, (0.0, 0.99), "server")
    assert torch.equal(loaded.sample(4, seeded()), module.sample(4, seeded()))
    assert loaded.hparams == module.hparams


@pytest.mark.slow
def test_a_foreign_game_is_asked_for_when_its_checkpoint_is_loaded(fit, tmp_path):
    class LeastSquares(Hinge):
        pass

    path = tmp_path / "model.ckpt"
    fit(make(LeastSquares()), batches=1).save_checkpoint(path)
    with pytest.raises(ValueError, match="LeastSquares"):
        GAN.load_from_checkpoint(path, weights_only=True)
    assert isinstance(GAN.load_from_checkpoint(path, weights_only=True, loss=Hinge()).loss, Hinge)


def test_no_slopes_are_penalised_through_batch_norm():
    with pytest.raises(ValueError, match="WassersteinGP"):
        make(WassersteinGP(), critic=DCGANCritic(16, 1, 2, batch_norm=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"critic_lr": -1.0}, "critic_lr must be positive, got -1.0"),
        ({"loss": "hinge"}, "loss='hinge' is no game; give one"),
        ({"generator_trained_by": "nobody"}, "generator_trained_by='nobody': choose 'clients' or 'server'"),
        ({"critic": SAGANCritic(8, 1, 2, 4, num_classes=3)}, "generator has num_classes=None and the critic 3"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


# ---- labels ----


def test_generated_images_have_the_labels_of_the_real_batch(tmp_path):
    module, seen = make_conditional(n_critic=2), []
    module.generator.register_forward_pre_hook(lambda _, inputs: seen.append(("made", inputs[1].tolist())))
    module.critic.register_forward_pre_hook(lambda _, inputs: seen.append(("scored", inputs[1].tolist())))
    batches = []

    class Batches(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            batches.append(batch[1].tolist())

    seen.clear()
    train(module, tmp_path, iterations=2, callbacks=[Batches()])
    seen = seen[2:]  # those of the check before training
    first, second = batches
    both = [*second, *second]
    assert seen[:2] == [("made", first), ("scored", [*first, *first])]
    assert seen[2:] == [("made", second), ("scored", both), ("made", second), ("scored", second)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "federated"])
def test_samples_have_the_labels_asked_for_or_the_datas_frequencies(strategy, tmp_path):
    module = make_conditional(ema_decay=0.5)
    assert module.label_frequencies.counts.tolist() == [1] * 10
    trainer = train(module, tmp_path, strategy=FedAvgStrategy(2, seed=0) if strategy == "federated" else "auto")
    expected = sum(torch.bincount(c.train_examples.labels, minlength=10) for c in trainer.datamodule.clients)
    assert torch.equal(module.label_frequencies.counts, expected)
    assert len(expected.unique()) > 1
    labels = torch.arange(10)
    images = module.sample(10, seeded(), labels=labels)
    assert images.shape == (10, 1, 8, 8)
    assert torch.allclose(images[3:5], module.sample(10, seeded(), labels=labels, batch_size=3)[3:5], atol=1e-5)
    draws = seeded(3)
    torch.randn(50, 3, generator=draws)
    drawn = module.label_frequencies.draw(50, draws)
    assert torch.equal(module.sample(50, seeded(3)), module.sample(50, seeded(3), labels=drawn))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = GAN.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(loaded.sample(5, seeded()), module.sample(5, seeded()))


def test_labels_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="labels"):
        make_conditional().sample(2, labels=torch.tensor([0, 10]))
    with pytest.raises(ValueError, match="batches"):
        make_conditional().label_frequencies.labels_of((torch.zeros(2, 1, 8, 8),))
    with pytest.raises(ValueError, match="batch_size"):
        make().sample(2, batch_size=0)
    with pytest.raises(ValueError, match="GAN"):
        make().sample(2, labels=torch.zeros(2, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_a_score_of_a_conditional_generators_images_reaches_it(separate, tmp_path):
    """With the adversarial loss drowned, the images' mean goes to the digits', in one pass or in chunks of a second."""
    options = {"separate": True, "num_images": 20, "chunk": 8} if separate else {}
    loss = EmbeddedLoss(MeanLoss(), [two_numbers()], weight=1000.0, **options)
    module = make_conditional(lr=0.02, generator_losses=[loss])
    first = train(module, tmp_path).callback_metrics["mean_loss/two-numbers"]
    assert train(module, tmp_path, epochs=3).callback_metrics["mean_loss/two-numbers"] < first / 4


# ---- averaging ----


@pytest.mark.slow
def test_merged_spectral_norms_are_those_of_the_merged_weights(tmp_path):
    module = make_conditional(lr=0.01, ema_decay=0.5)
    train(module, tmp_path, epochs=3, strategy=FedAvgStrategy(4, seed=0))
    for network in (module.generator, module.critic, module.generator_ema.network):
        for layer in network.eval().modules():
            if hasattr(layer, "parametrizations"):
                size = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2).item()
                assert size == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_private_critics_stay_with_their_clients_and_the_generator_is_averaged(tmp_path):
    module = make(lr=0.01)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    strategy = FedAvgStrategy(4, seed=0, personal=["critic.*"], optimizer_state="keep")
    train(module, tmp_path, epochs=2, strategy=strategy)
    after = module.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items() if name.startswith("critic."))
    assert not torch.equal(after["generator.body.0.weight"], before["generator.body.0.weight"])
    assert all(name.startswith("generator.") for name in strategy.exchange.shared)
    found = []
    for client in range(5):
        with strategy.client_model(client):
            found.append(module.critic.body[1].weight.detach().clone())
    assert len({tuple(weight.flatten().tolist()) for weight in found}) == 5
