"""Values against torch-fidelity's own path, on random weights."""

import numpy as np
import pytest
import torch
from cleanfid.resize import build_resizer
from PIL import Image
from torch import nn
from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torchvision import transforms

from fedgen.embeddings import embed, load_embedding
from fedgen.embeddings.fidelity import centre_square, clean_resize, pillow_resize
from fedgen.images import quantise, to_uint8


@pytest.fixture
def rgb():
    """Float images [2, 3, 20, 12] in [-1, 1]."""
    return torch.rand(2, 3, 20, 12, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture(scope="module")
def double(inception_weights):
    """An early layer of Inception in float64."""
    return load_embedding("inception-v3-compat", weights=inception_weights, layer="64", dtype="float64")


@pytest.mark.slow
def test_inception_features_are_bitwise_torch_fidelitys(inception, inception_weights, rgb):
    extractor = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], str(inception_weights))
    assert torch.equal(inception(rgb), extractor(to_uint8(rgb))[0])
    assert (inception.name, inception.dim) == ("inception-v3-compat", 2048)


@pytest.mark.slow
def test_inception_gradients_agree_with_a_finite_difference(double):
    # Around a grey level the quantiser is flat, so the slope is taken over a whole level: 1 / 127.5.
    images = torch.rand(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 1.8 - 0.9
    images.requires_grad_()
    double(images).sum().backward()
    step = torch.full_like(images, 1 / 127.5)
    with torch.no_grad():
        slope = (double(images + step).sum() - double(images - step).sum()) / 2
    assert slope.item() == pytest.approx((images.grad * step).sum().item(), rel=0.05)


@pytest.mark.slow
def test_an_earlier_layer_has_its_name_and_float64_where_torch_fidelity_computes_in_float32(
    double, inception_weights, rgb
):
    single = load_embedding("inception-v3-compat-64", weights=inception_weights)
    for embedding in (single, double):
        assert (embedding.name, embedding.dim) == ("inception-v3-compat-64", 64)
    assert next(double.network.parameters()).dtype == torch.float64
    found, other = double(rgb[:1]), single(rgb)
    assert found.dtype == torch.float32
    assert not torch.equal(found, other[:1])
    torch.testing.assert_close(found, other[:1], rtol=1e-4, atol=1e-5)
    assert double.fingerprint() != single.fingerprint()
    # torch-fidelity's own option, kept as evidence: the day this fails its bug is fixed.
    theirs = FeatureExtractorInceptionV3(
        "inception-v3-compat", ["64"], str(inception_weights), feature_extractor_internal_dtype="float64"
    )
    assert next(theirs.parameters()).dtype == torch.float32
    assert torch.equal(other, theirs(to_uint8(rgb))[0])


def test_clip_features_are_bitwise_torch_fidelitys(clip, clip_weights, rgb):
    with pytest.warns(FutureWarning, match="deprecated"):
        extractor = FeatureExtractorCLIP("clip-vit-b-32", ["clip"], str(clip_weights.with_suffix(".pt")))
    assert torch.equal(clip(rgb), extractor(to_uint8(rgb))[0])
    assert (clip.name, clip.dim) == ("clip-vit-b-32", 32)


def test_torch_fidelity_itself_still_refuses_floats(inception, rgb):
    with pytest.raises(ValueError, match="uint8"):
        inception.network(rgb)


class SmallVgg(nn.Module):
    """torchvision's VGG16 in miniature: a classifier of seven entries, of which torch-fidelity drops the last three."""

    def __init__(self, **kwargs) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(16, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2)
        )

    def forward(self, images):
        return self.classifier(self.features(images))


@pytest.mark.parametrize("shape", [(20, 12), (64, 64), (299, 299), (512, 300), (17, 400)])
def test_the_clean_resize_is_clean_fids(shape):
    levels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    theirs = build_resizer("clean")(levels)
    ours = clean_resize(torch.from_numpy(levels).permute(2, 0, 1)[None].float(), 299)
    assert ours.dtype == torch.float32
    assert (ours[0].permute(1, 2, 0) - torch.from_numpy(theirs)).abs().max() < 1e-3  # grey levels


@pytest.mark.slow
def test_clean_inception_resizes_outside_the_network_and_has_its_own_name(inception, inception_weights, rgb):
    clean = load_embedding("inception-v3-compat", weights=inception_weights, resize="clean-fid")
    assert clean.name == "inception-v3-compat-clean-fid"
    assert clean.settings["resize"] != inception.settings["resize"]
    assert clean.fingerprint() != inception.fingerprint()
    images = rgb[:1].clone().requires_grad_()
    features = clean(images)
    features.sum().backward()
    assert images.grad.abs().sum() > 0
    # its own resize leaves 299 x 299 images as they are
    assert torch.equal(features, inception.features(clean_resize(quantise(rgb[:1]), 299)))
    again = load_embedding(clean.name, weights=inception_weights)
    assert again.fingerprint() == clean.fingerprint()
    early = load_embedding("inception-v3-compat-64-clean-fid", weights=inception_weights)
    assert (early.name, early.dim) == ("inception-v3-compat-64-clean-fid", 64)
    with pytest.raises(ValueError, match="tensorflow"):
        load_embedding("inception-v3-compat", weights=inception_weights, resize="clean")


def test_vgg16_gives_its_second_hidden_layer(monkeypatch, tmp_path, rgb):
    monkeypatch.setattr("torchvision.models.vgg16", SmallVgg)
    torch.save(SmallVgg().state_dict(), tmp_path / "vgg16.pth")
    embedding = load_embedding("vgg16", weights=tmp_path / "vgg16.pth")
    before = load_embedding("vgg16-fc2", weights=tmp_path / "vgg16.pth")
    assert (embedding.name, before.name, embedding.dim) == ("vgg16", "vgg16-fc2", 6)
    assert torch.equal(embedding(rgb), embedding.network(to_uint8(rgb))[0])
    assert torch.equal(embedding(rgb), before(rgb).relu())


HUBCONF = """
import torch

class Small(torch.nn.Module):
    embed_dim = 3

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, images):
        return images.mean((2, 3)) * self.scale

def dinov2_vits14(pretrained=True):
    assert not pretrained
    return Small()
"""


def test_dinov2_loads_local_weights_into_a_local_clone(tmp_path, rgb):
    (tmp_path / "hubconf.py").write_text(HUBCONF)
    torch.save({"scale": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "dinov2_vits14_pretrain.pth")
    weights = tmp_path / "dinov2_vits14_pretrain.pth"
    embedding = load_embedding("dinov2-vit-s-14", weights=weights, repo=tmp_path)
    assert embedding.dim == 3
    assert torch.equal(embedding(rgb), embedding.network(to_uint8(rgb))[0])
    grey = embed(embedding, torch.full((1, 1, 14, 14), 255, dtype=torch.uint8))
    # ImageNet's normalisation of white, times the loaded weights.
    expected = [(1 - 0.485) / 0.229, 2 * (1 - 0.456) / 0.224, 3 * (1 - 0.406) / 0.225]
    assert grey[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_clip_as_cmmd_takes_the_square_by_pillows_bicubic_and_gives_features_of_length_one(clip, clip_weights, rgb):
    embedding = load_embedding("clip-vit-b-32", weights=clip_weights, resize="cmmd", unit_length=True)
    assert embedding.name == "clip-vit-b-32-cmmd-unit"
    assert embedding.settings != clip.settings
    squares = pillow_resize(centre_square(quantise(rgb)), 32, 32)
    # torch-fidelity's own path on these grey levels, whose resize leaves the network's size as it is
    expected = clip.network(squares.to(torch.uint8))[0]
    expected = expected / torch.linalg.norm(expected, dim=-1, keepdim=True)
    torch.testing.assert_close(embedding(rgb), expected, rtol=0, atol=1e-6)
    assert embedding(rgb).norm(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    images = rgb.clone().requires_grad_()
    embedding(images)[:, 0].sum().backward()
    assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("suffix", ["-cmmd", "-unit", "-cmmd-unit"])
def test_the_names_of_clips_variants_load_them_again(clip_weights, suffix):
    embedding = load_embedding(f"clip-vit-b-32{suffix}", weights=clip_weights)
    assert embedding.name == f"clip-vit-b-32{suffix}"
    assert (embedding.other_resize is not None, embedding.unit_length) == ("cmmd" in suffix, "unit" in suffix)
    with pytest.raises(ValueError, match="embedding"):
        load_embedding("clip-vit-b-32-cmmdunit", weights=clip_weights)


def test_dinov2_as_dgm_eval_takes_the_whole_image_by_pillows_bicubic(tmp_path, rgb):
    (tmp_path / "hubconf.py").write_text(HUBCONF)
    torch.save({"scale": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "small.pth")
    options = {"weights": tmp_path / "small.pth", "repo": tmp_path}
    embedding = load_embedding("dinov2-vit-s-14", resize="dgm-eval", **options)
    assert embedding.name == "dinov2-vit-s-14-dgm-eval"
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in to_uint8(rgb)]
    transform = transforms.Compose(
        [
            transforms.Resize((224, 224), transforms.InterpolationMode.BICUBIC),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    expected = torch.stack([transform(picture) for picture in pictures]).mean((2, 3)) * torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(embedding(rgb), expected, rtol=1e-5, atol=1e-5)
    again = load_embedding(embedding.name, **options)
    assert again.fingerprint() == embedding.fingerprint()
    assert again.fingerprint() != load_embedding("dinov2-vit-s-14", **options).fingerprint()


@pytest.mark.parametrize(("name", "wrong"), [("clip-vit-b-32", "dgm-eval"), ("dinov2-vit-l-14", "cmmd")])
def test_a_resize_of_another_family_is_refused_before_weights_are_read(name, wrong):
    with pytest.raises(ValueError, match=f"{name} has no resize '{wrong}'; choose one of tensorflow-1, "):
        load_embedding(name, weights="nowhere", resize=wrong)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("inception-v3-compat", {"layer": "100"}, "no layer '100'; choose one of 64, 192"),
        ("vgg16", {"layer": "fc1"}, "no layer 'fc1'"),
    ],
)
def test_unknown_layers_are_refused_before_weights_are_read(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_embedding(name, weights="nowhere.pth", **options)


def test_unknown_precisions_are_refused(clip_weights):
    with pytest.raises(ValueError, match="bfloat16"):
        load_embedding("clip-vit-b-32", weights=clip_weights, dtype="bfloat16")
