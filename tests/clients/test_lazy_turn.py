"""Turns whose items are read when they are needed: any batch, any number of workers, the next turn read ahead."""

import os
import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from fedgen.clients import FederatedDataModule, Turn
from fedgen.clients.partitions import IID
from fedgen.clients.turn import LazyTurn
from fedgen.data.items import Items
from fedgen.own_code import from_own_code
from tests.clients.test_data_module import fedavg, under


class Noisy(Dataset):
    """Items with draws from all three global generators."""

    def __len__(self):
        return 24

    def __getitem__(self, position):
        return position, torch.rand(2), np.random.rand(), random.random()


class Texts(Dataset):
    """Sequences of letters of several lengths."""

    def __len__(self):
        return 12

    def __getitem__(self, position):
        return torch.full((position % 5 + 1,), position), f"text {position}"


def padded(items):
    return {
        "tokens": pad_sequence([tokens for tokens, _ in items], batch_first=True),
        "texts": [text for _, text in items],
    }


class Scenes(Dataset):
    """Float images with masks and boxes, as dictionaries."""

    def __len__(self):
        return 12

    def __getitem__(self, position):
        image = torch.full((3, 4, 4), position / 6 - 1)
        return {"image": image, "mask": image[0] > 0, "meta": {"size": (4, 4), "name": str(position)}}


def make(data, **options):
    return FederatedDataModule(data, IID(3), **{"batch_size": 4, "seed": 0, "held_out": 0.0, **options})


def turns(module, round=0, **options):
    return list(under(module, fedavg(**options), round))


def drawn(module, rounds=2, iterations=3):
    found = []
    for round in range(rounds):
        for turn in turns(module, round):
            found += [[value.tolist() for value in batch] for batch in turn.batches(iterations)]
    module.teardown("fit")
    return found


@pytest.mark.slow
def test_augmentation_is_the_same_for_any_number_of_workers():
    here = drawn(make(Noisy()))
    assert drawn(make(Noisy(), num_workers=2)) == here
    assert drawn(make(Noisy(), num_workers=1)) == here


def test_an_items_draws_differ_between_rounds_visits_and_clients():
    found = drawn(make(Noisy()), rounds=2, iterations=6)  # each of 8 items is seen three times a turn
    by_item = {}
    for positions, noise, more, most in found:
        for position, *values in zip(positions, noise, more, most):
            by_item.setdefault(position, []).append(str(values))
    assert {len(values) for values in by_item.values()} == {6}
    assert all(len(set(values)) == 6 for values in by_item.values())
    assert len({value for values in by_item.values() for value in values}) == 24 * 6


def test_reading_leaves_what_the_model_draws_alone():
    def seeded():
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)

    def draws():
        return torch.rand(1).item(), np.random.rand(), random.random()

    seeded()
    expected = draws()
    seeded()
    for turn in turns(make(Noisy())):
        assert len(list(turn.batches(2))) == 2
    assert draws() == expected


class Plain(Noisy):
    """The same without draws."""

    def __getitem__(self, position):
        return position


def test_pooled_batches_are_the_same_for_any_number_of_workers():
    def pooled(workers, round):
        module = make(Noisy(), num_workers=workers, held_out=0.25)
        found = [[value.tolist() for value in batch] for batch in under(module, SimpleNamespace(), round)]
        module.teardown("fit")
        return found

    assert pooled(0, 3) == pooled(2, 3)
    assert pooled(0, 3) != pooled(0, 4)
    assert sorted(at for positions, *_ in pooled(0, 3) for at in positions)[0] == 0
    assert len(pooled(0, 3)) == 5


def test_held_out_batches_are_the_same_in_every_round_and_come_without_augmentation():
    module = make(Noisy(), held_out=0.5, evaluation_data=Plain())
    batches = [batch.tolist() for batch in module.val_dataloader()]
    assert [position for batch in batches for position in batch] == module.pooled("held_out").tolist()
    augmented = make(Noisy(), held_out=0.5)
    first, second = ([str(batch) for batch in augmented.val_dataloader()] for _ in range(2))
    assert first == second


def test_ragged_text_and_a_collate_fn():
    module = make(Texts(), collate_fn=padded)
    for turn in turns(module):
        for batch in turn.batches(2):
            assert set(batch) == {"tokens", "texts"}
            assert [f"text {row[0]}" for row in batch["tokens"].tolist()] == batch["texts"]
    with pytest.raises(AttributeError, match="measure"):
        _ = module.image_shape
    assert not module.examples.is_images


def test_dictionaries_and_masks_pass_untouched():
    module = make(Scenes(), num_workers=1)
    (turn, *_) = turns(module)
    (batch,) = turn.batches(1)
    assert torch.equal(batch["mask"], batch["image"][:, 0] > 0)
    assert batch["mask"].dtype == torch.bool
    assert [int(name) for name in batch["meta"]["name"]] == (
        (batch["image"][:, 0, 0, 0] + 1) * 6
    ).round().int().tolist()
    assert module.image_shape == (3, 4, 4)
    module.teardown("fit")


def test_it_is_a_turn():
    turn, *_ = turns(make(Noisy()), cohort_size=2)
    assert isinstance(turn, Turn)
    assert (turn.name, turn.round, turn.num_examples, turn.batch_length) == (f"client {turn.client}", 0, 8, 4)
    assert turn.is_first
    assert not turn.is_last
    assert not turn.is_idle
    assert [len(batch[0]) for batch in turn.batches(3)] == [4, 4, 4]
    first, again = ([str(batch) for batch in turn.batches(2)] for _ in range(2))
    assert first == again


# ------------------------------------------------------------------ reading ahead


class Log:
    """The tasks that were begun, as positions."""

    def __init__(self, monkeypatch):
        self.begun = []
        start = Items.start

        def noted(items, task):
            self.begun.append(tuple(task.positions))
            return start(items, task)

        monkeypatch.setattr(Items, "start", noted)


def test_the_next_turns_are_read_while_one_trains(monkeypatch):
    log, module = Log(monkeypatch), make(Noisy(), num_workers=2)  # four batches are begun ahead
    first, second, third = turns(module)
    batches = first.batches(2)
    next(batches)
    assert len(log.begun) == 4  # two of the first turn, two of the second
    owners = [
        {client for client, one in enumerate(module.clients) for at in task if at in one.train} for task in log.begun
    ]
    assert owners == [{0}, {0}, {1}, {1}]
    next(batches)
    assert len(log.begun) == 5
    assert list(batches) == []
    for turn in (second, third):
        assert len(list(turn.batches(2))) == 2
    assert len(set(log.begun)) == len(log.begun) == 6 + 3  # and of the next round's first turns, each once
    module.teardown("fit")


def test_the_next_round_is_read_ahead_unless_it_is_the_last(monkeypatch):
    log, module = Log(monkeypatch), make(Noisy(), num_workers=1)
    module.trainer = SimpleNamespace(strategy=fedavg(cohort_size=1), current_epoch=0, max_epochs=2)
    loader = module.train_dataloader().turns
    for round in range(2):
        module.trainer.current_epoch = round
        (turn,) = loader
        assert len(list(turn.batches(3))) == 3
    assert len(log.begun) == len(set(log.begun)) == 6
    module.teardown("fit")


def test_a_turn_that_breaks_off_leaves_nothing_behind():
    module = make(Noisy(), num_workers=1)
    first, second, _ = turns(module)
    batches = first.batches(5)
    next(batches)
    batches.close()
    expected = [str(batch) for batch in turns(make(Noisy()))[1].batches(2)]
    assert [str(batch) for batch in second.batches(2)] == expected
    module.teardown("fit")


def test_turns_of_no_iterations_and_idle_turns_give_nothing():
    module = make(Noisy())
    assert list(turns(module)[0].batches(0)) == []
    assert Turn.idle(module.examples, 0).is_idle


def test_turns_of_one_iteration_read_no_more_than_they_need(monkeypatch):
    log, module = Log(monkeypatch), make(Noisy(), num_workers=2)
    for turn in turns(module):
        assert isinstance(turn, LazyTurn)
        assert len(list(turn.batches(1))) == 1
    assert len(log.begun) == 3 + 3  # the next round's
    module.teardown("fit")


# ------------------------------------------------------------------ workers that fail


class Damaged(Noisy):
    def __getitem__(self, position):
        if position > 0:
            raise OSError(f"image {position} is damaged")
        return position


class Deadly(Noisy):
    def __getitem__(self, position):
        if position > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return position


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_data_set_raises_is_raised_with_the_item_and_the_client(num_workers):
    module = make(Damaged(), num_workers=num_workers)
    turn = turns(module, round=2)[0]
    with pytest.raises(OSError, match="damaged") as caught:
        list(turn.batches(2))
    position = int(str(caught.value).split()[1])
    assert caught.value.__notes__ == [
        f"item {position} of Damaged was being read",
        f"for client {turn.name!r} in round 2",
    ]
    module.teardown("fit")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_a_data_set_keeps_the_line_of_its_own_code(num_workers):
    module = make(Damaged(), num_workers=num_workers)
    with pytest.raises(OSError, match="damaged") as caught:
        list(turns(module)[0].batches(2))
    module.teardown("fit")
    told = from_own_code(caught.value)
    assert 'raise OSError(f"image {position} is damaged")' in told
    assert "of Damaged was being read\nfor client " in told


def test_a_worker_that_dies_is_told_of():
    module = make(Deadly(), num_workers=1)
    with pytest.raises(RuntimeError, match="num_workers"):
        list(turns(module)[0].batches(2))
    module.teardown("fit")
