"""The damage is the same in every run, and careless readers are found out."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import damage
from tests.fuzz.damage import COUNT, damaged, equal, fuzz, refuses

CONTENT = bytes(range(256)) * 4


def test_a_thousand_copies_differ_from_the_content_and_are_the_same_again():
    copies = [copy for _, copy in damaged(CONTENT)]
    assert len(copies) == COUNT == 1000
    assert CONTENT not in copies
    assert copies == [copy for _, copy in damaged(CONTENT)]
    assert len(set(copies)) > 900
    assert min(map(len, copies)) < 64 < len(CONTENT) < max(map(len, copies))


def careful(path):
    if path.read_bytes() != CONTENT:
        raise ValueError(f"{path} is damaged")
    return CONTENT


def silent(path):
    return path.read_bytes()


def nameless(path):
    if path.read_bytes() != CONTENT:
        raise ValueError("it is damaged")


def crashing(path):
    if path.read_bytes() != CONTENT:
        raise IndexError(f"{path} is damaged")


def unpickling(path):
    content = path.read_bytes()
    if content.startswith(b"\x80") and b"sentinel" in content:  # the trap alone, none of the other thousand
        pickle.loads(content)
    return careful(path)


def endless(path):
    for _ in itertools.count():
        pass


@pytest.fixture
def path(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    return tmp_path / "a.bin"


def test_a_careful_reader_refuses_all_of_them(path):
    assert fuzz(careful, path) == COUNT
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("count", [1, 100])
def test_fewer_copies_are_the_first_of_the_thousand(path, count):
    assert list(damaged(CONTENT, count=count)) == list(damaged(CONTENT))[:count]
    read = []
    assert fuzz(lambda path: careful(read.append(path) or path), path, copies=count) == count
    assert count < len(read) < 100 + count


def test_a_reader_that_refuses_too_few_copies_is_found_out(path):
    assert fuzz(careful, path, copies=100, least=999) == 100
    with pytest.raises(AssertionError, match="100 of 100"):
        fuzz(careful, path, copies=100, least=1000)


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (silent, "accepted as"),
        (nameless, "does not name the file"),
        (crashing, "raises IndexError"),
        (unpickling, "ran what was in it"),
    ],
)
def test_a_careless_reader_is_found_out(path, read, fault):
    with pytest.raises(AssertionError, match=fault):
        fuzz(read, path, copies=1)


def test_a_reader_that_never_ends_is_stopped(path, monkeypatch):
    monkeypatch.setattr(damage, "SECONDS", 0.05)
    with pytest.raises(AssertionError, match="still"):
        refuses(endless, path)


def test_a_reader_that_takes_memory_is_found_out(path, monkeypatch):
    """By the most that the process ever held."""
    peaks = iter([0, 2**27])
    monkeypatch.setattr(damage, "_peak_memory", lambda: next(peaks))
    monkeypatch.setattr(damage, "MEMORY", 2**26)
    with pytest.raises(AssertionError):
        fuzz(careful, path, copies=1)


def test_values_are_equal_to_the_bit():
    nan, array = float("nan"), np.array([1.0, float("nan")])
    assert equal({"a": [nan, array, "x"]}, {"a": [nan, array.copy(), "x"]})
    for other in ({"a": [0.0, array, "x"]}, {"a": [nan, array.astype("f4"), "x"]}, {"a": [nan, array]}, {"b": []}):
        assert not equal({"a": [nan, array, "x"]}, other)
    assert not equal(0.0, -0.0)
    assert not equal(1, True)
