"""Items read into batches, here or by workers."""

import copy
import multiprocessing
import os
import pickle
import signal
import time

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fedgen.data.items import Items, Part, ReadTask, Stream
from tests.launched import said_in_fork


class Squares(Dataset):
    def __init__(self, count, factor=1):
        self.count, self.factor = count, factor

    def __len__(self):
        return self.count

    def __getitem__(self, position):
        return self.factor * position**2, torch.rand(())


def task(*positions):
    return ReadTask(list(positions), [100 + position for position in positions])


def test_parts_stand_one_after_the_other():
    items = Items([Part(Squares(3)), Part(Squares(4, 10))])
    assert len(items) == 7
    assert items.read(task(2, 3, 6))[0].tolist() == [4, 0, 90]
    assert items.part_of(2).dataset.factor == 1
    assert items.part_of(3).dataset.factor == 10
    assert [(part.dataset.factor, own) for part, own in items.grouped([1, 2, 5, 0])] == [
        (1, [1, 2]),
        (10, [2]),
        (1, [0]),
    ]


def test_a_batch_of_two_ways_to_collate_is_refused_and_can_be_cut_into_runs():
    items = Items([Part(Squares(3), len), Part(Squares(4))])
    with pytest.raises(ValueError, match="collate_fn"):
        items.read(task(2, 3))
    assert items.runs([0, 2, 3, 4, 1]) == [[0, 2], [3, 4], [1]]
    assert items.read(task(1, 2)) == 2


class Torn(Squares):
    """Whose item 5 cannot be read, and whose item 3 is of another size."""

    def __getitem__(self, position):
        if position == 5:
            raise OSError("torn")
        return torch.zeros(1, 2, 4 if position == 3 else 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_name_the_item_by_its_place_in_the_data_set_itself(workers):
    items = Items([Part(Squares(3)), Part(Subset(Subset(Torn(9), range(2, 9)), [0, 1, 3, 4]))], workers)
    with pytest.raises(ValueError, match="shapes"):
        next(items.stream([task(3, 4)]))
    with pytest.raises(OSError, match="torn") as caught:
        next(items.stream([task(3, 5)]))
    assert caught.value.__notes__ == ["item 5 of Torn was being read"]
    items.close()


def test_an_items_draws_follow_from_its_seed_alone():
    items = Items([Part(Squares(9))])
    _, draws = items.read(task(4, 7))
    assert items.read(task(7, 1, 4))[1][[2, 0]].tolist() == draws.tolist()


def test_rows_of_tensors_are_cut_together():
    calls = []

    class Counted(TensorDataset):
        def __getitem__(self, position):
            calls.append(position)
            return super().__getitem__(position)

    (found,) = Items([Part(Counted(torch.arange(6) * 2))]).read(task(5, 1))
    assert found.tolist() == [10, 2]
    assert calls == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_keeps_the_order_of_its_tasks(workers):
    items = Items([Part(Squares(20))], workers)
    found = [batch[0].tolist() for batch in items.stream(task(at, at + 1) for at in range(12))]
    items.close()
    assert found == [[at**2, (at + 1) ** 2] for at in range(12)]


def test_a_stream_begins_no_more_than_it_is_told():
    drawn = []

    def tasks():
        for at in range(9):
            drawn.append(at)
            yield task(at)

    stream = Stream(Items([Part(Squares(20))]), tasks())
    assert stream.fill(2) == 2
    assert drawn == [0, 1]
    stream.take()
    assert stream.fill(3) == 3
    assert drawn == [0, 1, 2, 3]


def test_workers_are_nobody_elses_and_start_again():
    items = Items([Part(Squares(5))], 1)
    first = [batch[0].tolist() for batch in items.stream([task(1)])]
    for other in (copy.deepcopy(items), pickle.loads(pickle.dumps(items))):
        assert other._pool is None
    items.close()
    assert [batch[0].tolist() for batch in items.stream([task(1)])] == first == [[1]]
    items.close()


@pytest.mark.slow
def test_workers_end_with_the_process_that_trains():
    """However it ends: nobody is told that a process was killed."""

    def read_and_die():
        before, items = multiprocessing.active_children(), Items([Part(torch.arange(8))], 2)
        list(items.stream([task(0), task(1)]))
        print(*[child.pid for child in multiprocessing.active_children() if child not in before], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    status, said = said_in_fork(read_and_die)
    assert status == -signal.SIGKILL
    started = [int(number) for number in said.split()]
    assert len(started) == 2
    for _ in range(100):
        if not any(map(is_running, started)):
            return
        time.sleep(0.1)
    pytest.fail("workers outlive the process that they read for")


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
