"""DDPM, flow matching and EDM in the latents of a frozen autoencoder."""

import json

import lightning
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Examples
from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.federated import FedAvgStrategy
from fedgen.flower.wire.flower_records import from_records
from fedgen.flower.wire.messages import Answer, Task
from fedgen.hub import from_pretrained, save_pretrained
from fedgen.models import DDPM, EDM, VAE, FewStepGenerator, FlowMatching, LatentSpace
from fedgen.models.diffusion.diffusion_process import NoiseSchedule
from fedgen.models.networks import AutoencoderKL, UNet
from tests.flower.loopback import Node
from tests.flower.runs import deploy, node_of, recipe, same_weights, simulate, write_images
from tests.trainers import quiet_trainer, same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|exists and is not)")

KINDS = {
    "ddpm": (DDPM, {"schedule": NoiseSchedule(timesteps=10, clip=False)}),
    "flow": (FlowMatching, {"coupling": "optimal-transport"}),
    "edm": (EDM, {}),
}
NAMES = list(KINDS)
LIGHTNING = {"pytorch-lightning_version": lightning.__version__}


class Itself(nn.Module):
    """An autoencoder whose latents are the images."""

    def encode(self, images):
        return images

    def decode(self, latents):
        return latents


def make_vae(seed=1):
    torch.manual_seed(seed)
    model = VAE(AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1, attention=False))
    model.moments.mean.fill_(0.1)
    model.moments.square.fill_(0.26)
    return model


def make(name, autoencoder=None, **options):
    kind, own = KINDS[name]
    pixels = autoencoder is None or isinstance(autoencoder, Itself)
    torch.manual_seed(0)
    network = UNet(*((8, 1) if pixels else (4, 2)), (8,), 1, (), num_classes=3)
    nn.init.normal_(network.body.conv_out.weight, std=0.1)
    return kind(network, **(own | options), autoencoder=autoencoder)


@pytest.fixture
def train(tmp_path):
    """Trains over three clients of a class each, two iterations a round."""

    def train(module, rounds, ckpt_path=None, **options):
        draws = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=draws)
        examples = Examples(images, torch.tensor([0] * 6 + [1] * 4 + [2] * 2), "noise/train", ("a", "b", "c"))
        trainer = quiet_trainer(rounds, strategy=FedAvgStrategy(2, seed=0, **options), default_root_dir=tmp_path)
        trainer.fit(
            module, FederatedDataModule(examples, ByClass(), batch_size=2, held_out=0.0, seed=0), ckpt_path=ckpt_path
        )
        return trainer

    return train


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images_of(count):
    return torch.rand(count, 1, 8, 8, generator=seeded()) * 2 - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_with_an_autoencoder_that_changes_nothing_all_is_the_model_of_images_to_the_bit(name, train):
    plain, latent = make(name), make(name, Itself())
    train(plain, 1, cohort_size=1)
    train(latent, 1, cohort_size=1)
    found = latent.state_dict()  # the autoencoder's, too
    assert all(torch.equal(value, found[name]) for name, value in plain.state_dict().items())
    drawn = [one.sample(3, seeded(), steps=2, guidance=2.0) for one in (plain, latent)]
    assert torch.equal(*drawn)
    assert drawn[0].abs().max() <= 1
    losses = [one.example_losses(images_of(3), torch.tensor([0, 1, 2])) for one in (plain, latent)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_that_of_latents_drawn_first(name):
    model, images, labels = make(name, make_vae(), label_dropout=0.0), images_of(3), torch.tensor([0, 1, 2])
    torch.manual_seed(7)
    loss = model.training_step((images, labels), 0)
    torch.manual_seed(7)
    posterior = model.latent_space.autoencoder.encode(images)
    latents = (
        (posterior.mean + posterior.std * torch.randn(3, 2, 4, 4)) - model.latent_space.shift
    ) * model.latent_space.scaling
    drawn = model._drawn(latents, (images, labels)) | ({} if model.num_classes is None else {"labels": labels})
    assert torch.equal(loss, model._loss((images, labels), drawn))


@pytest.mark.parametrize("name", NAMES)
def test_images_are_decoded_of_latents_that_are_not_bounded(name):
    model = make(name, make_vae())
    seen = []
    decode = model.latent_space.decode
    model.latent_space.decode = lambda latents: seen.append(latents) or decode(latents)
    images = model.sample(16, seeded(), steps=2)
    (latents,) = seen
    assert latents.shape == (16, 2, 4, 4)
    assert latents.abs().max() > 1.5
    assert torch.equal(images, decode(latents))
    assert (images.shape, model.image_shape, model.latent_shape) == ((16, 1, 8, 8), (1, 8, 8), (2, 4, 4))
    assert torch.allclose(model.sample(16, seeded(), steps=2, batch_size=7), images, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_losses_of_examples_are_those_of_their_latents_modes(name):
    model, images, labels = make(name, make_vae()), images_of(3), torch.tensor([0, 1, 2])
    bare = make(name, make_vae())
    bare.load_state_dict(model.state_dict())
    latents = model.latent_space.encode(images, draw=False)
    bare.latent_space, bare.image_shape = None, bare.latent_shape
    assert torch.allclose(
        model.example_losses(images, labels, batch_size=2), bare.example_losses(latents, labels), atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_neither_the_autoencoder_nor_the_average_travels(name, train):
    model = make(name, make_vae())
    before = {key: value.clone() for key, value in model.latent_space.state_dict().items()}
    exchange = train(model, 1, cohort_size=1).strategy.exchange
    assert {key.split(".")[0] for key in exchange.live} == {"network"}
    assert exchange.num_bytes == 4 * sum(parameter.numel() for parameter in model.network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.latent_space.state_dict().items())


@pytest.mark.slow
def test_resuming_ends_with_the_same_weights_to_the_bit(train, tmp_path):
    whole, part, resumed = (make("edm", make_vae(), ema_decay=0.9, warmup=5) for _ in range(3))
    options = {"optimizer_state": "keep", "cohort_size": 2}
    train(whole, 2, **options)
    train(part, 1, **options).save_checkpoint(tmp_path / "one.ckpt")
    train(resumed, 2, tmp_path / "one.ckpt", **options)
    assert same_state(whole, resumed)
    assert not same_state(whole, part)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_and_a_shared_folder_need_no_file_of_the_autoencoder(name, train, tmp_path):
    make_vae().save_pretrained(tmp_path / "vae")
    space = LatentSpace(str(tmp_path / "vae"), posterior="mode", chunk=5)
    model = make(name, space)
    train(model, 1, cohort_size=1).save_checkpoint(tmp_path / "model.ckpt")
    save_pretrained(model, tmp_path / "shared")
    (tmp_path / "vae").rename(tmp_path / "moved")
    expected = model.sample(2, seeded(), torch.tensor([0, 1]), steps=2)
    loaded = [KINDS[name][0].load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)]
    for again in [*loaded, from_pretrained(tmp_path / "shared")]:
        assert torch.equal(again.sample(2, seeded(), torch.tensor([0, 1]), steps=2), expected)
        assert (again.latent_space.posterior, again.latent_space.chunk) == ("mode", 5)
        assert (again.latent_space.shift, again.latent_space.scaling) == (space.shift, space.scaling)


@pytest.mark.slow
def test_where_the_autoencoders_file_has_become_another_a_run_goes_on_with_its_own(train, tmp_path):
    """A recipe names the file; weights, shift and scaling are the checkpoint's, for scores and for more rounds."""
    folder, file = str(tmp_path / "vae"), str(tmp_path / "vae.ckpt")

    def write(seed, square):
        vae = make_vae(seed)
        vae.moments.square.fill_(square)
        vae.save_pretrained(folder)
        torch.save({"state_dict": vae.state_dict(), "hyper_parameters": dict(vae.hparams)} | LIGHTNING, file)

    write(1, 0.26)  # variance 1/4, scaling 2
    whole, part = make("flow", folder), make("flow", file)
    train(whole, 2, cohort_size=1)
    train(part, 1, cohort_size=1).save_checkpoint(tmp_path / "one.ckpt")
    assert part.latent_space.scaling == pytest.approx(2.0)
    write(2, 4.01)  # scaling 1/2
    scored, resumed = make("flow", folder), make("flow", file)
    assert scored.latent_space.scaling == pytest.approx(0.5)
    before = scored.latent_space.fingerprint()
    load_weights(scored, tmp_path / "one.ckpt")
    assert before != scored.latent_space.fingerprint() == part.latent_space.fingerprint()
    labels = torch.tensor([0, 1])
    drawn = [one.sample(2, seeded(), labels, steps=2) for one in (part, scored)]
    assert torch.equal(*drawn)
    train(resumed, 2, tmp_path / "one.ckpt", cohort_size=1)
    assert same_state(whole, resumed)
    assert not same_state(whole, part)


@pytest.mark.slow
def test_a_checkpoint_without_shift_and_scaling_is_refused(train, tmp_path):
    train(make("flow", make_vae()), 1, cohort_size=1).save_checkpoint(tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
    del checkpoint["state_dict"]["latent_space.shift_and_scaling"]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match="shift_and_scaling"):
        load_weights(make("flow", make_vae()), tmp_path / "old.ckpt")
    with pytest.raises(MisconfigurationException, match="shift_and_scaling"):
        train(make("flow", make_vae()), 2, tmp_path / "old.ckpt")


@pytest.mark.slow
def test_a_shared_folder_may_name_no_file_as_its_autoencoder(tmp_path):
    save_pretrained(make("flow", make_vae()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["arguments"]["autoencoder"]["init_args"]["autoencoder"] = "owner/name"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="autoencoder"):
        from_pretrained(tmp_path)


@pytest.mark.slow
def test_an_autoencoder_of_ones_own_is_given_again_to_load_a_checkpoint(train, tmp_path):
    model = make("flow", Itself())
    train(model, 1).save_checkpoint(tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match="rebuild"):
        FlowMatching.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    again = FlowMatching.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True, autoencoder=Itself())
    assert same_state(model, again)


def test_in_half_precision_latents_are_those_of_full(fit):
    model = make("flow", make_vae(), ema_decay=None)
    fit(model, batches=2, precision="bf16-true")
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in model.latent_space.state_dict().values()} == {torch.float32}
    assert torch.isfinite(model.sample(2, seeded(), torch.tensor([0, 1]), steps=2)).all()


@pytest.mark.slow
def test_what_does_not_go_with_latents_is_told(train):
    vae = make_vae()
    model, ddpm = make("flow", vae), make("ddpm", vae)
    with pytest.raises(ValueError, match="autoencoder"):
        model.likelihood(images_of(2))
    with pytest.raises(ValueError, match="dequantise"):
        make("flow", vae, dequantise=8)
    with pytest.raises(ValueError, match="keeps"):
        make("ddpm", vae, schedule=NoiseSchedule(timesteps=10))
    assert make("ddpm", vae, schedule="cosine").diffusion.schedule == NoiseSchedule("cosine", clip=False)
    assert make("ddpm", vae, schedule=None).diffusion.schedule == NoiseSchedule(clip=False)
    with pytest.raises(ValueError, match="DDPMPipeline"):
        ddpm.save_pretrained("nowhere")
    with pytest.raises(ValueError, match="generator"):
        FewStepGenerator(ddpm, steps=2)
    with pytest.raises(ValueError, match="autoencoder"):
        model.training_step((torch.zeros(2, 1, 16, 16), torch.tensor([0, 1])), 0)


@pytest.fixture
def deployed(tmp_path):
    """A folder of images of two clients, and the recipe of a flow in latents of a folder of diffusers."""
    folder = tmp_path / "vae.d"  # a name without a dot is looked for among all classes, which takes seconds
    make_vae().save_pretrained(folder)
    unet = {"image_size": 4, "channels": 2, "widths": [8], "layers": 1, "attention": []}
    network = {"class_path": "fedgen.models.networks.UNet", "init_args": unet}
    own = {"network": network, "autoencoder": str(folder)}
    model = {"class_path": "fedgen.models.FlowMatching", "init_args": own}
    return write_images(tmp_path / "clients", {"a": 12, "b": 25}), recipe(1, model=model)


class Listening(Node):
    """A node that remembers what weights a server sends it, and what it sends."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sent, self.answered = set(), set()

    def answer(self, message, number):
        reply = super().answer(message, number)
        if message.metadata.message_type == "train":
            self.sent |= from_records(Task, message).weights.keys()
            self.answered |= from_records(Answer, reply).weights.keys()
        return reply


class OfAnotherAutoencoder(Node):
    """A node whose autoencoder has other weights than the server's."""

    def answer(self, message, number):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LatentSpace, "fingerprint", lambda self: "another")
            return super().answer(message, number)


@pytest.mark.slow
def test_over_flower_adapters_are_the_simulations_and_alone_what_clients_send(deployed, tmp_path):
    """Tasks hold the network with its frozen weights; neither its moving average nor the autoencoder."""
    images, settings = deployed
    own = {**settings["model"]["init_args"], "lora": {"rank": 2}}
    settings["model"] = {"class_path": "fedgen.models.EDM", "init_args": own}
    simulated, run = simulate(settings, images, tmp_path / "simulated"), tmp_path / "run"
    node = node_of(Listening, settings, images, run, "a")
    found, _ = deploy(settings, images, run, {10: node})
    assert found["fedavg"]["left_out"] == []
    same_weights(simulated, found)
    network = {name for name in found["state_dict"] if name.startswith("network.")}
    assert node.sent == network
    assert node.answered == {name for name in network if "lora_" in name}


@pytest.mark.slow
def test_over_flower_a_client_with_another_autoencoder_is_left_out(deployed, tmp_path):
    images, settings = deployed
    node = node_of(OfAnotherAutoencoder, settings, images, tmp_path / "run", "b")
    with pytest.warns(UserWarning, match="autoencoder"):
        found, _ = deploy(settings, images, tmp_path / "run", {11: node})
    (left,) = found["fedavg"]["left_out"]
    assert left["name"] == "b"
    assert "install the same release and weights" in left["reason"]
