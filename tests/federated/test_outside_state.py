"""What a module holds beside its saved tensors: isolated in turns, reset, counted, gathered or kept by clients."""

import random
from typing import ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryPrecision, BinaryRecall

from fedgen.federated.client_state.exchange import Rules
from fedgen.federated.client_state.outside_state import OutsideState


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("level",)

    def __init__(self):
        self.level = 1.0


class Holding(L.LightningModule):
    """A layer, and what users hang in their modules."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.number, self.steps, self.flag, self.text, self.cache = 0.5, 0, False, "warm", None
        self.items, self.table, self.slots = [1, 2], {"a": 1.5}, Slotted()
        self.tensor, self.array = torch.zeros(2), np.zeros(2)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.outputs = []
        self.pool = []

    def on_train_epoch_end(self):
        self.outputs.clear()


def outside_of(module, rules=None, **options):
    return OutsideState(module, Rules(rules or {}, module), **options)


def play(outside, *turns, round=0, weights=None, failing=()):
    """One round of turns, each a function; gives back what each saw when it began."""
    outside.start_round()
    for client, turn in enumerate(turns):
        outside.start_turn(round, client)
        turn(outside._module)
        outside.end_turn(client, 1.0 if weights is None else weights[client], client not in failing)
    outside.end_round()


def nothing(module):
    """A turn that changes nothing."""


def assigning(**values):
    def turn(module):
        for name, value in values.items():
            setattr(module, name, value)

    return turn


CHANGES = {
    "text": (lambda m: setattr(m, "text", "cold"), lambda m: m.text == "warm", "text"),
    "list": (lambda m: m.items.append(3), lambda m: m.items == [1, 2], "items"),
    "new list": (lambda m: setattr(m, "items", [*m.items, 3]), lambda m: m.items == [1, 2], "items"),
    "dictionary": (lambda m: m.table.update(a="2.5"), lambda m: m.table == {"a": 1.5}, "table.a"),
    "slots": (lambda m: setattr(m.slots, "level", "2"), lambda m: m.slots.level == 1, "slots.level"),
    "tensor": (lambda m: m.tensor.add_(1), lambda m: m.tensor.tolist() == [0, 0], "tensor"),
    "new tensor": (lambda m: setattr(m, "tensor", torch.ones(3)), lambda m: m.tensor.tolist() == [0, 0], "tensor"),
    "array": (lambda m: m.array.fill(1), lambda m: m.array.tolist() == [0, 0], "array"),
    "buffer": (lambda m: m.scratch.add_(1), lambda m: m.scratch.tolist() == [0, 0], "scratch"),
    "new buffer": (lambda m: setattr(m, "scratch", torch.ones(2)), lambda m: m.scratch.tolist() == [0, 0], "scratch"),
    "pool": (lambda m: m.pool.append(torch.ones(2)), lambda m: m.pool == [], "pool"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_turn_starts_from_the_servers_state_and_so_does_the_next_round(name):
    change, is_servers, path = CHANGES[name]
    module, seen = Holding(), []

    def turn(module):
        seen.append(is_servers(module))
        change(module)
        assert not is_servers(module)

    outside = outside_of(module)
    for _ in range(2):
        play(outside, turn, turn)
    assert seen == [True] * 4
    assert is_servers(module)
    assert outside.found == {path: "reset"}


FLOATS = {
    "attribute": (lambda m: m.number, lambda m, v: setattr(m, "number", v), "number"),
    "dictionary": (lambda m: m.table["a"], lambda m, v: m.table.update(a=v), "table.a"),
    "slots": (lambda m: m.slots.level, lambda m, v: setattr(m.slots, "level", v), "slots.level"),
    "a whole number that becomes none": (lambda m: m.steps, lambda m, v: setattr(m, "steps", v), "steps"),
    "NumPy's": (lambda m: m.number, lambda m, v: setattr(m, "number", np.float64(v)), "number"),
}


@pytest.mark.parametrize("name", FLOATS)
def test_python_floats_are_averaged_as_floating_buffers_are(name):
    """(1 * 2.5 + 3 * 4.5) / 4 = 4; the client that failed has no part."""
    read, write, path = FLOATS[name]
    module, seen = Holding(), []

    def turn(value):
        return lambda m: (seen.append(read(m)), write(m, value))

    outside = outside_of(module)
    before = read(module)
    play(outside, turn(2.5), turn(4.5), turn(9.5), weights=[1.0, 3.0, 5.0], failing=[2])
    assert (read(module), seen) == (4.0, [before] * 3)
    play(outside, turn(5.0), turn(5.0))
    assert (read(module), seen[3:]) == (5.0, [4.0] * 2)
    assert outside.found == {path: "averaged"}


def test_under_noise_and_masks_python_floats_are_reset_and_the_remedy_is_to_say_so():
    module = Holding()
    outside = outside_of(module)
    outside.exchanges = False
    play(outside, assigning(number=2.0), assigning(number=4.0))
    assert module.number == 0.5
    assert (outside.found, outside.remedies) == ({"number": "reset"}, {"number": "server"})


def test_what_is_reset_has_the_rule_that_fits():
    """A mean for tensors and arrays, each client's own for lists and for numbers that fell."""
    module = Holding()
    outside = outside_of(module)
    module.steps = 5
    play(outside, lambda m: (m.tensor.add_(1), m.array.fill(1), m.items.append(3), setattr(m, "steps", 3)))
    assert outside.found == {"tensor": "reset", "array": "reset", "items": "reset", "steps": "reset"}
    assert outside.remedies == {"tensor": "mean", "array": "mean"}  # "personal" where none is named


def test_the_objects_themselves_stay():
    """Closures and callbacks know them."""
    module = Holding()
    kept = module.items, module.table, module.tensor, module.array, module.scratch
    play(outside_of(module), assigning(items=[], table={}, tensor=torch.ones(1), array=np.ones(1)))
    assert all(a is b for a, b in zip(kept, (module.items, module.table, module.tensor, module.array, module.scratch)))


def test_what_had_no_value_before_is_made_anew_in_every_turn():
    module = Holding()
    outside = outside_of(module)
    play(outside, assigning(cache=torch.ones(2), fresh=3))
    assert module.cache is None
    assert not hasattr(module, "fresh")
    assert outside.found == {"cache": "rebuilt", "fresh": "rebuilt"}


def test_counters_and_flags_take_the_largest_over_completed_turns():
    module = Holding()
    outside, seen = outside_of(module), []

    def steps(count, flag=False):
        def turn(module):
            seen.append(module.steps)
            module.steps += count
            module.flag = flag

        return turn

    play(outside, steps(3), steps(5, True), steps(9), failing=[2])
    assert (module.steps, module.flag) == (5, True)
    play(outside, steps(2, True), steps(1, True))
    assert module.steps == 7
    assert seen == [0, 0, 0, 5, 5]
    assert outside.found == {"steps": "max", "flag": "max"}


def test_a_number_that_some_turn_makes_smaller_is_no_counter():
    module = Holding()
    module.steps = 4
    outside = outside_of(module)
    play(outside, assigning(steps=9), assigning(steps=1))
    assert module.steps == 4
    assert outside.found == {"steps": "reset"}


def test_a_counter_may_have_its_first_value_from_its_class():
    class Counting(Holding):
        count = 0

    module = Counting()
    outside = outside_of(module)
    for round in range(2):
        play(
            outside, lambda m: setattr(m, "count", m.count + 2), lambda m: setattr(m, "count", m.count + 3), round=round
        )
    assert module.count == 2 * 3
    assert outside.found == {"count": "max"}


def test_the_length_of_a_pool_that_is_emptied_is_no_count():
    module = Holding()
    module.pool = ImagePool()
    module.pool.size = 0

    def turn(module):
        module.pool.add(1)
        module.pool.size += 1

    outside = outside_of(module)
    play(outside, turn, turn)
    assert (module.pool.images, module.pool.size) == ([], 0)
    assert outside.found == {"pool.images": "reset", "pool.size": "reset"}


def test_under_differential_privacy_nothing_is_told_over_clients():
    module = Holding()
    outside = outside_of(module, {"number": "mean"})
    outside.exchanges = False
    play(outside, assigning(steps=9, number=3.0))
    assert (module.steps, module.number) == (0, 0.5)
    assert outside.found == {"steps": "reset", "number": "reset"}


# ---- declared rules ----


def test_means_are_weighted_and_clients_that_left_a_value_alone_have_the_servers():
    """Numbers (1 * 1 + 3 * 2 + 4 * 0.5) / 8 and tensors (1 * 8 + 7 * 0) / 8."""
    module = Holding()
    outside = outside_of(module, {"number": "mean", "tensor": "mean"})
    tensor = module.tensor
    changing = (assigning(number=1.0, tensor=torch.tensor([8.0, 0.0])), assigning(number=2.0), nothing)
    play(outside, *changing, weights=(1.0, 3.0, 4.0))
    assert module.number == pytest.approx(9 / 8)
    assert module.tensor.tolist() == [1, 0]
    assert module.tensor.dtype == tensor.dtype
    assert outside.found == {"number": "mean", "tensor": "mean"}


def test_a_declared_maximum_may_fall_and_a_declared_reset_counts_nothing():
    module = Holding()
    module.steps, module.other = 4, 4
    outside = outside_of(module, {"steps": "server", "other": "max"})
    play(outside, assigning(steps=9, other=2), assigning(other=6))
    assert (module.steps, module.other) == (4, 6)
    assert outside.found == {"steps": "server", "other": "max"}


def test_the_largest_of_tensors_is_taken_number_by_number():
    module = Holding()
    outside = outside_of(module, {"tensor": "max"})
    play(outside, assigning(tensor=torch.tensor([1.0, 0.0])), lambda m: m.tensor.copy_(torch.tensor([-1.0, 2.0])))
    assert module.tensor.tolist() == [1, 2]
    assert outside.found == {"tensor": "max"}


class Queue(nn.Module):
    """Keys of past batches, as contrastive learning has them, with a pointer to the oldest."""

    federated_rules: ClassVar[dict] = {"keys": "personal", "pointer": "personal"}

    def __init__(self):
        super().__init__()
        self.keys, self.pointer = torch.zeros(3), 0

    def put(self, value):
        self.keys[self.pointer] = value
        self.pointer = (self.pointer + 1) % 3


def test_a_queue_and_its_pointer_stay_with_their_client():
    module = nn.Module()
    module.queue = Queue()
    outside = outside_of(module)
    for round in range(4):
        play(outside, lambda m, r=round: m.queue.put(1 + r), lambda m, r=round: m.queue.put(10 + r), round=round)
        assert (module.queue.keys.tolist(), module.queue.pointer) == ([0, 0, 0], 0)  # the server's
    assert [outside.personal[client]["queue.keys"].tolist() for client in (0, 1)] == [[4, 2, 3], [13, 11, 12]]
    assert [outside.personal[client]["queue.pointer"] for client in (0, 1)] == [1, 1]
    assert outside.found == {"queue.keys": "personal", "queue.pointer": "personal"}


def test_a_turn_left_out_changes_nothing_that_its_client_keeps():
    module = nn.Module()
    module.queue = Queue()
    outside = outside_of(module)
    play(outside, lambda m: m.queue.put(1))
    play(outside, lambda m: m.queue.put(2), round=1, failing=[0])
    assert outside.personal[0]["queue.keys"].tolist() == [1, 0, 0]
    assert outside.personal[0]["queue.pointer"] == 1


class ImagePool:
    """Images of past iterations, as CycleGAN's discriminators have them."""

    def __init__(self):
        self.images = []

    def add(self, *images):
        self.images.extend(torch.tensor([float(image)]) for image in images)


@pytest.mark.parametrize("rule", [None, "personal"])
def test_a_pool_of_images_is_reset_or_a_clients_own(rule):
    module, seen = Holding(), []
    module.pool = ImagePool()
    outside = outside_of(module, {"pool": rule} if rule else {})

    def turn(image):
        def add(module):
            seen.append([float(one) for one in module.pool.images])
            module.pool.add(image)

        return add

    for round in range(2):
        play(outside, turn(10 + round), turn(20 + round), round=round)
    assert seen == ([[], [], [10], [20]] if rule else [[], [], [], []])
    assert module.pool.images == []


# ---- lists of an epoch ----


def test_lists_that_epoch_hooks_read_gather_what_completed_turns_add():
    module = Holding()
    outside, own = outside_of(module), module.outputs
    turns = [lambda m, client=client: m.outputs.extend([(client, 0), (client, 1)]) for client in range(3)]
    play(outside, *turns, failing=[1])
    assert module.outputs == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert module.outputs is own
    assert outside.found == {"outputs": "gathered"}
    module.on_train_epoch_end()
    play(outside, turns[1])
    assert module.outputs == [(1, 0), (1, 1)]


def test_a_gathered_list_that_a_turn_empties_is_reset():
    module = Holding()
    module.outputs.append("before")
    outside = outside_of(module)
    play(outside, lambda m: m.outputs.clear())
    assert module.outputs == ["before"]
    assert outside.found == {"outputs": "reset"}


# ---- what looks after itself ----


def test_metrics_accumulate_over_completed_turns_alone():
    module = Holding()
    module.mean, module.sum = MeanMetric(), SumMetric()

    def turn(value):
        def update(module):
            module.mean.update(value)
            module.sum.update(value)

        return update

    play(outside_of(module), turn(1.0), turn(100.0), turn(4.0), failing=[1])
    assert module.mean.compute().item() == 2.5
    assert module.sum.compute().item() == 5
    assert module.sum.update_count == 2


@pytest.mark.parametrize("groups", [True, False])
def test_a_collection_of_metrics_with_shared_states_counts_each_example_once(groups):
    """Three turns of four examples in each of two rounds; the second turn fails and leaves nothing behind."""
    module = Holding()
    made = {"precision": BinaryPrecision(), "recall": BinaryRecall()}
    module.metrics = MetricCollection(made, compute_groups=groups)
    outside = outside_of(module)
    said, true = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])

    def turn(said, times=1):
        return lambda m: [m.metrics.update(said, true) for _ in range(times)]

    for _ in range(2):
        play(outside, turn(said), turn(1 - said, 7), turn(true, 2), failing=[1])
    counted = module.metrics["precision"], module.metrics["recall"]
    assert [int(m.tp + m.fp + m.tn + m.fn) for m in counted] == [2 * 3 * 4] * 2
    # of 12 examples a round, 5 are found of the 6 positive ones, and 1 is not one
    assert {name: float(value) for name, value in module.metrics.compute().items()} == pytest.approx(
        {"precision": 5 / 6, "recall": 5 / 6}
    )
    assert outside.found == {}


def test_parts_that_say_so_and_attributes_of_own_turns_are_left_alone():
    class Own(Holding):
        own_turn_state = ("turn", "items")

    module = Own()
    module.apart, module.private = nn.Linear(1, 1), nn.Linear(1, 1)
    module.apart.exchanged, module.private.exchanged = False, "personal"
    module.apart.count = module.private.count = 0

    def turn(module):
        module.turn_number, module.items = 7, [9]
        module.apart.count = module.private.count = 1

    outside = outside_of(module)
    play(outside, turn)
    assert (module.turn_number, module.items) == (7, [9])
    assert (module.apart.count, module.private.count) == (1, 1)
    assert outside.found == {}


def test_saved_tensors_and_views_of_them_are_left_to_the_exchange():
    module = Holding()
    module.view, module.parts = module.layer.weight.data[0], [module.layer.weight, module.layer]
    outside = outside_of(module)
    play(outside, lambda m: m.layer.weight.data.add_(1))
    assert outside.found == {}
    assert module.view.tolist() == module.layer.weight[0].tolist()


def test_foreign_objects_are_not_looked_into():
    module = Holding()
    module.foreign = ImagePool()
    play(outside_of(module, foreign=[module.foreign]), lambda m: m.foreign.add(1))
    assert len(module.foreign.images) == 1


def test_an_optimizer_of_the_modules_own_starts_every_turn_as_the_servers():
    module, seen = Holding(), []
    module.inner = nn.Parameter(torch.ones(1))
    module.own = torch.optim.SGD([module.inner], lr=0.1, momentum=0.5)

    def turn(module):
        seen.append((len(module.own.state), module.own.param_groups[0]["lr"]))
        module.inner.grad = torch.ones(1)
        module.own.step()
        module.own.param_groups[0]["lr"] = 0.9

    play(outside_of(module), turn, turn)
    assert seen == [(0, 0.1)] * 2
    assert module.own.param_groups[0]["params"][0] is module.inner


@pytest.mark.parametrize("make", [torch.Generator, random.Random, np.random.default_rng])
def test_random_generators_are_seeded_by_round_and_client(make):
    def draws(module, seed, *clients, round=0):
        module.own = make()
        found = []

        def turn(module):
            own = module.own
            found.append(torch.rand(1, generator=own).item() if make is torch.Generator else own.random())

        outside = outside_of(module, seed=seed)
        outside.start_round()
        for client in clients:
            outside.start_turn(round, client)
            turn(module)
            outside.end_turn(client, 1.0, True)
        assert outside.found == {"own": "seeded"}
        return found

    module = Holding()
    first = draws(module, 1, 0, 1, 2)
    assert len(set(first)) == 3
    assert draws(module, 1, 2, 1, 0) == first[::-1]  # whoever trained before
    assert draws(module, 2, 0)[0] != first[0]
    assert draws(module, 1, 0, round=1)[0] != first[0]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_are_state_like_others():
    module = Holding()
    module.graph = torch.eye(2).to_sparse()
    module.rows = torch.eye(2).to_sparse_csr()
    outside = outside_of(module)

    def turn(module):
        module.graph._values().mul_(3)

    play(outside, turn, nothing)
    assert torch.equal(module.graph.to_dense(), torch.eye(2))
    assert outside.found == {"graph": "reset"}


@pytest.mark.parametrize(("rule", "expected"), [("max", 5), ("mean", 3.5)])
def test_a_value_that_was_none_takes_that_of_the_clients_that_set_it(rule, expected):
    module = Holding()
    play(outside_of(module, {"cache": rule}), assigning(cache=2), assigning(cache=5), nothing)
    assert module.cache == expected


def test_the_mean_of_whole_numbers_is_not_rounded():
    module = Holding()
    play(outside_of(module, {"steps": "mean"}), assigning(steps=2), assigning(steps=5))
    assert module.steps == 3.5


def test_numpy_numbers_count_and_arrays_have_means():
    module = Holding()
    module.steps = np.int64(1)
    outside = outside_of(module, {"array": "mean"})
    play(outside, assigning(steps=np.int64(4), array=np.ones(2)), assigning(steps=np.int64(2)))
    assert module.steps == 4
    assert type(module.steps) is np.int64
    assert module.array.tolist() == [0.5, 0.5]


def test_what_a_client_keeps_may_be_made_or_taken_away_by_its_turn():
    seen = []
    module = Holding()
    outside = outside_of(module, {"fresh": "personal", "number": "personal"})

    def first(module):
        module.fresh = torch.ones(1)
        del module.number

    play(outside, first, nothing)
    assert not hasattr(module, "fresh")
    assert module.number == 0.5
    play(outside, *[lambda m: seen.append((getattr(m, "fresh", None), m.number))] * 2, round=1)
    assert seen == [(torch.ones(1), 0.5), (None, 0.5)]


def test_an_array_that_a_turn_resized_is_put_back():
    module = Holding()
    before = module.array
    play(outside_of(module), lambda m: m.array.resize(5, refcheck=False))
    assert module.array is before
    assert module.array.tolist() == [0.0, 0.0]


def test_metrics_in_lists_accumulate_over_completed_turns_alone():
    module = Holding()
    module.metrics_by_name = {"sum": SumMetric()}
    outside = outside_of(module)
    turns = [lambda m, v=value: m.metrics_by_name["sum"].update(v) for value in (1.0, 2.0, 4.0)]
    play(outside, *turns, failing=(1,))
    assert float(module.metrics_by_name["sum"].compute()) == 5.0


def test_weights_that_are_computed_before_each_pass_are_no_state_that_is_lost():
    module = Holding()
    module.layer = torch.nn.utils.spectral_norm(nn.Linear(2, 2))
    outside = outside_of(module)
    play(outside, lambda m: m.layer(torch.ones(1, 2)))
    assert set(outside.found.values()) <= {"rebuilt"}
