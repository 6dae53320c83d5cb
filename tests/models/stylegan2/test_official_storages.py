import io
import pickle
import pickletools

import pytest
import torch

from fedgen.io.torch_files import MAGIC
from fedgen.models.stylegan2.official_pickle import read_storage, view_storage
from tests.models.stylegan2.pickle_builder import FOUR, text, write_storage

DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]


def payload_of(tensor):
    """The bytes that torch writes into a pickle for a tensor's storage."""
    return next(
        argument
        for opcode, argument, _ in pickletools.genops(pickle.dumps(tensor, 4))
        if isinstance(argument, bytes) and argument.startswith(MAGIC)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_storages_that_torch_writes_come_back_bit_by_bit(dtype):
    written = torch.tensor([0, 1, 2.5, 100, 7, 3]).to(getattr(torch, dtype))
    storage = read_storage(payload_of(written))
    assert storage.elements.tolist() == written.tolist()
    found = view_storage(storage, 0, (6,), (1,))
    assert found.dtype == written.dtype
    assert torch.equal(found, written)


def test_an_empty_storage_comes_back():
    assert view_storage(read_storage(payload_of(torch.zeros(0, 3))), 0, (0, 3), (3, 1)).shape == (0, 3)


@pytest.mark.parametrize(
    ("offset", "size", "stride", "expected"),
    [
        (0, (2, 3), (3, 1), [[0, 1, 2], [3, 4, 5]]),
        (0, (3, 2), (1, 3), [[0, 3], [1, 4], [2, 5]]),
        (1, (2, 2), (3, 1), [[1, 2], [4, 5]]),
        (5, (), (), 5),
        (2, (1, 1), (99, 99), [[2]]),
        (3, (3,), (0,), [3, 3, 3]),
        (6, (0,), (1,), []),
    ],
)
def test_a_view_is_copied_into_a_contiguous_tensor(offset, size, stride, expected):
    storage = read_storage(payload_of(torch.arange(6.0)))
    found = view_storage(storage, offset, size, stride)
    assert found.tolist() == expected
    assert found.is_contiguous()
    found.zero_()
    assert storage.elements.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_tests_own_storages_are_those_that_torch_writes():
    """All opcodes but those of the memo, with torch's own key."""
    theirs = payload_of(torch.arange(4.0))
    key = next(op for op in opcodes_of(theirs) if op[0] == "BINUNICODE" and op[1].isdecimal())[1]
    own = write_storage(FOUR, 4, key=text(key), keys=b"]" + text(key) + b"a")
    assert opcodes_of(own) == opcodes_of(theirs)
    assert own[-24:] == theirs[-24:]


def opcodes_of(payload):
    stream = io.BytesIO(payload)
    found = [(opcode.name, argument) for _ in range(5) for opcode, argument, _ in pickletools.genops(stream)]
    return [(opcode, argument) for opcode, argument in found if opcode != "BINPUT"]
