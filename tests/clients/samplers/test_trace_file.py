"""Files that say who is available when, and what is wrong with those that do not."""

import json

import pytest

from fedgen.clients.samplers.sampler import read_trace

NAMES = ["a", "b", "7", "d"]


def there(trace, rounds=8):
    """The rounds in which each client is there."""
    return [[round for round in range(rounds) if trace(client, round)] for client in range(len(NAMES))]


def test_rows_of_a_table_are_stretches_of_rounds_with_both_ends(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,first,last\na,0,2\na,5,5\n7,1,3\n3,6,7\n")  # 7 is a name, 3 is no name and so d's number
    assert there(read_trace(path, NAMES, None)) == [[0, 1, 2, 5], [], [1, 2, 3], [6, 7]]


def test_columns_may_come_in_any_order_and_with_others(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("last,device,client,first\n2,phone,b,1\n")
    assert there(read_trace(path, NAMES, None)) == [[], [1, 2], [], []]


def test_an_object_has_rounds_and_pairs(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"a": [0, [2, 4]], "3": [[7, 7]], "b": []}))
    assert there(read_trace(path, NAMES, 8)) == [[0, 2, 3, 4], [], [], [7]]


HEADER = "client,first,last\n"
FAULTS = {
    "another suffix": ("trace.txt", HEADER, None, "a trace of availability is a .csv or a .json file"),
    "a number of 5,000 digits": ("trace.csv", HEADER + f"a,0,{'9' * 5000}\n", None, "line 2: last is '9999"),
    "a client of 5,000 digits": ("trace.csv", HEADER + f"{'9' * 5000},0,1\n", None, "line 2: '9999"),
    "an empty table": ("trace.csv", "", None, "has the columns of an empty file and lacks client, first, last"),
    "no column": (
        "trace.csv",
        "client,first\na,0\n",
        None,
        "has the columns client, first and lacks last: its first line",
    ),
    "a short row": ("trace.csv", f"{HEADER}a,0,1\nb,2\n", None, "line 3 has not the 3 fields"),
    "no number": ("trace.csv", f"{HEADER}a,0,1\nb,two,3\n", None, "line 3: first is 'two', which is not a round"),
    "a negative round": ("trace.csv", f"{HEADER}a,-1,1\n", None, "line 2: first is '-1', which is not a round"),
    "ends the wrong way": (
        "trace.csv",
        f"{HEADER}a,5,3\n",
        None,
        "line 2: the last round, 3, comes before the first, 5",
    ),
    "an unknown client": ("trace.csv", f"{HEADER}a,0,1\nz,0,1\n", None, "line 3: 'z' is none of the 4 clients"),
    "a number too large": ("trace.csv", f"{HEADER}4,0,1\n", None, r"line 2: '4' is none of the 4 clients .*0 to 3"),
    "beyond the period": ("trace.csv", f"{HEADER}a,0,4\n", 4, "line 2: round 4 lies beyond period=4"),
    "no object": ("trace.json", "[1, 2]", None, "is not an object of clients"),
    "no list": ("trace.json", '{"a": 3}', None, "client 'a': its rounds are 3; give a list"),
    "three ends": ("trace.json", '{"a": [[1, 2, 3]]}', None, r"client 'a': \[1, 2, 3\] is neither a round nor a pair"),
    "a truth value": ("trace.json", '{"a": [true]}', None, "client 'a': True is neither a round nor a pair"),
    "damaged": ("trace.json", '{"a": [', None, "trace.json"),
    "a client of another run": ("trace.json", '{"z": [1]}', None, "client 'z': 'z' is none of the 4 clients"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named_with_its_place(name, tmp_path):
    file, text, period, said = FAULTS[name]
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_trace(tmp_path / file, NAMES, period)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="trace"):
        read_trace(tmp_path / "trace.csv", NAMES, None)
