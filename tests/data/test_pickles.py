import builtins
import functools
import operator
import os
import pickle
import struct
import subprocess

import numpy as np
import pytest

from fedgen.data.sets.pickled_images import read_pickle


def load(tmp_path, content):
    path = tmp_path / "file.pkl"
    path.write_bytes(content)
    return read_pickle(path)


class Call:
    """Pickled as a call of a function, which an ordinary unpickler would make."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(5))
def test_plain_data_come_back(tmp_path, protocol):
    data = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "labels": [1, 2, 2**40, -1],
        "mean": np.linspace(0, 1, 5),
        "pair": (1.5, None, True, "Ä\u20ac", [[]], {}),
        "bytes": b"ab\xff",
    }
    result = load(tmp_path, pickle.dumps(data, protocol))
    assert result["data"].dtype == np.uint8
    assert np.array_equal(result["data"], data["data"])
    assert np.array_equal(result["mean"], data["mean"])
    assert {key: result[key] for key in ("labels", "pair", "bytes")} == {
        key: data[key] for key in ("labels", "pair", "bytes")
    }


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numbers_come_back_with_dtype_and_order(tmp_path, order):
    for dtype in ("?", "i1", "<i2", ">i4", "i8", "u1", ">u2", "u8", "f2", ">f4", "f8"):
        array = np.arange(6).reshape(2, 3).astype(dtype, order=order)
        result = load(tmp_path, pickle.dumps(array, 2))
        assert result.dtype == array.dtype
        assert np.array_equal(result, array)
        assert result.flags.f_contiguous == array.flags.f_contiguous
        result[0, 0] = 1  # a copy that can be written


@pytest.mark.parametrize("value", [np.float32(1.5), np.int64(-3), np.bool_(True)])
def test_numpy_scalars_become_python_numbers(tmp_path, value):
    result = load(tmp_path, pickle.dumps([value], 2))
    assert result == [value.item()]
    assert type(result[0]) is type(value.item())


def test_an_array_that_is_named_twice_is_read_once(tmp_path):
    array = np.arange(3)
    result = load(tmp_path, pickle.dumps([array, {"again": array}], 2))
    assert result[0] is result[1]["again"]


def test_a_batch_of_python_2_comes_back(tmp_path):
    """As CIFAR-10 was published: protocol 2, byte strings, NumPy's old module names."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\0K\1\x87R(K\3"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R(K\1K\1K\2\x86"
    array += dtype + b"\x89" + text(b"\x07\xff") + b"tb"
    result = load(tmp_path, b"\x80\2}(" + text(b"data") + array + text(b"labels") + b"](K\3eu.")
    assert result["data"].tolist() == [[7, 255]]
    assert result["labels"] == [3]


def test_bytes_keys_become_text(tmp_path):
    assert load(tmp_path, pickle.dumps({b"data": 1, 2: {b"x": b"y"}}, 4)) == {"data": 1, 2: {"x": b"y"}}


def hostile(sentinel):
    """Ways to run code while a pickle is read; each would make the sentinel file."""
    touch = f"touch {sentinel}"
    code = f"open({str(sentinel)!r}, 'w').close()"
    return {
        "os.system": Call(os.system, touch),
        "subprocess": Call(subprocess.check_call, ["touch", str(sentinel)]),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "open": Call(open, str(sentinel), "w"),
        "getattr chain": Call(Call(getattr, os, "system").call[0], Call(__import__, "os"), "system"),
        "import": Call(__import__, "os"),
        "operator": Call(operator.methodcaller, "system", touch),
        "partial": Call(functools.partial, os.system, touch),
        "numpy function": Call(np.fromfile, "/etc/hostname", np.uint8),
        "object array": np.array([Call(os.system, touch), None], dtype=object),
        "array of text": np.array(["a"]),
        "array of records": np.zeros(2, dtype=[("a", "f4")]),
        "array of dates": np.zeros(2, dtype="M8[s]"),
        "array subclass": np.ma.masked_array([1, 2]),
        "complex": 1j,
        "class": builtins.dict,
    }


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_nothing_but_data_is_read_and_nothing_runs(tmp_path, protocol):
    sentinel = tmp_path / "sentinel"
    for attack, value in hostile(sentinel).items():
        content = pickle.dumps({"data": value}, protocol)
        with pytest.raises(ValueError, match="complete"):
            print(attack, load(tmp_path, content))
        assert not sentinel.exists(), attack


SYSTEM = b"\x8c\x05posix\x8c\x06system"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tC\1btR"
DTYPE = b"cnumpy\ndtype\n(X\2\0\0\0u1K\0K\1tR"


STREAMS = {
    "stack global": SYSTEM + b"\x93\x8c\x01x\x85R.",
    "dotted name": b"\x8c\x05numpy\x8c\x15ndarray.__subclasses__\x93)R.",
    "old class": b"(S'x'\niposix\nsystem\n.",
    "new object": b"cnumpy\nndarray\n)\x81.",
    "persistent id": b"Pidentity\n.",
    "binary persistent id": b"K\1Q.",
    "extension registry": b"\x82\x01.",
    "state of a name": b"cnumpy\ndtype\n}X\1\0\0\0xK\1sb.",
    "slots of a name": b"cnumpy\ndtype\n(N}X\7\0\0\0__doc__K\1stb.",
    "call of the array type": b"cnumpy\nndarray\n((K\2ttR.",
    "bare name": b"cnumpy\nndarray\n.",
    "bare dtype": DTYPE + b".",
    "no array type": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\0tC\1btR.",
    "object dtype": b"cnumpy\ndtype\n(X\2\0\0\0O8K\0K\1tR.",
    "dtype of odd state": DTYPE + b"(K\3X\1\0\0\0xNNNtb.",
    "dtype with fields": DTYPE + b"(K\3X\1\0\0\0|NK\1Ntb.",
    "array without dtype": ARRAY + b"(K\1(K\2tNI00\nC\2abtb.",
    "array of odd state": ARRAY + b"(K\1K\2tb.",
    "too few bytes": ARRAY + b"(K\1(K\3t" + DTYPE + b"I00\nC\2abtb.",
    "huge shape": ARRAY + b"(K\1(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft" + DTYPE + b"I00\nC\2abtb.",
    "negative shape": ARRAY + b"(K\1(J\xff\xff\xff\xffJ\xfe\xff\xff\xfft" + DTYPE + b"I00\nC\2abtb.",
    "shape that is no tuple": ARRAY + b"(K\1K\2" + DTYPE + b"I00\nC\2abtb.",
    "list of objects as bytes": ARRAY + b"(K\1(K\2t" + DTYPE + b"I00\n]tb.",
    "other codec": b"c_codecs\nencode\n(X\1\0\0\0aX\6\0\0\0rot_13tR.",
    "list that holds itself": b"]q\0h\0a.",
    "memo slot out of range": b"K\1r\xff\xff\xff\x7f.",
    "huge length": b"\x8e" + struct.pack("<Q", 2**60) + b"abc.",
    "empty stack": b".",
    "nothing": b"",
    "text": b"<html>404</html>",
}


def test_streams_that_no_honest_writer_makes_are_refused(tmp_path):
    for what, stream in STREAMS.items():
        with pytest.raises(ValueError, match="complete"):
            print(what, load(tmp_path, b"\x80\4" + stream))


def test_deep_nesting_is_refused(tmp_path):
    value: list = []
    for _ in range(50):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        load(tmp_path, pickle.dumps(value))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, protocol):
    content = pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2]}, protocol)
    for length in range(len(content)):
        with pytest.raises(ValueError, match="complete"):
            load(tmp_path, content[:length])


def test_random_damage_gives_data_or_a_clear_error(tmp_path):
    content = pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2]}, 2)
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] = random.integers(256)
        try:
            load(tmp_path, bytes(damaged))
        except ValueError as error:
            refused += "not a complete pickle" in str(error)
    assert refused > 100


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_pickle(tmp_path / "none.pkl")
