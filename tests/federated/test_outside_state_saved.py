"""State outside `state_dict` between processes, and in checkpoints."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedgen.federated.client_state.state_values import is_plain
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


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"number": float("nan")}, "'number' is not finite"),
        ({"number": [1.0, 2.0]}, r"'number', and the server's module has no such .* of shape \[2\]"),
        ({"tensor": [1.0]}, r"'tensor', and the server's module has no such .* of shape \[1\]"),
        ({"absent": 1.0}, "'absent', and the server's module has no such"),
        ({"flag": 1.0}, "'flag', and the server's module has no such"),
        ({"steps": 1.0}, "'steps', which has no rule 'mean'"),
    ],
)
def test_means_that_a_turn_elsewhere_cannot_have_are_refused(told, named):
    module = Holding()
    outside = outside_of(module, dict.fromkeys(("number", "tensor", "absent", "flag"), "mean"))
    outside.start_round()
    with pytest.raises(ValueError, match=named):
        outside.messages.heard_means({path: torch.tensor(value, dtype=torch.float64) for path, value in told.items()})


def test_means_of_turns_elsewhere_are_those_of_turns_here():
    """Weights 1, 3 and 4; the last client leaves 0.5 alone."""
    here, there = Holding(), Holding()
    rules = {"number": "mean", "tensor": "mean", "array": "mean"}
    near, far = outside_of(here, rules), outside_of(there, rules)
    near.start_round()
    far.start_round()
    for client, (weight, value) in enumerate([(1.0, 2.0), (3.0, 4.0), (4.0, None)]):
        near.start_turn(0, client)
        if value is not None:
            here.number, here.tensor[0], here.array[1] = value, value, value
        near.end_turn(client, weight, True)
        means = {} if value is None else near.messages.means
        far.messages.take_means(far.messages.heard_means(means), weight)
    near.end_round()
    far.end_round()
    assert here.number == there.number == (1 * 2 + 3 * 4 + 4 * 0.5) / 8
    assert torch.equal(here.tensor, there.tensor)
    assert here.array.tolist() == there.array.tolist() == [0, (1 * 2 + 3 * 4) / 8]
    assert set(far.messages.server_means) == set(rules)
