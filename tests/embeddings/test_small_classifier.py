"""The small classifier: shapes, determinism, and that it leaves no trace."""

import pytest
import torch

from fedgen.embeddings import ClassifierOptions, SmallClassifier, train_classifier
from fedgen.embeddings.classifiers import LARGEST, fitted
from fedgen.images import from_uint8

FAST = ClassifierOptions(epochs=3, batch_size=16)


def halves(count, seed, side=12, channels=1):
    """Images whose left or right half is bright, and which."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=draws)
    images = torch.randint(0, 80, (count, channels, side, side), generator=draws)
    columns = torch.arange(side) >= side // 2
    images += 150 * (columns == labels[:, None].bool())[:, None, None, :]
    return images.to(torch.uint8), labels


@pytest.mark.parametrize("side", [4, 8, 16, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_every_size_give_logits_and_128_features(side, channels):
    network = SmallClassifier(channels, side, 7).eval()
    images = torch.randint(256, (2, channels, side, side), dtype=torch.uint8)
    assert network.logits(images).shape == (2, 7)
    assert network.features(images.float()).shape == (2, 128)
    assert network.classify(images).shape == (2,)


def test_floats_are_quantised_and_other_sizes_resized():
    network = SmallClassifier(1, 16, 3).eval()
    images = torch.randint(256, (4, 1, 16, 16), dtype=torch.uint8)
    assert torch.equal(network.logits(from_uint8(images)), network.logits(images))
    small = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(network.logits(small), network(fitted(small.float(), 16)))


def test_it_learns_and_answers_about_images_it_has_not_seen():
    network = train_classifier(*halves(120, 0), 2, FAST)
    images, labels = halves(80, 1)
    assert (network.classify(images) == labels).double().mean() > 0.95
    assert not network.training


def test_the_seed_decides_and_the_callers_streams_do_not():
    images, labels = halves(60, 0)
    torch.manual_seed(1)
    first = train_classifier(images, labels, 2, FAST).state_dict()
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(2)
    second = train_classifier(images, labels, 2, FAST).state_dict()
    other = train_classifier(images, labels, 2, ClassifierOptions(3, seed=1, batch_size=16)).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_it_trains_where_gradients_are_off_and_under_autocast():
    images, labels = halves(40, 0)
    plain = train_classifier(images, labels, 2, FAST).state_dict()
    with torch.inference_mode():
        inferred = train_classifier(images, labels, 2, FAST).state_dict()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cast = train_classifier(images, labels, 2, FAST).state_dict()
    for other in (inferred, cast):
        assert all(torch.equal(plain[key], other[key]) for key in plain)


def test_a_last_batch_of_one_image_is_left_out():
    train_classifier(*halves(17, 0), 2, FAST)


def test_large_images_are_made_smaller():
    network = train_classifier(*halves(16, 0, side=80, channels=3), 2, ClassifierOptions(1))
    assert network.side == LARGEST


def test_classes_that_do_not_occur_have_their_place():
    images, labels = halves(40, 0)
    network = train_classifier(images, labels, 5, FAST)
    assert network.num_classes == 5
    assert int(network.classify(images).max()) < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1, 2), "got 1 pixels, 1 channels and 2 classes"),
        ((1, 8, 1), "and 1 classes"),
        ((1, 65, 2), "2 to 64 pixels"),
    ],
)
def test_sizes_that_leave_nothing_to_classify_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SmallClassifier(*arguments)


def test_images_without_fitting_labels_are_refused():
    images, labels = halves(10, 0)
    with pytest.raises(ValueError, match="labels"):
        train_classifier(images, labels, 1)
    with pytest.raises(ValueError, match="uint8"):
        train_classifier(from_uint8(images), labels, 2)
    with pytest.raises(ValueError, match="int64"):
        train_classifier(images, labels.float(), 2)
