from collections import namedtuple

import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data.items import collate_items, collate_levels, find_unlike, first_images, without_pillow
from fedgen.images import to_uint8

Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)])
def test_pillow_images_become_floats_in_minus_one_to_one(mode, channels):
    image = Image.new("L", (5, 4), 255).convert(mode)
    batch = collate_items([image, image])
    assert batch.shape == (2, channels, 4, 5)
    assert batch.dtype == torch.float32
    assert batch.unique().tolist() == [1.0]


def test_they_are_found_in_any_structure():
    image = Image.new("L", (2, 2), 0)
    found = without_pillow({"a": [image, 3], "b": Pair(image, "text")})
    assert found["a"][0].shape == found["b"].image.shape == (1, 2, 2)
    assert (found["a"][1], found["b"].label) == (3, "text")


def test_items_that_do_not_fit_together_are_told():
    with pytest.raises(ValueError, match="collate_fn"):
        collate_items([[torch.zeros(2)], [torch.zeros(2)] * 2])
    with pytest.raises(ValueError, match="collate_fn"):
        collate_items([object(), object()])


@pytest.mark.parametrize(
    ("first", "other", "told"),
    [
        (torch.zeros(3, 4, 4), torch.zeros(3, 4, 5), "[3, 4, 4] and [3, 4, 5]; resize images to one size"),
        (torch.zeros(3, 4, 4), Image.new("L", (4, 4)), "[3, 4, 4] and [1, 4, 4]; convert images to one number of"),
        (torch.zeros(2), torch.zeros(3), "[2] and [3]; give a collate_fn"),
    ],
)
def test_items_of_two_shapes_are_found_with_the_remedy(first, other, told):
    place, words = find_unlike([(first, 0), (first, 1), (other, 2)])
    assert place == 2
    assert words.startswith(f"the shapes {told}")
    assert find_unlike([(first, 0), (first, 1)]) is None


def test_grey_levels_and_labels():
    images, labels = collate_levels([(torch.full((1, 2, 2), 255, dtype=torch.uint8), 3)])
    assert images.unique().tolist() == [1.0]
    assert labels.tolist() == [3]


IMAGES, MASK = torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        (IMAGES, MASK),
        ["text", IMAGES],
        {"only": IMAGES, "name": ["a", "b"]},
        {"mask": MASK, "image": IMAGES},
        {"pixel_values": IMAGES, "labels": MASK},
    ],
)
def test_where_a_batch_has_its_images(batch):
    assert first_images(batch) is IMAGES


@pytest.mark.parametrize(
    ("batch", "words"), [({"a": IMAGES, "b": MASK}, "entries a, b"), ("text", "a str"), (("a", 1), "a tuple without")]
)
def test_batches_without_a_place_for_images_are_told(batch, words):
    with pytest.raises(ValueError, match=words):
        first_images(batch)


@pytest.mark.parametrize(
    ("pixels", "levels"), [(np.uint16([[0, 32768, 65535]]), [0, 128, 255]), (np.float32([[0, 0.5, 1]]), [0, 128, 255])]
)
def test_deep_pillow_images_are_rescaled_as_a_folders_are(pixels, levels):
    """They were clipped at 255, so that images of 16 bits were white."""
    batch = collate_items([Image.fromarray(pixels)])
    assert to_uint8(batch).flatten().tolist() == levels
