"""Up to a thousand damaged copies of one valid file, the same in every run, and what a reader must make of each.

A reader refuses a copy by an error that names the file, or it gives back what the undamaged file holds: damage to
padding, or to what nobody reads, is harmless. Anything else is a fault: another error, another value, a hang, memory by
the gigabyte, and above all code of the file's that runs.
"""

import dataclasses
import gzip
import io
import os
import pickle
import resource
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

COUNT = 1000
SECONDS = 5.0  # of this process's time, for one copy; most take a millisecond, however busy the machine is
MEMORY = 512 * 2**20  # bytes that the process may grow by over all copies of a file
REFUSALS = (ValueError, OSError)

Read = Callable[[Path], Any]
Same = Callable[[Any, Any], bool]


class HangError(BaseException):
    """A reader is still at it after `SECONDS`; no OSError, which a reader may raise."""


class Trap:
    """Pickled as the call that makes a folder, by which the tests see that it ran."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.sentinel),)


# ---- copies ----


def damaged(content: bytes, seed: int = 0, count: int = COUNT) -> Iterator[tuple[str, bytes]]:
    """(what was done, bytes) of so many damaged copies of a file's content, none of them the content itself."""
    random = np.random.default_rng(seed)
    kinds = (_cut, _flip, _flip, _flip_at_an_end, _flip_at_an_end, _overwrite, _overwrite, _rearrange)
    made = 0
    while made < count:
        what, copy = kinds[made % len(kinds)](content, random)
        if copy != content:
            made += 1
            yield what, copy


def _cut(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    """Ended early: at a random place, near one of the ends, or where a part of a zip archive begins."""
    marks = [place for place in range(len(content)) if content.startswith(b"PK", place)] or [0]
    near = (int(random.integers(1, 65)), len(content) - int(random.integers(1, 65)))
    places = [int(random.integers(len(content))), *near, marks[random.integers(len(marks))]]
    place = min(max(places[random.integers(4)], 0), len(content) - 1)
    return f"cut to {place} of {len(content)} bytes", content[:place]


def _flip(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    return _flipped(content, int(random.integers(len(content))), int(random.integers(8)))


def _flip_at_an_end(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    """In the first or last 512 bytes, where headers and directories lie."""
    place = int(random.integers(min(512, len(content))))
    return _flipped(content, place if random.integers(2) else len(content) - 1 - place, int(random.integers(8)))


def _flipped(content: bytes, place: int, bit: int) -> tuple[str, bytes]:
    copy = bytearray(content)
    copy[place] ^= 1 << bit
    return f"bit {bit} of byte {place} flipped", bytes(copy)


def _overwrite(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    """A run of zeros, of ones or of chance."""
    length = int(random.integers(1, min(64, len(content)) + 1))
    place = int(random.integers(len(content) - length + 1))
    runs = (bytes(length), b"\xff" * length, random.bytes(length))
    run = runs[random.integers(3)]
    return f"bytes {place} to {place + length} overwritten", content[:place] + run + content[place + length :]


def _rearrange(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    """A piece lost, a piece twice, two pieces swapped, or something behind the end."""
    a, b, c = sorted(int(place) for place in random.integers(len(content) + 1, size=3))
    copies = {
        f"bytes {a} to {b} lost": content[:a] + content[b:],
        f"bytes {a} to {b} there twice": content[:b] + content[a:],
        f"bytes {a} to {b} and {b} to {c} swapped": content[:a] + content[b:c] + content[a:b] + content[c:],
        f"{c - a} bytes behind the end": content + content[a:c],
    }
    return list(copies.items())[random.integers(4)]


def strangers(sentinel: Path) -> dict[str, bytes]:
    """Whole files of other kinds, by what they are, and `traps`."""
    arrays, tensors = {"x": np.arange(3.0)}, {"x": torch.arange(3.0)}
    return traps(sentinel) | {
        "empty": b"",
        "zeros": bytes(4096),
        "text": b"hello\n",
        "no UTF-8": b"\xff\xfe\xfa",
        "web page": b"<!DOCTYPE html><html><body>404</body></html>\n",
        "git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        "JSON number": b"1\n",
        "JSON null": b"null\n",
        "JSON list": b"[1, 2]\n",
        "JSON object": b"{}\n",
        "deep JSON": b"[\n" * 50_000,
        "deep YAML": b"- " * 20_000 + b"a",
        "long number": b"1" * 100_000,
        "YAML that unfolds": _unfolding_yaml(),
        "gzip": gzip.compress(b"hello"),
        "zip": _zip({"a.txt": b"hello"}),
        "empty zip": _zip({}),
        "npy": _npy(np.arange(3.0)),
        "npz": _npz(**arrays),
        "safetensors": save(tensors),
        "huge safetensors header": struct.pack("<Q", 2**62) + b"{}",
        "torch": _torch(tensors),
        "old torch": _torch(tensors, _use_new_zipfile_serialization=False),
    }


def traps(sentinel: Path) -> dict[str, bytes]:
    """Whole files, several of which would make the folder `sentinel` if they were unpickled or built."""
    trap = Trap(sentinel)
    objects = np.array([trap], dtype=object)
    found = {
        "YAML object": f"!!python/object/apply:os.mkdir ['{sentinel}']\n".encode(),
        "npy of objects": _npy(objects),
        "npz of objects": _npz(x=objects, mu=objects, sigma=objects, settings=objects, indices=objects),
        "torch with a trap": _torch({"state_dict": {"x": trap}}),
        "old torch with a trap": _torch({"state_dict": trap}, _use_new_zipfile_serialization=False),
    }
    return found | {f"pickle {protocol} with a trap": pickle.dumps(trap, protocol) for protocol in range(6)}


def _unfolding_yaml() -> bytes:
    """Ten lines that stand for ten to the ninth."""
    lines = ["a0: &a0 [" + ", ".join("x" * 10) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 10)]
    return "\n".join([*lines, "data: {class_path: *a9}", "model: {class_path: *a9}", ""]).encode()


def _zip(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **arrays)
    return file.getvalue()


def _torch(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


# ---- readers ----


def fuzz(
    read: Read,
    path: Path,
    same: Same | None = None,
    refusals: Any = REFUSALS,
    valid: Sequence[str] = (),
    *,
    copies: int = COUNT,
    least: int = 0,
) -> int:
    """Gives a reader damaged copies of a file, and strangers; how many of the former it refused.

    Args:
        read: the reader.
        path: of the valid file, which is there again afterwards.
        same: whether a value is what the file holds; for a format without checksums, whether it is well formed.
        refusals: errors that the reader may raise, whose text must name the file.
        valid: kinds of strangers that are not strange to this reader.
        copies: how many of the thousand copies, the first ones; with fewer than 64, strangers are `traps` alone.
        least: of a thousand copies more than these are refused; with fewer than 64 it is not asked.

    Raises:
        AssertionError: for every fault, the first ones in words.
    """
    content, sentinel, before = path.read_bytes(), path.with_name("sentinel"), _peak_memory()
    expected, problems, refused, few = read(path), [], 0, copies < 64
    given = (traps if few else strangers)(sentinel)
    others = {f"of another kind: {what}": copy for what, copy in given.items() if what not in valid}
    for what, copy in [*damaged(content, count=copies), *others.items()]:
        overwrite(path, copy)
        problem = _fault(read, path, lambda value: (same or equal)(value, expected), refusals)
        refused += problem == "" and what not in others
        strange = what in others and problem is None
        if problem or strange:
            problems.append(f"{what}: {problem or 'accepted'}")
    overwrite(path, content)
    assert not sentinel.exists(), f"{path.name} ran what was in it"
    assert not problems, f"{len(problems)} faults:\n  " + "\n  ".join(problems[:20])
    assert equal(read(path), expected), "reading a damaged file left something behind"
    assert _peak_memory() - before < MEMORY
    assert few or refused * COUNT > least * copies, f"{refused} of {copies} damaged copies were refused"
    return refused


def overwrite(path: Path, content: bytes) -> None:
    """As a new file: readers may have mapped the old one into memory, and what they gave back with it.

    A file that is emptied and written anew costs milliseconds, too, as many file systems then flush it.
    """
    path.unlink()
    path.write_bytes(content)


def refuses(read: Read, path: Path, refusals: Any = REFUSALS, what: Any = "") -> None:
    """Asserts that a reader refuses a file by name, soon; `what` says what is wrong with the file."""
    problem = _fault(read, path, lambda value: False, refusals)
    assert problem == "", f"{path.name}: {problem} {str(what)[:80]}"


def _fault(read: Read, path: Path, same: Callable[[Any], bool], refusals: Any) -> str | None:
    """What is wrong with how a file is read; "" for a refusal, None for its own value."""
    with _limited():
        try:
            value = read(path)
        except refusals as error:
            return "" if path.name in str(error) else f"the error does not name the file: {error!r}"
        except HangError:
            return f"still read after {SECONDS:g} s"
        except Exception as error:
            return f"raises {error!r}"[:300]
    return None if same(value) else f"accepted as {value!r}"[:300]


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise HangError

    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same to the bit, whatever they are made of; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and equal(a.detach().numpy(), b.detach().numpy())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, nn.Module):
        return equal(dict(a.state_dict()), dict(b.state_dict()))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if dataclasses.is_dataclass(a):
        return equal(vars(a), vars(b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


class Lost:
    """In place of a value that is taken out; with one name in every process that collects these tests."""

    def __repr__(self):
        return "lost"
