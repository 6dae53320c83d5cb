"""Networks of timm and transformers by name; their weights are random here, so that nothing is downloaded."""

import sys

import pytest
import timm
import torch
from transformers import (
    BitImageProcessor,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetModel,
)

from fedgen.embeddings import embed, load_embedding, network_of
from fedgen.embeddings.names import split_options
from fedgen.images import from_uint8
from fedgen.scores import KernelReference
from fedgen.scores.kernel.kernels import RBFKernel

NETWORK = "test_resnet"  # half a million weights
IMAGES = torch.randint(0, 256, (3, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def timm_weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("timm") / "weights.pth"
    torch.save(timm.create_model(NETWORK, pretrained=False).state_dict(), path)  # with its classifier
    return path


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("dinov2")
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    Dinov2Model(Dinov2Config(**shape)).save_pretrained(folder)
    BitImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}).save_pretrained(folder)
    return folder


def test_a_timm_network_gives_its_pooled_features_of_images_as_it_expects_them(timm_weights):
    embedding = load_embedding(f"timm/{NETWORK}", weights=timm_weights)
    network = timm.create_model(NETWORK, pretrained=False, checkpoint_path=str(timm_weights)).eval()
    config = timm.data.resolve_model_data_config(network)
    side = config["input_size"][-1]
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    mean, std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    expected = network.forward_head(network.forward_features((images / 255 - mean) / std), pre_logits=True)
    assert torch.allclose(embedding(images), expected, atol=1e-5)
    assert (embedding.name, embedding.dim) == (f"timm/{NETWORK}", network.num_features)
    assert embedding.settings["mean"] == list(config["mean"])


def test_sizes_are_part_of_the_name_and_load_again(timm_weights):
    small = load_embedding({"name": f"timm/{NETWORK}", "size": 64, "weights": str(timm_weights)})
    assert small.name == f"timm/{NETWORK}@64"
    again = load_embedding(small.name, weights=timm_weights)
    assert again.fingerprint() == small.fingerprint()
    assert again.fingerprint() != load_embedding(f"timm/{NETWORK}", weights=timm_weights).fingerprint()
    assert network_of(small.name) == f"timm/{NETWORK}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", ("a/b", {})),
        ("a/b@96", ("a/b", {"size": 96})),
        ("a/b@unit", ("a/b", {"unit_length": True})),
        ("a/b@96@unit", ("a/b", {"size": 96, "unit_length": True})),
        ("/home/me@work/b", ("/home/me@work/b", {})),
    ],
)
def test_stored_names_tell_size_and_length(name, expected):
    assert split_options(name) == expected


def test_features_have_gradients_and_the_fingerprint_is_the_weights(timm_weights, tmp_path):
    embedding = load_embedding(f"timm/{NETWORK}@64", weights=timm_weights)
    images = from_uint8(IMAGES).requires_grad_()
    embedding(images).sum().backward()
    assert images.grad.abs().max() > 0
    state = torch.load(timm_weights, weights_only=True)
    torch.save({key: value + 1 if value.is_floating_point() else value for key, value in state.items()}, tmp_path / "b")
    other = load_embedding(f"timm/{NETWORK}@64", weights=tmp_path / "b")
    assert other.fingerprint() != embedding.fingerprint()


def test_a_folder_of_transformers_gives_the_pooled_features_that_the_model_gives(dinov2):
    embedding = load_embedding(f"transformers/{dinov2}")
    model, processor = Dinov2Model.from_pretrained(dinov2), BitImageProcessor.from_pretrained(dinov2)
    images = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
    pixels = processor(list(images), do_resize=False, do_center_crop=False, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixel_values=pixels).pooler_output
    assert torch.allclose(embedding(images), expected, atol=1e-5)
    assert embedding.dim == 24
    named = load_embedding("transformers/facebook/dinov2-small", weights=dinov2)
    assert named.name == "transformers/facebook/dinov2-small"
    assert named.fingerprint() != embedding.fingerprint()  # the name is part of it


def test_a_model_of_images_and_texts_gives_its_image_features(tmp_path):
    torch.manual_seed(0)
    side = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**side, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(vision_config=vision, text_config={**side, "vocab_size": 50}, projection_dim=10))
    model.save_pretrained(tmp_path)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    embedding = load_embedding(f"transformers/{tmp_path}")
    assert (embedding(IMAGES).shape, embedding.settings["layer"]) == ((3, 10), "image features")


@pytest.fixture(scope="module")
def clip_tower(tmp_path_factory):
    """CLIP's image tower with its projection, in transformers' folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPVisionConfig(**shape, image_size=32, patch_size=16, projection_dim=10)
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def test_an_image_tower_gives_its_projection_of_length_one_if_asked(clip_tower):
    embedding = load_embedding(f"transformers/{clip_tower}")
    model = CLIPVisionModelWithProjection.from_pretrained(clip_tower)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    pixels = CLIPImageProcessor.from_pretrained(clip_tower)(list(images), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixel_values=pixels).image_embeds
    assert torch.allclose(embedding(images), expected, atol=1e-5)
    assert embedding.settings["layer"] == "image features"
    unit = load_embedding({"name": f"transformers/{clip_tower}", "unit_length": True})
    assert torch.allclose(unit(images), expected / expected.norm(dim=1, keepdim=True), atol=1e-6)
    assert unit.name == f"transformers/{clip_tower}@unit"
    assert load_embedding(unit.name).fingerprint() == unit.fingerprint() != embedding.fingerprint()
    assert network_of(unit.name) == embedding.name


def test_the_gaussian_kernel_on_it_is_cmmd_by_hand_in_both_aggregates(clip_tower):
    """MMD^2 of Jayasumana et al. 2024 with sigma 10, of the empirical distributions, before its factor of 1,000."""
    embedding = load_embedding({"name": f"transformers/{clip_tower}", "unit_length": True})
    draws = torch.Generator().manual_seed(0)
    sets = [torch.randint(0, high, (6, 3, 32, 32), dtype=torch.uint8, generator=draws) for high in (80, 160, 256)]
    *clients, generated = [embed(embedding, images) for images in sets]

    def kernel(x, y):
        return torch.exp(-torch.cdist(x.double(), y.double()).square() / (2 * 10.0**2)).mean()

    def cmmd(x):
        return float(kernel(x, x) + kernel(generated, generated) - 2 * kernel(x, generated))

    reference = KernelReference.from_features(clients, RBFKernel(10.0), "v")
    score = reference.score(generated, errors=False).values
    assert score["avg"] == pytest.approx((cmmd(clients[0]) + cmmd(clients[1])) / 2, rel=1e-9)
    assert score["all"] == pytest.approx(cmmd(torch.cat(clients)), rel=1e-9)


def test_feature_maps_that_a_model_pools_are_flattened(tmp_path):
    shape = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
    ResNetModel(ResNetConfig(**shape)).save_pretrained(tmp_path)
    BitImageProcessor(size={"height": 32, "width": 32}, do_center_crop=False).save_pretrained(tmp_path)
    assert load_embedding(f"transformers/{tmp_path}")(IMAGES).shape == (3, 12)


def test_a_folder_without_the_processors_settings_is_refused(tmp_path, dinov2):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((dinov2 / name).read_bytes())
    with pytest.raises(ValueError, match="preprocessor_config"):
        load_embedding(f"transformers/{tmp_path}")
    BitImageProcessor(do_normalize=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="normalise"):
        load_embedding(f"transformers/{tmp_path}")


def test_unknown_networks_options_and_missing_packages_are_named(monkeypatch, timm_weights):
    with pytest.raises(ValueError, match="resnet_none"):
        load_embedding("timm/resnet_none", weights=timm_weights)
    with pytest.raises(ValueError, match=rf"embedding timm/{NETWORK} has no option 'layer'; its options: size"):
        load_embedding(f"timm/{NETWORK}", layer="x")
    for package in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=f"needs the package {package}: pip install {package}"):
            load_embedding(f"{package}/anything")


@pytest.mark.parametrize("name", ["hf-hub:somebody/network", "local-dir:/somewhere"])
def test_weights_that_timm_might_unpickle_are_refused(name):
    with pytest.raises(ValueError, match="safetensors"):
        load_embedding(f"timm/{name}")
