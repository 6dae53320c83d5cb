"""What travels beside weights comes back as it went, and what a stranger writes costs no more than it weighs."""

import json
import resource
import time
from collections import Counter, OrderedDict
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fedgen.flower.wire.messages import VERSION, Answer, unpack
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.statistics.statistic_messages import MessageError
from tests.quick import first_quick

SHARED = torch.arange(6.0)
TENSORS = {
    "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "half": torch.tensor([[0.5]], dtype=torch.float16),
    "flags": torch.tensor([True, False]),
    "whole": torch.tensor([[1, -(2**62)]]),
    "of no axis": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "complex": torch.tensor([1 + 2j], dtype=torch.complex128),
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "shared": SHARED,
    "shared, too": SHARED,
    "a view": SHARED[2:4],
    "trained": torch.nn.Parameter(torch.ones(2)),
}
PLAIN = [
    *(
        None,
        True,
        3,
        -(2**63),
        -0.0,
        1e-300,
        "é\n\0",
        b"\0\xff",
        b"",
        [],
        (),
        {},
        [1, [2]],
        (1, ("a",)),
        {"a": {"b": [1]}},
    ),
    *({0: {"step": 1}}, {(3, "exp_avg"): 1}, {True: 1}, {"dict": [["a", 1]]}, Counter({10: 2}), {1, 2}, float("inf")),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_went(value):
    found = from_bytes(to_bytes(value), "it")
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)  # the sign of zero, types within


def test_tensors_come_back_as_they_went_each_in_memory_of_its_own():
    found = from_bytes(to_bytes({"tensors": TENSORS}), "it")["tensors"]
    for name, tensor in TENSORS.items():
        assert type(found[name]) is torch.Tensor
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0)
    found["shared"].zero_()
    assert torch.equal(found["shared, too"], SHARED)
    assert torch.equal(found["a view"], SHARED[2:4])


def test_numbers_of_numpy_and_ordered_dictionaries_become_pythons():
    value = {"a": np.float64(0.5), "b": np.int32(3), "c": np.bool_(True), "d": OrderedDict(x=1), "e": torch.Size([2])}
    found = from_bytes(to_bytes(value), "it")
    assert found == {"a": 0.5, "b": 3, "c": True, "d": {"x": 1}, "e": (2,)}
    assert [type(one) for one in found.values()] == [float, int, bool, dict, tuple]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(object(), "a object does not travel", id="an object"),
        ({(1, 2): 3}, "the key (1, 2) does not travel"),
        ({1.5: 3}, "the key 1.5 does not travel"),
        ([torch.eye(2).to_sparse()], "make it dense"),
        ([2**63], "a whole number of 64 bits"),
        ("\ud800", "surrogates not allowed"),
    ],
    ids=str,
)
def test_what_does_not_travel_is_named_by_its_sender(value, said):
    with pytest.raises((TypeError, ValueError)) as error:
        to_bytes(value)
    assert said in str(error.value)


def message(text, **tensors):
    return save(tensors, metadata={"fedgen": text})


def refused(data):
    with pytest.raises(MessageError, match="read"):
        from_bytes(data, "it")


def test_tuples_that_are_nested_without_end_are_refused_wherever_they_stand():
    """As a key, such a tuple ended the server by SIGSEGV: its hash is taken without a look at the depth."""
    deep = '{"tuple":[' * 200_000 + "1" + "]}" * 200_000
    key = '{"dict":[[' + deep + ",1]]}"
    for text in (deep, key):
        refused(message(text))


@pytest.mark.parametrize(
    "key",
    first_quick(
        [
            lambda i: i * (2**61 - 1),  # whose hash is 0
            lambda i: i << 44,
            lambda i: {"tuple": [i, i]},
            lambda i: float(2**60 + i),
        ]
    ),
    ids=["of hash 0", "alike in their low bits", "tuples of two", "floats"],
)
def test_keys_that_share_a_hash_cost_no_time(key):
    """100,000 multiples of 2^61 - 1 took a minute."""
    text = json.dumps({"dict": [[key(i), 0] for i in range(100_000)]})
    start = time.process_time()
    with suppress(MessageError):  # some are keys, and some are none
        assert len(from_bytes(message(text), "it")) == 100_000
    assert time.process_time() - start < 3


def test_nothing_is_larger_in_memory_than_some_thirty_times_what_came():
    """`bytearray(3 GB)` was 412 bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in (
        '{"bytes":3000000000}',
        '{"bytearray":3000000000}',
        "[" + "[]," * 2**23 + "0]",
        '[{"bytes":0},{"bytes":0}]',
    ):
        refused(message(text, **{"0": torch.zeros(2**20, dtype=torch.uint8)}))
    huge = json.dumps(
        {"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}, "__metadata__": {"fedgen": "0"}}
    )
    refused(len(huge).to_bytes(8, "little") + huge.encode() + bytes(4))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10**6  # kilobytes


class Sound(torch.nn.Parameter):
    """A tensor that says of itself that it is finite."""

    def isfinite(self):
        return torch.ones((), dtype=torch.bool)


def test_a_tensor_that_answers_for_itself_is_read_as_the_numbers_that_it_is():
    with pytest.raises(MessageError, match="NaN"):
        from_bytes(to_bytes([Sound(torch.tensor([float("nan")]))]), "it")
    with pytest.raises(MessageError, match="weights"):
        unpack(Answer, {"a": Sound(torch.ones(1))}, to_bytes({"version": VERSION}))


def test_a_sealed_value_is_refused_without_its_hash():
    assert from_bytes(to_bytes([1], sealed=True), "it", sealed=True) == [1]
    with pytest.raises(MessageError, match="written"):
        from_bytes(to_bytes([1]), "it", sealed=True)


@pytest.mark.parametrize("number", [2**24, -(2**40)])
def test_many_keys_of_large_numbers_do_not_travel(number):
    """Chosen ones are looked for in each other's places: a megabyte kept a server busy for minutes."""
    few, many = ({number + place: 0 for place in range(count)} for count in (500, 501))
    assert from_bytes(to_bytes(few), "it") == few
    for value in (many, set(many), {(key,): 0 for key in many}):
        with pytest.raises(MessageError, match="large"):
            from_bytes(to_bytes(value), "it")
    small = dict.fromkeys(range(2000))
    assert from_bytes(to_bytes(small), "it") == small
