"""The embedding that the kit trains itself: kept, found again, and good at digits."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fedgen.data import MNIST5k
from fedgen.data.sets.without_download import Digits
from fedgen.embeddings import SmallClassifier, classifiers, embed, load_embedding, network_of
from fedgen.embeddings.classifiers import distorted, make_weights, split_digits, weights_path
from fedgen.evaluation.panels import make_panels
from fedgen.io.tensor_files import read_safetensors


def written_accuracy(path):
    return json.loads(read_safetensors(path)[1]["about"])["accuracy"]


@pytest.fixture
def brief(monkeypatch):
    """A training of a moment: one pass over 300 of 500 digits."""
    read = MNIST5k.read
    monkeypatch.setattr(MNIST5k, "read", lambda self, split: read(self, split).subset(range(0, 5000, 10)))
    monkeypatch.setattr(classifiers, "EPOCHS", 1)
    monkeypatch.setattr(classifiers, "HELD_OUT", 200)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights as they are before training."""
    path = tmp_path_factory.mktemp("weights") / "untrained.safetensors"
    torch.manual_seed(0)
    save_file(SmallClassifier(1, 28, 10).state_dict(), path)
    return path


def test_weights_of_a_file_give_128_features_of_grey_images_of_any_size(weights):
    embedding = load_embedding("classifier-mnist5k", weights=weights)
    assert (embedding.name, embedding.dim) == ("classifier-mnist5k", 128)
    for side in (8, 28, 40):
        assert embed(embedding, torch.randint(256, (3, 1, side, side), dtype=torch.uint8)).shape == (3, 128)
    with pytest.raises(ValueError, match="channels"):
        embedding.check((2, 3, 8, 8))


def test_it_passes_gradients_to_images(weights):
    images = torch.zeros(2, 1, 8, 8, requires_grad=True)
    load_embedding("classifier-mnist5k", weights=weights)(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_logits_serve_the_inception_score(weights):
    logits = load_embedding("classifier-mnist5k-logits", weights=weights)
    features = load_embedding("classifier-mnist5k", weights=weights)
    assert (logits.name, logits.dim) == ("classifier-mnist5k-logits", 10)
    assert logits.fingerprint() != features.fingerprint()
    images = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8)
    assert torch.allclose(features.network.head(embed(features, images)), embed(logits, images))
    assert make_panels([logits], ["is"])[0].choices[0].name == "is"


def test_stored_names_load_again_and_stand_for_one_network(weights):
    embedding = load_embedding("classifier-mnist5k", weights=weights, seed=3, layer="logits")
    assert embedding.name == "classifier-mnist5k-seed3-logits"
    again = load_embedding(embedding.name, weights=weights)
    assert again.fingerprint() == embedding.fingerprint()
    assert network_of(embedding.name) == "classifier-mnist5k"
    assert network_of("pixels") == "pixels"
    with pytest.raises(ValueError, match="mnist5k"):
        load_embedding("classifier-mnist5k-seedx")


@pytest.mark.parametrize(("options", "message"), [({"seed": -1}, "seed must be"), ({"layer": "x"}, "layer must be")])
def test_options_are_checked_before_training(options, message):
    with pytest.raises(ValueError, match=message):
        load_embedding("classifier-mnist5k", **options)


@pytest.mark.slow
def test_it_is_trained_on_first_use_and_found_again_and_is_its_seeds(tmp_path, monkeypatch, brief):
    monkeypatch.setenv("FEDGEN_CACHE", str(tmp_path / "cache"))
    first = load_embedding("classifier-mnist5k")
    assert weights_path().parent == tmp_path / "cache"
    assert 0.1 < written_accuracy(weights_path()) < 1
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="FEDGEN_CACHE"):  # a folder that cannot be written costs no more
        again = make_weights(0, tmp_path / "file" / "weights.safetensors")
    trained = first.network.state_dict()
    assert again.keys() == trained.keys()
    assert all(torch.equal(again[name], value) for name, value in trained.items())
    make_weights(1, other := tmp_path / "other.safetensors")
    assert load_embedding("classifier-mnist5k", weights=other).fingerprint() != first.fingerprint()
    monkeypatch.setattr(classifiers, "make_weights", None)  # would fail if it were called
    assert load_embedding("classifier-mnist5k").fingerprint() == first.fingerprint()


def test_held_out_digits_are_apart_from_the_others():
    held_out, chosen = split_digits(5000)
    assert (len(held_out), len(chosen)) == (1000, 4000)
    assert torch.equal(torch.cat([held_out, chosen]).sort().values, torch.arange(5000))


def test_distorted_digits_stay_digits_on_black():
    levels = torch.zeros(50, 1, 28, 28)
    levels[:, :, 8:20, 8:20] = 255.0
    shown = distorted(levels, torch.Generator().manual_seed(0))
    assert shown.shape == levels.shape
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 255.001
    assert len({round(float(image.sum())) for image in shown}) > 40
    assert torch.equal(shown, distorted(levels, torch.Generator().manual_seed(0)))


@pytest.mark.slow
def test_two_passes_teach_the_digits_that_were_held_out_and_those_of_another_collection(tmp_path, monkeypatch):
    monkeypatch.setattr(classifiers, "EPOCHS", 2)
    path = tmp_path / "weights.safetensors"
    make_weights(0, path)
    examples = MNIST5k().load("train").subset(split_digits(5000)[0])
    network = load_embedding("classifier-mnist5k", weights=path).network
    accuracy = float((network.classify(examples.inputs) == examples.labels).double().mean())
    assert accuracy == pytest.approx(written_accuracy(path))
    assert accuracy >= 0.94
    digits = Digits().load("train")
    assert (network.classify(digits.inputs) == digits.labels).double().mean() > 0.5
