import pytest
import torch
from torch import nn

from fedgen.embeddings import load_embedding


class Probe(nn.Module):
    """Hands back what it was given."""

    def forward(self, images):
        return images


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, images):
        return images.mean((2, 3)) * self.scale


GREY = torch.tensor([0.0, 0.5]).view(1, 1, 1, 2)  # grey levels 128 and 191


@pytest.mark.parametrize(
    ("input_range", "expected"),
    [
        ("signed", [128 / 127.5 - 1, 191 / 127.5 - 1]),
        ("unit", [128 / 255, 191 / 255]),
        ("levels", [128, 191]),
        ("uint8", [128, 191]),
    ],
)
def test_a_module_receives_quantised_images_in_the_range_it_asks_for(input_range, expected):
    features = load_embedding(Probe(), input_range=input_range)(GREY)
    assert features[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_module_sees_uint8_when_it_asks_for_it():
    class NeedsBytes(nn.Module):
        def forward(self, images):
            assert images.dtype == torch.uint8
            return images.float()

    assert load_embedding(NeedsBytes(), input_range="uint8")(GREY).tolist() == [[128.0, 191.0]]


def test_unknown_ranges_are_refused():
    with pytest.raises(ValueError, match="input_range"):
        load_embedding(Probe(), input_range="float")


def test_outputs_are_flattened_and_dim_can_be_known_before_the_first_image():
    embedding = load_embedding(nn.Conv2d(3, 5, 2), channels=3, image_shape=(1, 4, 4))
    assert embedding.dim == 5 * 3 * 3
    assert embedding.name == "Conv2d"


def test_the_callers_module_stays_trainable():
    module = Scaled(1.0).train()
    load_embedding(module, name="scaled")
    assert module.training
    assert module.scale.requires_grad


def test_weights_are_loaded_into_the_copy(tmp_path):
    torch.save(Scaled(3.0).state_dict(), tmp_path / "scaled.pth")
    module = Scaled(1.0)
    features = load_embedding(module, weights=tmp_path / "scaled.pth", input_range="levels")(GREY)
    assert features.item() == 3 * (128 + 191) / 2
    assert module.scale.item() == 1.0


def test_fingerprints_tell_weights_code_and_input_range_apart():
    embeddings = [
        load_embedding(Scaled(1.0), name="same"),
        load_embedding(Scaled(2.0), name="same"),
        load_embedding(Scaled(1.0), name="same", input_range="unit"),
        load_embedding(Probe(), name="same"),
        load_embedding(nn.AvgPool2d(2), name="same"),
        load_embedding(nn.MaxPool2d(2), name="same"),
    ]
    assert len({embedding.fingerprint() for embedding in embeddings}) == len(embeddings)
    assert load_embedding(Scaled(1.0), name="same").fingerprint() == embeddings[0].fingerprint()


def test_a_module_that_returns_no_tensor_is_reported():
    class Pair(nn.Module):
        def forward(self, images):
            return images, images

    with pytest.raises(ValueError, match="embedding"):
        load_embedding(Pair())(GREY)
