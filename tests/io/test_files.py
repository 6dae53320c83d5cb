import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedgen.io.files import (
    atomic_write,
    in_bytes,
    read_json,
    read_npz,
    read_yaml,
    remove_unfinished,
    require_writable,
    write_json,
    write_once,
)


def test_a_written_file_is_whole_and_readable_by_all(tmp_path):
    path = tmp_path / "folder" / "file.bin"
    with atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def interrupted_write():
        with atomic_write(path) as file:
            file.write(b"half of the n")
            raise error

    with pytest.raises(error):
        interrupted_write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def unsupported(source, target):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.parametrize("link", [os.link, unsupported])
def test_what_is_written_once_stays(tmp_path, link, monkeypatch):
    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "folder" / "file.bin"
    assert [write_once(path, content) for content in (b"first", b"second")] == [b"first", b"first"]
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_names_the_path(tmp_path):
    with (
        pytest.raises(OSError, match="device") as caught,
        atomic_write(tmp_path / "file.bin"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.errno == errno.ENOSPC


class Full:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


@pytest.mark.parametrize("room", [0, 50, 1_000, 30_000, 80_000])
def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint_is_not_hidden_by_what_torch_says_then(tmp_path, room):
    """It ends its file nevertheless, and complains of an unexpected position."""
    state = {"a": torch.zeros(5_000), "b": torch.ones(15_000)}
    with (
        pytest.raises(OSError, match="device") as caught,
        atomic_write(tmp_path / "last.ckpt") as file,
    ):
        torch.save(state, Full(file, room))
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_what_kills_left_is_removed_and_nothing_else(tmp_path):
    kept = {"a.png", "b.png.tmp", ".b.png.abcd1234.part", ".c.json.abc.tmp", "c.json.abcd1234.tmp"}
    for name in (*kept, ".a.png.x1_y45z7.tmp", "samples/.b.png.abcdefgh.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.symlink(tmp_path / "a.png", tmp_path / ".link.png.abcdefgh.tmp")
    os.mkfifo(tmp_path / ".pipe.png.abcdefgh.tmp")
    with atomic_write(tmp_path / "of a live process") as file:
        remove_unfinished(tmp_path)
        file.write(b"whole")
    assert (tmp_path / "of a live process").read_bytes() == b"whole"
    beside = {"samples", "of a live process", ".link.png.abcdefgh.tmp", ".pipe.png.abcdefgh.tmp"}
    assert {path.name for path in tmp_path.rglob("*")} == kept | beside
    remove_unfinished(tmp_path / "no folder")


def test_a_temporary_file_that_is_removed_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    """Another process starts in the folder between the file's making and its lock."""
    lock, calls = fcntl.flock, []

    def late(file, operation):
        calls.append(file)
        if len(calls) == 1:
            remove_unfinished(tmp_path)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert len(calls) == 3  # of the file, of the one who removes it, of the next file


@pytest.mark.slow
def test_a_write_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    script = f"""
import os, signal
from fedgen.io.files import atomic_write
with atomic_write({str(path)!r}) as file:
    file.write(b"half of the n")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_indented_with_a_newline_at_the_end(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, 2]})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"b": [1, 2]}
    assert text.endswith("}\n")


def test_a_value_that_json_cannot_hold_leaves_no_file(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"b": object()})
    assert not list(tmp_path.iterdir())


def test_a_writable_folder_is_made_and_left_empty(tmp_path):
    assert require_writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert not list((tmp_path / "a" / "b").iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    # Below a regular file not even root can write.
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="choose"):
        require_writable(tmp_path / "file" / "run")


def test_npz_arrays_come_back(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), text="hello")
    arrays = read_npz(tmp_path / "a.npz")
    assert arrays["x"].tolist() == [0, 1, 2]
    assert str(arrays["text"]) == "hello"


def test_npz_files_with_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="arrays"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_what_is_no_npz_file_is_named(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is not an \.npz file"):
        read_npz(tmp_path / "a.npz")


def test_a_single_array_has_the_name_of_its_file_and_a_damaged_one_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    (array,) = (read_npz(tmp_path / "a.npy", ["a"])).values()
    assert array.tolist() == [0, 1, 2]
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"a\.npy is not an \.npy file"):
        read_npz(tmp_path / "a.npy")


def test_a_missing_npz_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "a.npz")


def test_sizes_are_told_in_a_unit_that_fits_them():
    sizes = [4, 999, 1000, 17_416, 999_999, 16_785_416, 143_000_000, 2_500_000_000]
    assert ", ".join(map(in_bytes, sizes)) == "4 B, 999 B, 1 kB, 17.4 kB, 1 MB, 16.8 MB, 143 MB, 2.5 GB"


@pytest.mark.parametrize(
    "text",
    ["masking: true\nclients: 3\nmasking: false\n", "a: {deep: 1, deep: 2}", '{"masking": true, "masking": false}'],
)
def test_a_key_given_twice_is_refused_by_name(tmp_path, text):
    """Parsers take the last one in silence: a policy would be what its owner did not read."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy.yaml.*'(masking|deep)' again"):
        read_yaml(path)


def test_a_key_given_twice_in_json_is_refused_by_name(tmp_path):
    path = tmp_path / "hello.json"
    path.write_text('[{"name": 1, "size": 2, "name": 3}]')
    with pytest.raises(ValueError, match="hello"):
        read_json(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 900 + "]" * 900, "nested more than 100 deep"),
        ('{"a": ' * 200 + "1" + "}" * 200, "nested more than 100 deep"),
        ('{"a": ' + "9" * 5000 + "}", "value has 5000 digits"),
    ],
)
def test_json_that_stops_what_works_with_it_is_refused_by_the_files_name(tmp_path, text, said):
    path = tmp_path / "scores.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"scores.json is no JSON.*{said}"):
        read_json(path)
    path.write_text(json.dumps([["[" * 200, '\\"[['], *([[1]] * 200)]))  # in texts, and side by side
    assert len(read_json(path)) == 201


@pytest.mark.parametrize("number", ["010", "0x10", "0b10", "1:30", "-007"])
def test_a_number_that_yaml_reads_otherwise_than_it_looks_is_refused(tmp_path, number):
    """`least_clients: 010` was 8."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"a: 1\nleast_clients: {number}\n")
    with pytest.raises(ValueError, match=f"policy.yaml.*line 2 has {number}, which YAML reads as .*decimal digits"):
        read_yaml(path)
    path.write_text(f"[0, 10, -10, 1_000, 0.5, 1.0e-6, '{number}']")
    assert read_yaml(path) == [0, 10, -10, 1000, 0.5, 1e-6, number]


def test_a_merge_may_be_overridden(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nown: {<<: *base, a: 3}\nagain: {<<: *base, <<: {c: 4}}\n")
    found = read_yaml(path)
    assert found["own"] == {"a": 3, "b": 2}
    assert found["again"]["c"] == 4
