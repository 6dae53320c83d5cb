import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from fedgen.ranks import Ranks, agreed, alone, is_alone, share_out, spread, together

SIZES = (3, 11, 6, 20, 9)


def test_the_largest_clients_go_first_and_numbers_are_equal():
    # 20 | 11, then 9 to the second, 6 to the first of two equals, 3 to the second: 26 and 23 examples
    assert share_out(SIZES, 2) == [[2, 3], [0, 1, 4]]
    assert share_out(SIZES, 3) == [[3], [0, 1], [2, 4]]
    assert [len(share) for share in share_out([1] * 7, 3)] == [3, 2, 2]
    assert share_out([5], 2) == [[0], []]


def test_equal_clients_are_dealt_evenly():
    loads = [sum([4, 4, 4, 4][place] for place in share) for share in share_out([4, 4, 4, 4], 2)]
    assert loads == [8, 8]


def test_one_process_tells_itself():
    ranks = Ranks()
    assert (ranks.size, ranks.rank) == (1, 0)
    assert ranks.gather("word") == ["word"]
    tensors = [torch.ones(2), torch.zeros(3, dtype=torch.float64)]
    assert ranks.add(tensors, torch.device("cpu")) == tensors
    ranks.copy_first(tensors)


def test_one_process_does_all_the_work_as_it_is_asked_for():
    done = []
    with together():
        found = spread(lambda item: done.append(item) or item**2, range(4))
        assert next(found) == 0
        assert done == [0]
        assert list(found) == [1, 4, 9]
        assert agreed(True)
        assert not agreed(False)


def test_what_is_raised_is_raised():
    with together(), pytest.raises(ZeroDivisionError):
        list(spread(lambda item: 1 / item, [1, 0]))


@pytest.fixture
def second_of_three():
    """This process as one of several, whose others nobody sees: collectives of all of them change nothing."""
    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    yield
    dist.destroy_process_group()


def asked():
    return is_alone(), dist.is_initialized(), Ranks().size, Ranks().rank, dist.get_world_size(), dist.get_rank()


def test_a_process_of_several_is_alone_within_a_block_also_when_it_raises(second_of_three):
    world = dist.group.WORLD
    assert asked() == (False, True, 3, 1, 3, 1)
    for _ in range(2):
        with alone():
            assert asked() == (True, False, 1, 0, 1, 0)
            with alone():
                assert asked() == (True, False, 1, 0, 1, 0)
            assert is_alone()
        assert asked() == (False, True, 3, 1, 3, 1)
    with pytest.raises(ZeroDivisionError), alone():
        raise ZeroDivisionError
    assert dist.group.WORLD is world
    assert asked() == (False, True, 3, 1, 3, 1)


def test_one_process_within_a_block_is_what_it_was():
    with alone():
        assert not dist.is_initialized()
        assert not is_alone()
