"""State outside `state_dict` between processes, and in checkpoints."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedgen.federated.client_state.outside_messages import OutsideMessages, ReceivedStateError
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
    told = copy.deepcopy([outside.local_summary() for outside in parts])
    for outside, module in zip(parts, modules):
        outside.merge_summaries(told)
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
        ({"number": [1.0, 2.0]}, r"'number' was sent, and the server's module has no such .* of shape \[2\]"),
        ({"tensor": [1.0]}, r"'tensor' was sent, and the server's module has no such .* of shape \[1\]"),
        ({"absent": 1.0}, "'absent' was sent, and the server's module has no such"),
        ({"flag": 1.0}, "'flag' was sent, and the server's module has no such"),
        ({"steps": 1.0}, "'steps' has no rule 'mean' and is not a Python float"),
    ],
)
def test_means_that_a_turn_elsewhere_cannot_have_are_refused(told, named):
    module = Holding()
    outside = outside_of(module, dict.fromkeys(("number", "tensor", "absent", "flag"), "mean"))
    outside.start_round()
    sent = {path: torch.tensor(value, dtype=torch.float64) for path, value in told.items()}
    with pytest.raises(ValueError, match=named):
        OutsideMessages(outside).received_means(sent)


@pytest.mark.parametrize("declared", [{"number": "mean"}, {}])
def test_means_of_turns_elsewhere_are_those_of_turns_here(declared):
    """Weights 1, 3 and 4; the last client leaves 0.5 alone. A Python float is averaged though nobody declared it."""
    here, there = Holding(), Holding()
    rules = {"tensor": "mean", "array": "mean", **declared}
    near, far = outside_of(here, rules), outside_of(there, rules)
    near.start_round()
    far.start_round()
    for client, (weight, value) in enumerate([(1.0, 2.0), (3.0, 4.0), (4.0, None)]):
        near.start_turn(0, client)
        if value is not None:
            here.number, here.tensor[0], here.array[1] = value, value, value
        near.end_turn(client, weight, True)
        means = {} if value is None else OutsideMessages(near).means
        OutsideMessages(far).take_means(OutsideMessages(far).received_means(means), weight)
    near.end_round()
    far.end_round()
    assert here.number == there.number == (1 * 2 + 3 * 4 + 4 * 0.5) / 8
    assert torch.equal(here.tensor, there.tensor)
    assert here.array.tolist() == there.array.tolist() == [0, (1 * 2 + 3 * 4) / 8]
    assert set(OutsideMessages(far).server_means) == {"number", "tensor", "array"}


RULES = {"number": "mean", "tensor": "mean", "array": "mean", "cache": "mean", "level": "server", "items*": "max"}


class Told(Holding):
    """With a setting, truth values, and what nobody counts by."""

    def __init__(self):
        super().__init__()
        self.level, self.dump_patches = 1, False
        self.convolution = nn.Conv2d(1, 1, 3)


def told_state(counts=(), means=(), known=(), rules=RULES):
    """A client's state that begins a round as the server tells it, after it was told the known counters."""
    outside = outside_of(Told(), rules)
    outside.load_state_dict({"values": dict(known), "personal": {}})
    numbers = {path: torch.as_tensor(value, dtype=torch.float64) for path, value in dict(means).items()}
    OutsideMessages(outside).begin_with(dict(counts), numbers)
    outside.start_round()
    return outside


def test_a_client_begins_with_the_counters_and_means_that_turns_elsewhere_have_made():
    told = told_state(
        {"steps": 40, "flag": 1, "items.0": 7},
        {"number": 2.5, "tensor": [1.0, 2.0], "array": [3.0, 4.0], "cache": 1.5},
        {"steps": 40},
    )
    module = told._module
    assert (module.steps, module.flag, module.items) == (40, True, [7, 2])
    assert (module.number, module.tensor.tolist(), module.array.tolist()) == (2.5, [1.0, 2.0], [3.0, 4.0])
    assert float(module.cache) == 1.5
    assert told.state_dict()["values"] == {"steps": 40, "flag": 1, "items.0": 7}


COUNTERS = {
    "convolution.groups": "the module has no counter 'convolution.groups'",
    "convolution.training": "no counter 'convolution.training'",
    "layer.in_features": "no counter 'layer.in_features'",
    "dump_patches": "no counter 'dump_patches'",
    "automatic_optimization": "no counter 'automatic_optimization'",
    "on_train_epoch_end": "no counter 'on_train_epoch_end'",
    "layer": "no counter 'layer'",
    "text": "no counter 'text'",
    "absent": "no counter 'absent'",
    "layer.weight": "no counter 'layer.weight'",
    "tensor": "has the rule 'mean' and is not a counter",
    "level": "has the rule 'server' and is not a counter",
    "items": "no counter 'items'",
    "__class__": "no counter '__class__'",
    "": "no counter ''",
}


@pytest.mark.parametrize("path", COUNTERS)
def test_no_side_sets_by_a_count_what_is_no_counter(path):
    with pytest.raises(ReceivedStateError, match=COUNTERS[path]):
        told_state({path: 5})
    outside = told_state()
    with pytest.raises(ReceivedStateError, match=COUNTERS[path]):
        OutsideMessages(outside).take_counts({"steps": 1, path: 5})
    assert OutsideMessages(outside).counts == {}  # nothing of a client that is left out


@pytest.mark.parametrize(
    ("count", "known", "named"),
    [
        ({"steps": 2}, {"steps": 3}, "'steps' is 2, not from 3 to 9223372036854775807"),
        ({}, {"steps": 3}, "'steps', which was 3, is missing"),
        ({"steps": -1}, {}, "'steps' is -1, not from 0 to"),
        ({"steps": 2**63}, {}, "'steps' is 9223372036854775808, not"),
        ({"steps": True}, {}, "'steps' is True, not"),
        ({"steps": 2.0}, {}, r"'steps' is 2\.0, not"),
        ({"flag": 2}, {}, "'flag' is 2, not from 0 to 1"),
    ],
)
def test_a_server_tells_whole_counters_that_do_not_fall(count, known, named):
    with pytest.raises(ReceivedStateError, match=named):
        told_state(count, (), known)


@pytest.mark.parametrize(
    ("mean", "named"),
    [
        ({"steps": 1.0}, "'steps' has the rule None and is not a mean"),
        ({"level": 1.0}, "'level' has the rule 'server' and is not a mean"),
        ({"on_train_epoch_end": 1.0}, "has the rule None and is not a mean"),
        ({"number": [1.0]}, r"'number' has the shape \[1\]"),
        ({"tensor": [1.0]}, r"'tensor' has the shape \[1\]"),
        ({"items": 1.0}, r"'items' has the shape \[\]"),
        ({"number": float("nan")}, "'number' is not finite"),
        ({"tensor": [1.0, float("inf")]}, "'tensor' is not finite"),
    ],
)
def test_a_server_tells_means_that_are_declared_and_finite(mean, named):
    with pytest.raises(ReceivedStateError, match=named):
        told_state((), mean)
