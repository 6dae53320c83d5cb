"""State outside `state_dict` between processes, and in checkpoints."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedgen.federated.state_values import is_plain
from tests.federated.test_outside_state import Holding, ImagePool, Queue, outside_of, play


def test_ranks_tell_each_other_sums_and_largest_values():
    """The mean of 2 (weight 1), 4 (weight 3) and an unchanged 0.5 (weight 4); the largest of 5 and 7."""
    modules = [Holding(), Holding()]
    parts = [outside_of(module, {"number": "mean"}) for module in modules]
    rounds = ([(0, 1.0, 2.0, 5), (1, 4.0, 0.5, 0)], [(2, 3.0, 4.0, 7)])
    for outside, module, turns in zip(parts, modules, rounds):
        outside.start_round()
        for client, weight, number, steps in turns:
            outside.start_turn(0, client)
            module.number, module.steps = number, steps
            outside.end_turn(client, weight, True)
    told = copy.deepcopy([outside.news() for outside in parts])
    for outside, module in zip(parts, modules):
        outside.hear(told)
        outside.end_round()
        assert module.number == pytest.approx((1 * 2 + 3 * 4 + 4 * 0.5) / 8)
        assert module.steps == 7
        assert outside.found == {"number": "mean", "steps": "max"}


def test_a_checkpoint_holds_exchanged_values_and_what_clients_keep_without_pickled_objects(tmp_path):
    def make():
        module = Holding()
        module.queue = Queue()
        return module, outside_of(module, {"number": "mean"})

    def turn(module):
        module.steps, module.number = module.steps + 4, module.number + 1
        module.queue.put(8)

    _, outside = make()
    play(outside, turn)
    torch.save(outside.state_dict(), tmp_path / "a.pt")
    module, again = make()
    again.load_state_dict(torch.load(tmp_path / "a.pt", weights_only=True))
    play(again, turn, round=1)
    assert (module.steps, module.number) == (8, 2.5)
    assert again.personal[0]["queue.keys"].tolist() == [8, 8, 0]
    assert again.not_in_checkpoints == []


def test_what_cannot_be_saved_is_named():
    module = Holding()
    module.pool = ImagePool()
    outside = outside_of(module, {"pool": "personal"})
    play(outside, lambda m: m.pool.add(1))
    assert outside.not_in_checkpoints == ["pool"]
    assert outside.state_dict()["personal"] == {0: {}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, "a", None, (2.5, torch.ones(1))], True),
        ({"a": {1: b"x"}}, True),
        ([object()], False),
        ({(1, 2): 3}, False),
        (nn.Parameter(torch.ones(1)), False),
        (np.ones(1), False),
    ],
)
def test_plain_values_are_those_that_load_without_unpickling_objects(value, expected):
    assert is_plain(value) == expected
