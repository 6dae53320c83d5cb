import os

import pytest
import torch

from fedgen.embeddings import FeatureCache, Pixels, embed, load_embedding


class Counting(Pixels):
    """Pixels that count how often they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def features(self, levels):
        self.calls += 1
        return super().features(levels)


@pytest.fixture
def cache(tmp_path) -> FeatureCache:
    return FeatureCache(tmp_path / "features")


def the_entry(cache: FeatureCache):
    (path,) = cache.folder.glob("*.safetensors")
    return path


def test_the_second_call_reads_what_the_first_computed(cache, images):
    embedding, again = Counting(), Counting()
    first = embed(embedding, images, cache=cache)
    second = embed(again, images, cache=FeatureCache(cache.folder))
    assert torch.equal(first, second)
    assert (embedding.calls, again.calls, again.dim) == (1, 0, 64)


def test_floats_find_the_features_of_their_uint8_copies(cache, images):
    embedding = Counting()
    embed(embedding, images, cache=cache)
    embed(embedding, (images * 127.5 + 128).clamp(0, 255).to(torch.uint8), cache=cache)
    assert embedding.calls == 1


def test_other_images_shapes_embeddings_and_batches_have_other_keys(cache, lite0):
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    pixels = Pixels()
    keys = {
        cache.key(images, pixels),
        cache.key(images + 1, pixels),
        cache.key(images.view(1, 1, 4, 16), pixels),
        cache.key(images.float(), pixels),
        cache.key(images, lite0),
        cache.key(images, load_embedding("efficientnet-lite0")),
        cache.key(images, pixels, "batch 2 on cpu"),
    }
    assert len(keys) == 7


def test_keys_do_not_depend_on_memory_layout(cache):
    images = torch.arange(192, dtype=torch.uint8).view(1, 3, 8, 8)
    strided = images.to(memory_format=torch.channels_last)
    assert cache.key(images, Pixels()) == cache.key(strided, Pixels())


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "replaced"])
def test_a_damaged_entry_is_reported_and_computed_again(cache, images, damage):
    embedding = Counting()
    expected = embed(embedding, images, cache=cache)
    path = the_entry(cache)
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[:-10]
    elif damage == "empty":
        data = bytearray()
    elif damage == "flipped":
        data[-1] ^= 1
    else:  # a whole entry under another's name
        cache.store("0" * 32, expected + 1)
        data = bytearray(cache.path("0" * 32).read_bytes())
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="computed"):
        assert torch.equal(embed(embedding, images, cache=cache), expected)
    assert torch.equal(embed(embedding, images, cache=cache), expected)
    assert embedding.calls == 2


def test_nothing_but_whole_entries_is_left_in_the_folder(cache, images):
    embed(Pixels(), images, cache=cache)
    assert [path.suffix for path in cache.folder.iterdir()] == [".safetensors"]


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PermissionError, match="features"):
        FeatureCache(tmp_path / "file" / "features")


def test_a_full_disk_costs_a_warning_and_not_the_features(cache, images, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="features"):
        features = embed(Pixels(), images, cache=cache)
    assert features.shape == (3, 64)
