import io
import pickle
import random
import struct
from typing import Literal

import numpy as np
import pytest

from fedgen.data.sets.pickled_images import read_pickle
from fedgen.io.restricted_pickle import (
    BINARY_OPCODES,
    DATA_OPCODES,
    NUMBER_NAMES,
    Function,
    Name,
    Natural,
    NotAllowedError,
    short,
    unpickle,
)

SETS = frozenset(["EMPTY_SET", "ADDITEMS"])


def load(content, names=NUMBER_NAMES, **settings):
    return unpickle(io.BytesIO(content), names, **settings)


def draw(source, depth=3):
    """A value of plain types, nested at random."""
    kind = source.choice(["number", "text", "bytes", "other", *["list", "tuple", "dict", "shared"] * depth])
    if kind == "number":
        return source.choice([0, 1, -1, 255, 256, 65536, -(2**31), 2**31, 2**63, -(2**200), 0.1, float("inf"), -0.0])
    if kind == "text":
        return source.choice(["", "a", "x" * 300, "\u20ac\n\\", "\U0001f600"])
    if kind in ("bytes", "other"):
        return source.choice([b"\xff\x00", b"y" * 300] if kind == "bytes" else [None, True, False, (), [], {}])
    items = [draw(source, depth - 1) for _ in range(source.randrange(5))]
    if kind == "dict":
        return {source.choice(["a", b"b", 3, 2.5, None, ("c", 4)]): item for item in items}
    return [items, items] if kind == "shared" else tuple(items) if kind == "tuple" else items


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back_as_from_pythons_own_unpickler(protocol):
    source = random.Random(protocol)
    for _ in range(200):
        content = pickle.dumps(draw(source), protocol)
        assert repr(load(content)) == repr(pickle.loads(content))


def test_a_value_that_is_named_twice_is_read_once():
    found = load(pickle.dumps([[value := [1]], value], 4))
    assert found[0][0] is found[1]


def test_opcodes_that_only_python_2_writes_are_read_or_refused():
    content = b"(dp1\nS'a'\np2\n(lp3\nI1\naL2L\naI01\naF0.5\naV\\u20ac\naU\x01bag2\nas."
    assert load(content) == pickle.loads(content) == {"a": [1, 2, True, 0.5, "\u20ac", "b", "a"]}
    assert load(b"(S'a'\nI1\nd.") == {"a": 1}
    with pytest.raises(ValueError, match="STRING"):
        load(b"(S'a'\nI1\nd.", opcodes=BINARY_OPCODES)


@pytest.mark.parametrize("content", [b"N(K\1K\x021.", b"N(0.", b"NK\x010."])
def test_values_and_marks_are_popped(content):
    assert load(content) is pickle.loads(content) is None


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("value", [np.float64(0.1), np.float16(2), np.int64(-3), np.uint8(200), np.bool_(True)])
def test_numbers_of_numpy_become_those_of_python(protocol, value):
    found = load(pickle.dumps(value, protocol))
    assert (found, type(found)) == (value.item(), type(value.item()))


def test_sets_of_allowed_keys_come_back_where_their_opcodes_are_allowed():
    content = pickle.dumps({"a", "b"}, 4)
    assert load(content, opcodes=DATA_OPCODES | SETS) == {"a", "b"}
    with pytest.raises(ValueError, match="allowed"):
        load(pickle.dumps({1}, 4), opcodes=DATA_OPCODES | SETS, key_types=(str,))
    with pytest.raises(ValueError, match="EMPTY_SET"):
        load(content)


def test_pickles_back_to_back_are_read_one_by_one():
    stream = io.BytesIO(pickle.dumps([1], 2) + pickle.dumps("two", 4) + b"rest")
    assert [unpickle(stream, {}), unpickle(stream, {}), stream.read()] == [[1], "two", b"rest"]


def test_persistent_ids_are_what_the_reader_says():
    assert load(b"K\2Q.", opcodes=DATA_OPCODES | {"BINPERSID"}, persistent=lambda pid: pid + 1) == 3
    with pytest.raises(ValueError, match="BINPERSID"):
        load(b"K\2Q.", opcodes=DATA_OPCODES | {"BINPERSID"})


def test_a_name_is_an_entry_of_the_table_or_an_error():
    names = {("here", "add"): Function(lambda a, b: a + b), ("here", "nothing"): Name()}
    assert load(b"chere\nadd\n(K\1K\2tR.", names) == 3
    assert load(b"\x8c\4here\x8c\3add\x93(K\1K\2tR.", names) == 3
    with pytest.raises(NotAllowedError, match="allowed") as error:
        load(b"cos\nsystem\n.", names)
    assert (error.value.module, error.value.name) == ("os", "system")
    for content, reason in {
        b"chere\nnothing\n)R.": "cannot be called",
        b"chere\nadd\n)R.": "REDUCE at byte 11 fails with TypeError",
        b"chere\nadd\n]R.": "calls something that is no name",
        b"K\1)R.": "calls something that is no name",
        b"chere\nadd\n}b.": "state to something that takes none",
    }.items():
        with pytest.raises(ValueError, match=reason):
            load(content, names)
    with pytest.raises(ValueError, match="class"):
        load(b"chere\nadd\n)\x81.", names, opcodes=DATA_OPCODES | {"NEWOBJ"})


def test_a_function_is_called_if_its_annotations_allow_the_arguments():
    def half(number: Natural, way: Literal["up", "down"] = "down") -> int:
        return number // 2 if way == "down" else -(-number // 2)

    names = {("here", "half"): Function(half)}
    assert load(b"chere\nhalf\n(K\3tR.", names) == 1
    assert load(b"chere\nhalf\n(K\3X\2\0\0\0uptR.", names) == 2
    for arguments, reason in {
        b"J\xff\xff\xff\xff": "number of half is -1",
        b"\x88": "number",
        b"K\3K\1": "way",
    }.items():
        with pytest.raises(ValueError, match=reason):
            load(b"chere\nhalf\n(" + arguments + b"tR.", names)


def test_only_types_that_the_reader_lists_take_a_state():
    class Thing:
        def set_state(self, state):
            self.state = state

    content, names = b"chere\nThing\n)RK\7b.", {("here", "Thing"): Function(Thing)}
    assert load(content, names, states={Thing: Thing.set_state}).state == 7
    with pytest.raises(ValueError, match="takes"):
        load(content, names)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"N", "cut short or damaged"),
        (b"", "cut short or damaged"),
        (b"X\xff\0\0\0abc.", "cut short or damaged"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b"abc.", "cut short or damaged"),
        (b"X\1\0\0\0\xff.", "cut short or damaged"),
        (b"I" + b"9" * 5000 + b"\n.", "cut short or damaged"),
        (b".", "other than one value"),
        (b"NN.", "other than one value"),
        (b"(N.", "other than one value"),
        (b"0.", "fails with IndexError"),
        (b"h\0.", "fails with KeyError"),
        (b"K\1r\xff\xff\xff\x7f.", "memo slot 2147483647 at byte 2 is out of range"),
        (b"}(K\1u.", "a key without a value"),
        (b"}]Ns.", "type list is not allowed as a key"),
        (b"})\x85Ns.", "type tuple is not allowed as a key"),
        (b"}(NNNNNNNNNtNs.", "type tuple is not allowed as a key"),
        (b")Na.", "no list"),
        (b"]NNs.", "no dict"),
    ],
)
def test_a_damaged_stream_is_refused_with_its_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        load(content)


def test_a_stream_of_too_many_opcodes_is_refused():
    assert load(b"N" + b"N0" * 10 + b".", max_opcodes=22) is None
    with pytest.raises(ValueError, match="opcodes"):
        load(b"N" + b"N0" * 10 + b".", max_opcodes=21)


def test_data_that_are_in_the_stream_once_cannot_be_copied_again_and_again():
    """A dozen bytes of opcodes for a copy of any size."""
    start = b"N0" * 9 + b"X" + struct.pack("<I", 9999) + b"a" * 9999 + b"\x8c\6latin1\x86q\x090"
    again = b"c_codecs\nencode\nh\x09R0"
    assert load(start + again * 3 + b"N.") is None
    with pytest.raises(ValueError, match="data"):
        load(start + again * 5 + b"N.")


# Python's own unpickler overflows the C stack over twenty times the first, and takes 2 ** 60 steps over the second.
DEEP = b")" + b"\x85" * 50_000
DOUBLED = b")" + b"".join(b"q%c0h%ch%c\x86" % (n, n, n) for n in range(60))


@pytest.mark.parametrize("key", [DEEP, DOUBLED], ids=["deep", "doubled"])
def test_keys_that_could_not_be_hashed_in_time_are_refused(tmp_path, key):
    (tmp_path / "file.pkl").write_bytes(b"\x80\4}" + key + b"Ns.")
    with pytest.raises(ValueError, match="allowed"):
        read_pickle(tmp_path / "file.pkl")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n", r"'a\n'"),
        (b"a", "b'a'"),
        ("a" * 61, "'" + "a" * 60 + "'..."),
        (2**63, "9223372036854775808"),
        (-1.5, "-1.5"),
        (None, "None"),
        (2**64, "a value of type int"),
        ([[]], "a value of type list"),
    ],
)
def test_values_are_shown_on_one_short_line(value, shown):
    assert short(value) == shown
