import pytest
import torch

from fedgen.clients.partitions import Natural
from fedgen.data import MNIST5k, StyleShift
from fedgen.data.sets.without_download import deal_evenly, hold_out_evenly, render


@pytest.fixture
def plain(monkeypatch):
    """Every 25th image of MNIST5k, which is all that it has in these tests: 20 of each digit."""
    read = MNIST5k.read
    monkeypatch.setattr(MNIST5k, "read", lambda self, split: read(self, split).subset(range(0, 5000, 25)))
    return MNIST5k().load()


def test_every_image_is_the_digit_of_mnist5k_in_its_writers_style(plain):
    data = StyleShift(num_writers=4)
    shifted = data.load()
    assert torch.equal(shifted.labels, plain.labels)
    own = shifted.owners == 2
    assert torch.equal(shifted.inputs[own], render(plain.inputs[own], data.styles[2]))
    assert shifted.owner_names == ("writer 0", "writer 1", "writer 2", "writer 3")
    assert shifted.name == "style_shift-4writers-seed0/train"
    clients = Natural().assign(shifted, seed=0)
    assert [len(client) for client in clients] == [50] * 4
    assert torch.equal(StyleShift(num_writers=4).load().inputs, shifted.inputs)


def test_no_strength_is_mnist5k_with_owners(plain):
    data = StyleShift(num_writers=2, strength=0.0)
    assert torch.equal(data.load().inputs, plain.inputs)
    assert data.load().owners.bincount().tolist() == [100, 100]
    assert data.name == "style_shift-2writers-seed0-strength0"


def test_images_are_padded_before_they_are_rendered(plain):
    padded = StyleShift(num_writers=1, pad_to=32).load()
    assert padded.inputs.shape == (200, 1, 32, 32)
    assert padded.name == "style_shift-32-1writers-seed0/train"


def test_more_writers_and_other_deals_leave_the_styles_of_the_first_as_they_are():
    assert StyleShift(num_writers=9).styles[:3] == StyleShift(num_writers=3).styles
    assert StyleShift(seed=1).styles[0] != StyleShift(seed=0).styles[0]


@pytest.mark.parametrize("num_owners", [10, 7])
def test_labels_are_dealt_evenly_and_at_random(num_owners):
    labels = torch.arange(300) % 3
    owners = deal_evenly(labels, num_owners, seed=0)
    counts = torch.stack([owners[labels == label].bincount(minlength=num_owners) for label in range(3)])
    assert int((counts.amax(1) - counts.amin(1)).max()) <= 1
    assert int(counts.sum(0).max() - counts.sum(0).min()) <= 1
    assert not torch.equal(owners, deal_evenly(labels, num_owners, seed=1))
    # The mean position of a random 30 of 300 is 149.5 with a standard error of 15.
    assert abs(float((owners == 0).nonzero().double().mean()) - 149.5) < 50


@pytest.mark.slow
def test_held_out_images_are_more_digits_of_the_same_writers(plain):
    data = StyleShift(num_writers=4, held_out=0.2)
    train, test = data.load(), data.load("test")
    assert (train.name, test.name) == tuple(f"style_shift-4writers-seed0-held_out0.2/{s}" for s in ("train", "test"))
    assert train.label_counts().tolist() == [16] * 10
    assert test.label_counts().tolist() == [4] * 10
    for part in (train, test):
        counts = torch.stack([part.owners[part.labels == label].bincount(minlength=4) for label in range(10)])
        assert int((counts.amax(1) - counts.amin(1)).max()) <= 1
        assert part.owner_names == StyleShift(num_writers=4).load().owner_names
    held_out = hold_out_evenly(plain.labels, 0.2, seed=0)
    own = test.owners == 3
    assert torch.equal(test.inputs[own], render(plain.inputs[held_out][own], data.styles[3]))
    assert torch.equal(train.labels, plain.labels[~held_out])
    assert data.styles == StyleShift(num_writers=4).styles


def test_what_is_held_out_is_drawn_by_the_seed_and_more_contains_less():
    labels = torch.arange(300) % 3
    parts = {fraction: hold_out_evenly(labels, fraction, seed=0) for fraction in (0.001, 0.29, 0.5)}
    assert [labels[part].bincount().tolist() for part in parts.values()] == [[1] * 3, [29] * 3, [50] * 3]
    assert bool((parts[0.5] | ~parts[0.29]).all())
    assert not torch.equal(parts[0.5], hold_out_evenly(labels, 0.5, seed=1))
    # the mean position of a random 150 of 300 is 149.5 with a standard error of 5
    assert abs(float(parts[0.5].nonzero().double().mean()) - 149.5) < 20


def test_a_split_with_fewer_images_than_writers_is_refused(plain):
    with pytest.raises(ValueError, match="num_writers"):
        StyleShift(held_out=0.2).load("test")


@pytest.mark.parametrize(
    "options", [{"num_writers": 0}, {"num_writers": 5001}, {"strength": 1.5}, {"strength": -0.1}, {"held_out": 1.0}]
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"(num_writers must be 1|(strength|held_out) must lie in \[0)"):
        StyleShift(**options)


def test_with_nothing_held_out_there_is_no_test_split():
    with pytest.raises(ValueError, match="held_out"):
        StyleShift().load("test")


@pytest.mark.slow
def test_smaller_images_are_averages_of_the_rendered_ones(plain):
    whole, half = (StyleShift(10, pad_to=32, shrink=shrink).load("train") for shrink in (1, 2))
    assert half.inputs.shape == (len(plain), 1, 16, 16)
    averages = whole.inputs[:20].float().reshape(20, 1, 16, 2, 16, 2).mean(dim=(3, 5))
    assert torch.equal(half.inputs[:20], averages.round().to(torch.uint8))
    assert half.name == "style_shift-32-10writers-seed0-shrink2/train"


@pytest.mark.parametrize("options", [{"shrink": 0}, {"shrink": 3}, {"shrink": 5, "pad_to": 32}])
def test_sides_that_do_not_shrink_are_refused(options):
    with pytest.raises(ValueError, match="divide"):
        StyleShift(10, **options)
