"""Files of torch.save by strangers: read as torch reads honest ones, and refused in no time and no memory otherwise."""

import io
import pickle
import resource
import struct
import zipfile
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn

from fedgen.io.tensor_files import read_torch
from fedgen.io.torch_files import MAGIC
from tests.fuzz.damage import refuses
from tests.launched import said_in_fork


def same(a, b):
    """Whether two values are one, with dtypes, strides and the types of containers."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        kinds = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (a, b)]
        return kinds[0] == kinds[1] and torch.equal(*raw)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


W = torch.arange(24.0).view(4, 6)
VALUES = {
    "state": {"state_dict": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict(), "epoch": 3},
    "views": {"a": W, "b": W.t(), "c": W[1:, 2], "d": W[:1].expand(3, 6), "e": torch.zeros(0, 3), "f": torch.zeros(())},
    "dtypes": [torch.arange(5).to(getattr(torch, d)) for d in ("int8", "uint8", "half", "bfloat16", "bool", "cfloat")],
    "parameter": [nn.Parameter(W), torch.ones(2, requires_grad=True)],
    "plain": {"s": {1, "a"}, "b": b"a\xff", "m": bytearray(b"\0\xfe"), "c": 1j, "t": (1, (2.5, None)), 3: 2**200},
    "torch": [torch.Size([1, 2]), torch.float16, torch.device("cuda:1"), torch.strided],
    "collections": [OrderedDict(a=1), Counter({3: 1})],
    "keys": {(0, "a"): 1, None: 2, True: 3, 0.5: 4},
}


@pytest.mark.parametrize("old", [False, True], ids=["archive", "old"])
@pytest.mark.parametrize("name", VALUES)
def test_honest_files_are_read_as_torch_reads_them(name, old, tmp_path):
    torch.save(VALUES[name], tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
    found = read_torch(tmp_path / "a.pt")
    assert same(found, torch.load(tmp_path / "a.pt", weights_only=True))


def test_new_dtypes_shared_storages_and_versions_of_modules_come_back(tmp_path):
    """torch itself reads no uint16 of an old file."""
    value = {"a": W, "b": W.t(), "u": torch.arange(3).to(torch.uint16), "s": nn.BatchNorm1d(2).state_dict()}
    torch.save(value, tmp_path / "a.pt")
    found = read_torch(tmp_path / "a.pt")
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert found["u"].tolist() == [0, 1, 2]
    assert found["s"]._metadata == value["s"]._metadata


class Plain:
    """A user's own class."""

    def __init__(self, size):
        self.size = size


def test_classes_that_the_user_allows_come_back(tmp_path):
    torch.save({"a": Plain(3)}, tmp_path / "a.pt")
    refuses(read_torch, tmp_path / "a.pt")
    with torch.serialization.safe_globals([Plain]):
        assert read_torch(tmp_path / "a.pt")["a"].size == 3


# ---- attacks ----


def archive(pickled, parts=(), folder="a"):
    """A zip archive as torch.save writes it, with a pickle and other parts by name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in {"data.pkl": pickled, "version": b"3\n", "byteorder": b"little", **dict(parts)}.items():
            made.writestr(f"{folder}/{name}", content)
    return file.getvalue()


def old_file(pickled, keys, storages=b""):
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    parts = [MAGIC, *(pickle.dumps(part, 2) for part in (1001, machine)), pickled, pickle.dumps(keys, 2), storages]
    return b"".join(parts)


FLOATS = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0%sX\3\0\0\0cpu%stQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n(%sK\0%s%s\x89ccollections\nOrderedDict\n)RtR"


def number(value):
    return b"J" + struct.pack("<i", value)


def tensor(key=b"0", numel=3, size=3, stride=1, old=False):
    """What makes a tensor of one dimension."""
    storage = FLOATS % (key, number(numel) + (b"N" if old else b""))
    return REBUILD % (storage, number(size) + b"\x85", number(stride) + b"\x85")


def counted(keys):
    """A dictionary of whole numbers as keys, each of protocol 2's opcodes LONG1."""
    written = b"".join(pickle.dumps(key, 2)[2:-1] + b"N" for key in keys)
    return b"\x80\2}(" + written + b"u."


def two_directories():
    """An archive for Python, and behind its end another one, which torch finds by the last directory before 64 kB."""
    good, bad = (archive(b"\x80\2" + tensor() + b".", {"data/0": bytes([one]) * 12}) for one in (0, 65))
    return good + bad


def two_folders():
    file = io.BytesIO(archive(b"\x80\2N."))
    with zipfile.ZipFile(file, "a") as made:
        made.writestr("b/data.pkl", b"\x80\2N.")
    return file.getvalue()


DEEP = b"\x80\2})" + b"\x85" * 200_000 + b"Ns."
OLD, HUGE = (b"\x80\2" + tensor(numel=numel, old=True) + b"." for numel in (3, 2**30))
THREE = struct.pack("<q", 3)
ATTACKS = {
    "deep key": archive(DEEP),
    "deep value": archive(b"\x80\2" + b")" + b"\x85" * 200_000 + b"."),
    "doubled lists": archive(b"\x80\2]" + b"".join(b"q%c0](h%ch%ce" % (n, n, n) for n in range(60)) + b"."),
    "a list of itself": archive(b"\x80\2]q\0h\0a."),
    "keys of one hash": archive(counted(i * (2**61 - 1) for i in range(40_000))),
    "keys of one hash in a set": archive(
        b"\x80\2c__builtin__\nset\n]("
        + b"".join(pickle.dumps(i * (2**61 - 1), 2)[2:-1] for i in range(40_000))
        + b"e\x85R."
    ),
    "tuples for keys": archive(counted((i, i + 1) for i in range(40_000))),
    "3 GB of bytes": archive(b"\x80\2cbuiltins\nbytearray\n\x8a\5" + (3 * 10**9).to_bytes(5, "little") + b"\x85R."),
    "3 GB of a set": archive(b"\x80\2c__builtin__\nset\n" + number(10**9) + b"\x85R."),
    "memory never written": archive(b"\x80\2ctorch\nTensor\n" + number(10**6) + b"\x85R."),
    "storage never written": archive(b"\x80\2ctorch.storage\nTypedStorage\n" + number(10**6) + b"\x85R."),
    "storage class called": archive(b"\x80\2ctorch\nFloatStorage\n" + number(10**6) + b"\x85R."),
    "storage that is not there": archive(b"\x80\2" + tensor() + b"."),
    "storage of more than its part": archive(b"\x80\2" + tensor(numel=1000) + b".", {"data/0": bytes(12)}),
    "storage that is a folder": archive(b"\x80\2" + tensor(key=b"/") + b".", {"data//": b""}),
    "tensor beyond its storage": archive(b"\x80\2" + tensor(size=4) + b".", {"data/0": bytes(12)}),
    "tensor of a negative shape": archive(b"\x80\2" + tensor(size=-1) + b".", {"data/0": bytes(12)}),
    "2 GB of one number": archive(b"\x80\2" + tensor(size=5 * 10**8, stride=0) + b".", {"data/0": bytes(12)}),
    "2 GB of many tensors": archive(
        b"\x80\2](" + tensor(numel=10**6, size=10**6) + b"q\1" + b"h\1" * 20_000 + b"e.", {"data/0": bytes(4 * 10**6)}
    ),
    "attributes of a parameter": archive(
        b"\x80\2ctorch._utils\n_rebuild_parameter_with_state\n(" + tensor() + b"\x89N}X\7\0\0\0isfiniteNstR.",
        {"data/0": bytes(12)},
    ),
    "state of a parameter": archive(
        b"\x80\2ctorch._utils\n_rebuild_parameter\n(" + tensor() + b"\x89NtR}X\7\0\0\0isfiniteNsb.",
        {"data/0": bytes(12)},
    ),
    "attributes of a dictionary": archive(b"\x80\2ccollections\nOrderedDict\n)R}X\4\0\0\0keysNsb."),
    "hooks": archive(b"\x80\2" + tensor().replace(b")RtR", b")RX\1\0\0\0aNstR") + b".", {"data/0": bytes(12)}),
    "a bare name": archive(b"\x80\2ctorch\nFloatStorage\n."),
    "a bare storage": archive(b"\x80\2" + FLOATS % (b"0", b"K\3") + b".", {"data/0": bytes(12)}),
    "another byte order": archive(b"\x80\2N.", {"byteorder": b"big"}),
    "two folders": two_folders(),
    "code": archive(b"\x80\2N.", {"code/a.py": b"import os", "constants.pkl": b"\x80\2)."}),
    "old: a storage left out": old_file(OLD, []),
    "old: a storage cut short": old_file(OLD, ["0"], THREE + bytes(8)),
    "old: of another length": old_file(OLD, ["0"], struct.pack("<q", 2) + bytes(12)),
    "old: more than it has": old_file(HUGE, ["0"], struct.pack("<q", 2**30)),
    "old: something behind": old_file(OLD, ["0"], THREE + bytes(13)),
    "old: a storage twice": old_file(OLD, ["0", "0"], 2 * (THREE + bytes(12))),
    "old: deep key": old_file(DEEP, []),
}


def test_the_attacks_are_files_but_for_what_they_attack(tmp_path):
    """A tensor made by the same means is read, of both kinds of file."""
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\2" + tensor() + b".", {"data/0": struct.pack("<3f", 1, 2, 3)}))
    assert read_torch(path).tolist() == [1, 2, 3]
    storage = struct.pack("<q3f", 3, 1, 2, 3)
    path.write_bytes(old_file(b"\x80\2" + tensor(old=True) + b".", ["0"], storage))
    assert read_torch(path).tolist() == [1, 2, 3]


def test_an_attack_is_refused_by_name_and_in_time(tmp_path):
    """The others are below, where they may end a process."""
    name, content = next(iter(ATTACKS.items()))
    (tmp_path / "a.pt").write_bytes(content)
    refuses(read_torch, tmp_path / "a.pt", what=name)


@pytest.mark.slow
def test_attacks_are_refused_by_name_and_in_time_and_take_neither_memory_nor_the_process(tmp_path):
    """Several would end a process by a signal or take gigabytes in torch.load."""

    def attack():
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        for name, content in ATTACKS.items():
            (tmp_path / "a.pt").write_bytes(content)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            refuses(read_torch, tmp_path / "a.pt", ValueError, name)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            assert grown < 200, f"{name}: {grown} MB"

    status, said = said_in_fork(attack)
    assert status == 0, said[-2000:]


def test_what_was_checked_is_what_is_used(tmp_path):
    """Of two archives in one file one is read, whole: never the checksums of one and the numbers of the other."""
    path = tmp_path / "a.pt"
    path.write_bytes(two_directories())
    try:
        found = read_torch(path).view(torch.int32).tolist()
    except ValueError:
        return
    assert found in ([0] * 3, [0x41414141] * 3)


@pytest.mark.parametrize("size", [5 * 10**8, 3 * 10**7])
def test_a_named_setting_lifts_the_limit_of_what_unfolds(size, tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\2" + tensor(size=size, stride=0) + b".", {"data/0": bytes(12)}))
    if size > 10**8:
        with pytest.raises(ValueError, match="FEDGEN_MAX_UNPACKED"):
            read_torch(path)
    monkeypatch.setenv("FEDGEN_MAX_UNPACKED", "2000000000")
    assert read_torch(path).shape == (size,)
    monkeypatch.setenv("FEDGEN_MAX_UNPACKED", "1e9")
    with pytest.raises(ValueError, match="bytes"):
        read_torch(path)
