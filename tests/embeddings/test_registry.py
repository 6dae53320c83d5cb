import pytest
from torch import nn

from fedgen.embeddings import EfficientNetLite0, Pixels, embedding_names, load_embedding


def test_names_hold_every_embedding():
    names = embedding_names()
    assert names == sorted(names)
    wanted = {"efficientnet-lite0", "inception-v3-compat", "vgg16", "clip-vit-b-32", "dinov2-vit-l-14", "pixels"}
    assert wanted | {"identity"} <= set(names)


def test_an_unknown_name_lists_the_known_ones_closest_first():
    with pytest.raises(ValueError, match="embedding"):
        load_embedding("pixel")


def test_the_names_of_stored_scores_load_again():
    embedding = EfficientNetLite0(size=96)
    assert load_embedding(embedding.name).fingerprint() == embedding.fingerprint()


def test_a_suffix_and_its_option_do_not_mix():
    with pytest.raises(ValueError, match="lite0"):
        load_embedding("efficientnet-lite0-96", size=32)


def test_an_embedding_is_returned_as_it_is():
    embedding = Pixels()
    assert load_embedding(embedding) is embedding
    with pytest.raises(ValueError, match="embedding"):
        load_embedding(embedding, weights="file.pth")


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        ("efficientnet-lite0", {"sise": 64}, "size"),
        ("pixels", {"size": 8}, "none"),
        ("clip-vit-b-32", {"x": 1}, "dtype"),
    ],
)
def test_unknown_options_name_the_known_ones(name, options, known):
    with pytest.raises(ValueError, match=f"embedding {name} has no option '.*'; its options: {known}"):
        load_embedding(name, **options)


def test_unknown_options_of_a_module_name_the_known_ones():
    with pytest.raises(ValueError, match="input_range"):
        load_embedding(nn.Identity(), range="unit")


def test_weights_for_an_embedding_without_any_are_refused():
    with pytest.raises(ValueError, match="embedding"):
        load_embedding("pixels", weights="file.pth")
