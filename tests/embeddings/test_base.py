"""What holds for every embedding."""

import copy
import io
import pickle

import lightning
import pytest
import torch
from torch import nn

from fedgen.embeddings import Embedding, ModuleEmbedding, Pixels, load_embedding
from fedgen.images import from_uint8, to_uint8

NAMES = ["pixels", "lite0", "clip", "inception", "module"]


class Mean(Embedding):
    """The mean grey level of a grey image: one weight, features by hand."""

    def __init__(self, scale: float = 1.0) -> None:
        network = nn.Linear(1, 1, bias=False)
        nn.init.constant_(network.weight, scale)
        super().__init__("mean", 1, network, channels=1, settings={"resize": None})

    def features(self, levels):
        return self.network(levels.mean((1, 2, 3))[:, None])


@pytest.fixture(scope="module", params=NAMES)
def embedding(request) -> Embedding:
    if request.param == "pixels":
        return load_embedding("pixels")
    if request.param == "module":
        return ModuleEmbedding(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2)), channels=3)
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def two(embedding):
    """Two float images [2, 1, 8, 8], and their features, with the graph that leads back to the images."""
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2.2 - 1.1
    leaf = images.clone().requires_grad_()
    return images, leaf, embedding(leaf)


@pytest.mark.slow
def test_float_images_give_bitwise_the_features_of_their_uint8_copies(embedding, two):
    images, _, expected = two
    stored = to_uint8(images)
    assert torch.equal(embedding(stored), expected)
    assert torch.equal(embedding(from_uint8(stored)), expected)
    assert expected.dtype == torch.float32
    assert expected.shape == (2, embedding.dim)


def test_gradients_reach_the_images_finite_and_not_zero(two):
    _, leaf, features = two
    features.square().mean().backward()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.flatten(1).norm(dim=1).min() > 0


def test_grey_images_are_their_rgb_copies(embedding, two):
    if embedding.channels == 3:
        images, _, expected = two
        assert torch.equal(embedding(images.repeat(1, 3, 1, 1)), expected)


def test_the_gradient_is_that_of_the_unquantised_line():
    images = torch.tensor([[[[0.1, -0.3]]]], requires_grad=True)
    (features,) = Mean(2.0)(images)
    # 0.1 is grey level floor(140.75), -0.3 is floor(89.75).
    assert features.item() == 2 * (140 + 89) / 2
    features.backward()
    assert images.grad.flatten().tolist() == [127.5, 127.5]


def test_an_embedding_is_frozen_and_in_evaluation_mode_whatever_its_parent_does(lite0):
    parent = nn.Module()
    parent.embedding = lite0
    parent.train()
    parent.requires_grad_(True)
    assert not lite0.training
    assert not any(module.training for module in lite0.network.modules())
    assert not any(weight.requires_grad for weight in lite0.network.parameters())


def test_parents_see_no_weights_and_load_strictly(lite0):
    parent = nn.Sequential(nn.Linear(2, 2), lite0)
    assert list(parent.state_dict()) == ["0.weight", "0.bias"]
    assert len(list(parent.parameters())) == 2
    parent.load_state_dict(parent.state_dict(), strict=True)
    assert lite0.exchanged is False


def test_a_lightning_checkpoint_holds_nothing_of_an_embedding(lite0, tmp_path):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.embedding = lite0

    model = Model()
    trainer = lightning.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    stored = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert list(stored["state_dict"]) == ["layer.weight", "layer.bias"]
    assert (tmp_path / "model.ckpt").stat().st_size < 20_000


def test_another_precision_of_the_parent_leaves_the_features_alone(lite0, images):
    expected = lite0(images)
    nn.Sequential(copy.deepcopy(lite0)).half()
    copied = copy.deepcopy(lite0)
    nn.Sequential(copied).double()
    assert torch.equal(copied(images), expected)


def test_autocast_does_not_change_a_value(lite0, images):
    expected = lite0(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(lite0(images), expected)


def test_copies_and_pickles_give_the_same_features(embedding, two):
    """Of a copy of what a pickle holds, which has the features only if both have."""
    images, _, expected = two
    restored = pickle.loads(pickle.dumps(embedding))
    assert torch.equal(copy.deepcopy(restored)(images), expected)
    assert restored.fingerprint() == embedding.fingerprint()


def test_to_moves_the_network():
    embedding = Mean()
    nn.Sequential(embedding).to("meta")
    assert embedding.device == torch.device("meta")
    assert embedding.network.weight.device == torch.device("meta")


def test_fingerprints_tell_weights_settings_and_names_apart():
    prints = {Mean(1.0).fingerprint(), Mean(2.0).fingerprint(), Pixels().fingerprint()}
    renamed, resized = Mean(1.0), Mean(1.0)
    renamed.name, resized.settings = "other", {"resize": 64}
    assert len(prints | {renamed.fingerprint(), resized.fingerprint()}) == 5
    assert Mean(1.0).fingerprint() == Mean(1.0).fingerprint()


@pytest.mark.parametrize(
    ("shape", "message"),
    [((8, 8), r"\[N, C, H, W\]"), ((2, 4, 8, 8), "1 or 3 channels, got 4"), ((2, 1, 0, 8), "at least one pixel")],
)
def test_wrong_shapes_are_refused_before_any_work(lite0, shape, message):
    with pytest.raises(ValueError, match=message):
        lite0.check(shape)
    with pytest.raises(ValueError, match=message):
        lite0(torch.zeros(shape))


def test_integers_other_than_uint8_are_refused(lite0):
    with pytest.raises(ValueError, match="uint8"):
        lite0(torch.zeros(1, 1, 8, 8, dtype=torch.int64))


def test_the_length_of_pixel_features_is_unknown_before_the_first_image(images):
    embedding = Pixels()
    with pytest.raises(RuntimeError, match="takes"):
        _ = embedding.dim
    embedding(images)
    assert embedding.dim == 64


def test_a_network_that_mixes_up_its_batch_is_reported(images):
    class Sum(Embedding):
        def features(self, levels):
            return levels.sum((2, 3)).sum(0)

    with pytest.raises(ValueError, match="embedding"):
        Sum("sum", None)(images)


def test_saving_a_parent_as_a_whole_keeps_the_embedding(images):
    parent, file = nn.Sequential(Mean(2.0)), io.BytesIO()
    torch.save(parent, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(images), parent(images))
