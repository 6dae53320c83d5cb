"""A client's batches: shuffled, balanced, cut when they are asked for."""

import time
from itertools import islice

import pytest
import torch

from fedgen.clients import Turn
from fedgen.clients import turn as turn_file
from fedgen.data import Examples
from fedgen.data.examples import draw_batches, to_batch
from fedgen.images import from_uint8
from fedgen.seeds import generator


def positions(count, batch_size, iterations, seed=0):
    return draw_batches(count, batch_size, iterations, generator(seed))


def images(count=12, size=2):
    grey = (torch.arange(count) % 256).to(torch.uint8).view(-1, 1, 1, 1)
    inputs = grey.expand(-1, 1, size, size).contiguous()
    return Examples(inputs, torch.arange(count) % 3, "toy/train", ("a", "b", "c"))


def make_turn(round=0, client=1, seed=0, indices=None, batch_size=4):
    indices = torch.arange(12) if indices is None else indices
    return Turn(images(), indices, batch_size, seed, client, "a client", round)


@pytest.mark.parametrize(("batch_size", "length"), [(4, 4), (12, 12), (64, 12)])
def test_a_turn_says_how_long_its_batches_are(batch_size, length):
    turn = make_turn(batch_size=batch_size)
    assert turn.batch_length == length
    assert [len(images) for images, _ in turn.batches(3)] == [length] * 3


@pytest.mark.parametrize(
    ("count", "batch_size", "iterations"), [(10, 4, 1), (10, 4, 7), (10, 3, 40), (5, 5, 3), (7, 64, 9), (1, 8, 4)]
)
def test_every_example_is_drawn_equally_often_to_one(count, batch_size, iterations):
    drawn = torch.bincount(positions(count, batch_size, iterations).flatten(), minlength=count)
    assert len(drawn) == count
    assert drawn.sum() == iterations * min(batch_size, count)
    assert drawn.max() - drawn.min() <= 1


def test_a_batch_is_never_larger_than_the_data():
    assert positions(3, 64, 5).shape == (5, 3)
    assert positions(100, 64, 5).shape == (5, 64)


def test_a_batch_of_all_the_data_holds_every_example_once():
    assert all(sorted(batch) == [0, 1, 2, 3, 4] for batch in positions(5, 8, 6).tolist())


def test_each_pass_over_the_data_is_another_permutation():
    first, second = positions(100, 100, 2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(100))
    assert not torch.equal(first, second)


def test_more_iterations_begin_with_the_same_batches():
    assert torch.equal(positions(10, 4, 3), positions(10, 4, 9)[:3])


def collect(turn, iterations=5):
    return [(x.clone(), y.clone()) for x, y in turn.batches(iterations)]


def equal(a, b):
    return all(torch.equal(x, v) and torch.equal(y, w) for (x, y), (v, w) in zip(a, b))


def test_batches_are_a_function_of_seed_round_and_client():
    reference = collect(make_turn())
    torch.manual_seed(99)
    torch.rand(5)
    assert equal(reference, collect(make_turn()))
    for other in (make_turn(round=1), make_turn(client=2), make_turn(seed=1)):
        assert not equal(reference, collect(other))


def test_a_turn_can_be_played_again():
    turn = make_turn()
    assert equal(collect(turn), collect(turn))


def test_drawing_batches_leaves_the_global_generators_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    collect(make_turn())
    assert torch.equal(before, torch.get_rng_state())


def test_a_client_sees_its_own_examples_only():
    own = torch.tensor([2, 5, 7, 11])
    seen = torch.cat([x[:, 0, 0, 0] for x, _ in make_turn(indices=own, batch_size=3).batches(4)])
    assert set(((seen + 1) * 127.5).round().int().tolist()) == set(own.tolist())


def test_batches_are_cut_when_they_are_asked_for(monkeypatch):
    cut = []
    monkeypatch.setattr(turn_file, "from_uint8", lambda images: cut.append(1) or from_uint8(images))
    for expected, _ in enumerate(islice(make_turn().batches(1000), 3), 1):
        assert len(cut) == expected


def test_a_batch_is_images_in_minus_one_to_one_with_their_labels():
    x, y = to_batch(images(256), torch.tensor([0, 255, 128, 3]))
    assert x.dtype == torch.float32
    assert x.shape == (4, 1, 2, 2)
    assert x[:, 0, 0, 0].tolist() == pytest.approx([-1, 1, 128 / 127.5 - 1, 3 / 127.5 - 1], abs=1e-6)
    assert y.tolist() == [0, 0, 2, 0]


def test_points_stay_as_they_are():
    points = Examples(torch.tensor([[5.0, -7.0], [1.0, 2.0]]), torch.zeros(2, dtype=torch.int64), "toy/train", ())
    x, _ = to_batch(points, torch.tensor([0]))
    assert x.tolist() == [[5, -7]]


def test_the_stored_images_are_not_changed_by_a_turn():
    turn = make_turn()
    before = turn._examples.inputs.clone()
    for x, _ in turn.batches(3):
        x.fill_(0)
    assert torch.equal(turn._examples.inputs, before)


def test_iterating_a_turn_gives_the_tensors_of_the_batch_being_trained_on():
    """Lightning looks for a batch size in there."""
    turn = make_turn()
    assert [len(t) for t in turn] == [len(next(turn.batches(1))[0])]  # before training: of a batch's length
    turn.current = batch = next(turn.batches(1))
    assert [id(t) for t in turn] == [id(t) for t in batch]
    turn.current = batch[0]
    assert next(iter(turn)) is batch[0]


def test_a_turn_describes_itself():
    turn = make_turn(round=3, indices=torch.arange(5))
    assert turn.num_examples == 5
    assert not turn.is_first
    assert not turn.is_last
    assert repr(turn) == "Turn(client=1, name='a client', round=3, num_examples=5)"


def test_ten_thousand_images_take_well_under_a_second():
    """One indexing a batch and no work per image: some 50 ms for 100 batches of 100."""
    data = images(10_000, size=8)
    turn = Turn(data, torch.arange(10_000), 100, 0, 0, "a client", 0)
    start = time.perf_counter()
    assert sum(len(x) for x, _ in turn.batches(100)) == 10_000
    assert time.perf_counter() - start < 2.0


def test_the_former_name_of_a_remote_turn_is_warned_of():
    idle = Turn.idle(
        Examples(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), ("a",), "four"), round=0
    )
    with pytest.warns(DeprecationWarning, match="is_remote"):
        assert idle.is_elsewhere is idle.is_remote is True
