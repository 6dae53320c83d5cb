import pickle

import pytest
import torch
from torch import nn

from fedgen.data.text import encode_all
from fedgen.embeddings import NotFiniteError, embed, load_embedding
from fedgen.embeddings.embed import embed_batches
from fedgen.images import to_uint8


def test_features_are_those_of_the_embedding_whatever_the_batch_size(lite0):
    images = torch.randint(0, 256, (7, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = lite0(images)
    for batch_size in (1, 3, 7, 100):
        features = embed(lite0, images, batch_size=batch_size)
        assert features.dtype == torch.float32
        assert not features.requires_grad
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_float_images_and_their_uint8_copies_have_bitwise_the_same_features(lite0, clip, images):
    for embedding in (lite0, clip, load_embedding("pixels")):
        assert torch.equal(embed(embedding, images), embed(embedding, to_uint8(images)))


def test_points_are_embedded_as_they_are():
    points = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(embed(load_embedding("identity"), points, batch_size=3), points)


def test_strings_are_embedded_as_their_bytes_are():
    network, texts = load_embedding("bytes"), ["CCO", "c1ccccc1"]
    assert torch.equal(embed(network, texts), embed(network, encode_all(texts)))
    with pytest.raises(TypeError, match="text 1 is a int; texts are strings"):
        embed(network, ["CCO", 1])


def test_inputs_that_want_gradients_do_not_keep_a_graph(images):
    features = embed(load_embedding("pixels"), images.requires_grad_())
    assert features.grad_fn is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_image_that_is_not_finite_is_named(images, value):
    images[1:, 0, 3, 3] = value
    with pytest.raises(ValueError, match="NaN"):
        embed(load_embedding("pixels"), images)


def test_the_first_point_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="NaN"):
        embed(load_embedding("identity"), torch.tensor([[0.0], [1.0], [float("nan")]]))


def test_features_that_are_not_finite_name_the_embedding_and_the_image():
    class Logarithm(nn.Module):
        def forward(self, images):
            return images.log()

    images = torch.full((5, 1, 2, 2), 9, dtype=torch.uint8)
    images[3, 0, 0, 0] = 0
    embedding = load_embedding(Logarithm(), input_range="levels")
    with pytest.raises(NotFiniteError, match="NaN") as caught:
        embed(embedding, images, batch_size=2)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (sent.place, str(sent)) == (3, str(caught.value))


def test_float_grey_levels_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        embed(load_embedding("pixels"), torch.full((1, 1, 2, 2), 255.0))


def test_wrong_inputs_are_refused(lite0, images):
    with pytest.raises(ValueError, match="lite0"):
        embed(lite0, images[:0])
    with pytest.raises(ValueError, match="uint8"):
        embed(lite0, torch.zeros(1, 1, 8, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match="takes"):
        embed(lite0, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="batch_size"):
        embed(lite0, images, batch_size=0)


def test_batches_of_several_sizes_are_embedded_one_after_another(lite0):
    draws = torch.Generator().manual_seed(0)
    parts = [torch.randint(0, 256, (n, 3, s, s), generator=draws, dtype=torch.uint8) for n, s in ((2, 8), (3, 40))]
    features = embed_batches(lite0, iter(parts), 5, "embedding")
    assert torch.equal(features, torch.cat([embed(lite0, part) for part in parts]))
    assert len(embed_batches(lite0, parts[:1], 5, "embedding")) == 2
    with pytest.raises(ValueError, match="embed"):
        embed_batches(lite0, [], 5, "embedding")


def test_floats_in_0_to_1_are_refused_where_they_are_many_and_warned_of_where_few():
    unit = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    pixels = load_embedding("pixels")
    with pytest.raises(ValueError, match="pixels"):
        embed(pixels, unit)
    with pytest.warns(UserWarning, match=r"all values of 5 images"):
        embed(pixels, unit[:5])
    embed(load_embedding("identity"), unit.flatten(1))  # points have no range
