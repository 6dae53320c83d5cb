"""Snapshots of Python state: what is found, what counts as changed, and that it is put back in place."""

import enum
import random
from collections import OrderedDict, deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedgen.federated.client_state import python_state
from fedgen.federated.client_state.python_state import MISSING, Attributes, PythonState


def state_of(holder, enter=lambda path, value: True, **options):
    return PythonState([Attributes("", holder, **options)], enter)


def changes_of(state):
    return {change.path: (change.before, change.after) for node in state.changed() for change in node.changes()}


class Slotted:
    __slots__ = ("count", "items")

    def __init__(self):
        self.count, self.items = 0, []


class Mode(enum.Enum):
    WARM = 1
    COLD = 2


CASES = {
    "number": (lambda: 3, lambda own: setattr(own, "x", 4), {"x": (3, 4)}),
    "text": (lambda: "a", lambda own: setattr(own, "x", "b"), {"x": ("a", "b")}),
    "member": (lambda: Mode.WARM, lambda own: setattr(own, "x", Mode.COLD), {"x": (Mode.WARM, Mode.COLD)}),
    "list": (lambda: [1], lambda own: own.x.append(2), {"x": ((1,), (1, 2))}),
    "element": (lambda: [1, 2], lambda own: own.x.__setitem__(1, 5), {"x.1": (2, 5)}),
    "deque": (lambda: deque([1, 2], maxlen=2), lambda own: own.x.append(3), {"x.0": (1, 2), "x.1": (2, 3)}),
    "dictionary": (lambda: {"a": 1}, lambda own: own.x.update(a=2, b=3), {"x.a": (1, 2), "x.b": (MISSING, 3)}),
    "removed": (lambda: {"a": 1, "b": 2}, lambda own: own.x.pop("a"), {"x.a": (1, MISSING)}),
    "ordered": (lambda: OrderedDict(a=1), lambda own: own.x.update(a=2), {"x.a": (1, 2)}),
    "set": (lambda: {1}, lambda own: own.x.add(2), {"x": ({1}, {1, 2})}),
    "bytes": (lambda: bytearray(b"a"), lambda own: own.x.extend(b"b"), {"x": (b"a", b"ab")}),
    "object": (lambda: SimpleNamespace(n=1), lambda own: setattr(own.x, "n", 2), {"x.n": (1, 2)}),
    "slots": (Slotted, lambda own: setattr(own.x, "count", 2), {"x.count": (0, 2)}),
    "in slots": (Slotted, lambda own: own.x.items.append(1), {"x.items": ((), (1,))}),
    "in a tuple": (lambda: (1, [2]), lambda own: own.x[1].append(3), {"x.1": ((2,), (2, 3))}),
    "nested": (lambda: [{"a": [1]}], lambda own: own.x[0]["a"].append(2), {"x.0.a": ((1,), (1, 2))}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_found_at_its_place_and_undone_there(name):
    make, change, expected = CASES[name]
    own, fresh = SimpleNamespace(x=make()), make()
    kept = own.x
    state = state_of(own)
    assert state.changed() == []
    change(own)
    assert changes_of(state) == expected
    state.restore()
    assert state.changed() == []
    assert own.x is kept  # the object that closures know
    if not isinstance(own.x, Slotted):
        assert own.x == fresh
    else:
        assert (own.x.count, own.x.items) == (0, [])


def test_what_is_replaced_by_its_equal_is_no_change_and_is_put_back():
    own = SimpleNamespace(x=[1, 2], n=1000)
    state, kept = state_of(own), own.x
    own.x, own.n = [1, 2], int("1000")
    assert changes_of(state) == {}
    state.restore()
    assert own.x is kept


def test_one_type_for_another_is_a_change():
    own = SimpleNamespace(x=1)
    state = state_of(own)
    own.x = 1.0
    assert changes_of(state) == {"x": (1, 1.0)}


def test_new_attributes_are_removed_and_deleted_ones_come_back():
    own = SimpleNamespace(x=1)
    state = state_of(own)
    del own.x
    own.y = 2
    assert changes_of(state) == {"x": (1, MISSING), "y": (MISSING, 2)}
    state.restore()
    assert vars(own) == {"x": 1}


def test_attributes_that_are_left_out_stay_as_they_are():
    own = SimpleNamespace(x=1, skipped=1, turn_a=1)
    state = state_of(own, without=frozenset({"skipped"}), beginnings=("turn",))
    own.skipped, own.turn_a, own.turn_b = 2, 2, 2
    assert state.changed() == []
    own.x = 2
    state.restore()
    assert vars(own) == {"x": 1, "skipped": 2, "turn_a": 2, "turn_b": 2}


def test_a_new_attribute_is_found_where_one_that_is_left_out_has_gone():
    """As many attributes as before, and not the same."""
    own = SimpleNamespace(x=1, skipped=1)
    state = state_of(own, without=frozenset({"skipped"}))
    del own.skipped
    own.new = 2
    assert changes_of(state) == {"new": (MISSING, 2)}
    state.restore()
    assert vars(own) == {"x": 1}


def test_tensors_are_compared_and_restored_in_place():
    own = SimpleNamespace(x=torch.tensor([1.0, float("nan")]), y=torch.zeros(2))
    state, pointer = state_of(own), own.x.data_ptr()
    own.y = own.y + 0  # another tensor of the same values
    assert changes_of(state) == {}
    own.x[0] = 5
    ((before, after),) = changes_of(state).values()
    assert (before[0].item(), after[0].item()) == (1, 5)
    state.restore()
    assert own.x[0].item() == 1
    assert own.x.isnan().tolist() == [False, True]
    assert own.x.data_ptr() == pointer


def test_a_tensor_that_was_given_another_shape_gets_its_own_back():
    own = SimpleNamespace(x=torch.arange(3.0))
    state, kept = state_of(own), own.x
    own.x.data = torch.zeros(5)
    state.restore()
    assert own.x is kept
    assert own.x.tolist() == [0, 1, 2]


def test_arrays_are_compared_and_restored_in_place():
    own = SimpleNamespace(x=np.array([1.0, np.nan]))
    state, kept = state_of(own), own.x
    assert state.changed() == []
    own.x[0] = 7
    assert list(changes_of(state)) == ["x"]
    state.restore()
    assert own.x is kept
    np.testing.assert_array_equal(own.x, [1.0, np.nan])


GENERATORS = {
    "torch": torch.Generator,
    "Python": random.Random,
    "PCG64": np.random.default_rng,
    "MT19937": lambda: np.random.Generator(np.random.MT19937()),
    "Philox": lambda: np.random.Generator(np.random.Philox()),
    "RandomState": np.random.RandomState,
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_random_generators_go_back_and_are_seeded_anew(make):
    def draw(generator):
        if isinstance(generator, torch.Generator):
            return torch.rand(1, generator=generator).item()
        return float(generator.random())

    own = SimpleNamespace(x=make())
    state = state_of(own)
    assert state.changed() == []
    first = draw(own.x)
    (node,) = state.changed()
    assert state.random == [node]
    state.restore()
    assert draw(own.x) == first
    node.seed(5)
    again = draw(own.x)
    node.seed(2**62)
    assert draw(own.x) != again
    node.seed(5)
    assert draw(own.x) == again


def test_one_object_in_two_places_is_one_node_and_circles_end():
    shared = [1]
    own = SimpleNamespace(a=shared, b=shared)
    own.c = {"self": own, "list": shared}
    state = state_of(own)
    shared.append(2)
    assert list(changes_of(state)) == ["a"]
    state.restore()
    assert own.a is own.b is own.c["list"]
    assert own.a == [1]


def test_an_own_optimizers_state_is_put_back():
    weight = torch.nn.Parameter(torch.ones(1))
    own = SimpleNamespace(optimizer=torch.optim.Adam([weight], lr=0.1))
    weight.grad = torch.ones(1)
    own.optimizer.step()
    state = state_of(own, enter=lambda path, value: value is not weight)
    own.optimizer.step()
    own.optimizer.param_groups[0]["lr"] = 0.5
    state.restore()
    assert own.optimizer.state[weight]["step"].item() == 1
    assert own.optimizer.param_groups[0]["lr"] == 0.1


def test_what_must_not_be_entered_is_not():
    own = SimpleNamespace(a=[1], b=[1])
    state = state_of(own, enter=lambda path, value: path != "a")
    own.a.append(2)
    own.b.append(2)
    assert list(changes_of(state)) == ["b"]


def test_functions_are_no_state_and_what_runs_is_named_as_opaque():
    own = SimpleNamespace(a=partial(print, 1), b=len, c=lambda: 1, d=int, e=iter([1]), f=(i for i in ()))
    own.g = [torch.nn.attention.SDPBackend.MATH]
    assert state_of(own).opaque == {"e": "builtins.list_iterator", "f": "builtins.generator"}


def test_data_of_a_great_many_objects_are_not_looked_through(monkeypatch):
    monkeypatch.setattr(python_state, "MOST_CONTAINERS", 10)
    own = SimpleNamespace(x=[[i] for i in range(100)])
    state = state_of(own)
    assert state.opaque == {"x": "more than 10 objects"}
    assert len(state.nodes) <= 11
