"""Readers of strangers' files open regular files alone, and nothing that unfolds into far more than it holds."""

import gzip
import os
import signal
import socket
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedgen.data.formats.image_files import read_header, read_image
from fedgen.data.sets.small_images import read_idx
from fedgen.data.text import TextFolder
from fedgen.evaluation.runs.rebuild import previous_checkpoint
from fedgen.evaluation.stored.stored_images import Reading
from fedgen.evaluation.stored.stored_sets import open_sets
from fedgen.federated.left_out import read_left_out
from fedgen.federated.run_files import read_state
from fedgen.io.files import read_json, read_npz, read_yaml
from fedgen.io.regular_files import is_regular, open_regular, read_regular
from fedgen.io.tensor_files import read_safetensors, read_torch
from fedgen.models.checkpoint_file import read_checkpoint
from tests.fuzz import test_arrays, test_data_files, test_texts, test_weights
from tests.fuzz.damage import refuses
from tests.quick import first_and_others

WRITERS = {
    **{f"npz: {name}": ("a.npz", None, read) for name, read in test_arrays.READERS.items()},
    **{f"text: {name}": case[:3] for name, case in test_texts.READERS.items()},
    **{f"weights: {name}": case[:3] for name, case in test_weights.READERS.items()},
    **{f"data: {name}": case[:3] for name, case in test_data_files.READERS.items()},
    "image": ("a.png", None, lambda path: read_image(path, 3)),
    "image's header": ("a.png", None, read_header),
    "json": ("a.json", None, read_json),
    "yaml": ("a.yaml", None, read_yaml),
    "torch": ("a.ckpt", None, read_torch),
    "checkpoint": ("a.ckpt", None, read_checkpoint),
    "safetensors": ("a.safetensors", None, read_safetensors),
    "left out": ("left_out.jsonl", None, lambda path: read_left_out(path.parent)),
    "state": ("state.txt", None, lambda path: read_state(path.parent)),
    "texts": ("a.txt", None, lambda path: TextFolder(path.parent).load("train")),
    "manifest of images": ("a.npz", None, lambda path: open_sets([path], Reading())),
}
NO_FILES = ("pipe", "link to a pipe", "device", "kernel", "socket", "folder")


def make(kind, path):
    """Something that is no regular file under a path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    elif kind in ("device", "kernel"):
        path.symlink_to("/dev/zero" if kind == "device" else "/proc/self/maps")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))  # the name of a socket has 108 characters at most


@contextmanager
def in_time(seconds=10):
    def stop(*_):
        raise AssertionError("it waits")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("kind", NO_FILES)
def test_only_regular_files_are_opened(kind, tmp_path):
    make(kind, tmp_path / "a")
    assert not is_regular(tmp_path / "a")
    with in_time(), pytest.raises(OSError, match=r"regular file|directory"):
        open_regular(tmp_path / "a")


@pytest.mark.parametrize("name", WRITERS)
def test_no_reader_waits_for_a_pipe_or_reads_a_device(name, tmp_path):
    file, write, read = WRITERS[name]
    path = tmp_path / file
    for kind in ("pipe", "device", "kernel"):
        if write is not None:
            write(path)
        path.unlink(missing_ok=True)
        make(kind, path)
        with in_time(), pytest.raises((OSError, ValueError)) as raised:
            read(path)
        assert path.name in str(raised.value) or str(tmp_path) in str(raised.value)
        path.unlink()


def test_links_to_regular_files_are_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b") == b"1"
    assert is_regular(tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")


def test_a_pipe_among_checkpoints_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "round=00001.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "round=00000.ckpt")
    with in_time(), pytest.warns(UserWarning, match="ckpt"):
        assert previous_checkpoint(tmp_path).name == "round=00000.ckpt"


# ---- bombs ----


@pytest.mark.slow
def test_arrays_that_unfold_a_thousand_times_are_refused_until_a_setting_allows_them(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        header = {"shape": (257 * 2**20,), "fortran_order": False, "descr": "|u1"}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(257):
            member.write(bytes(2**20))
    assert path.stat().st_size < 400_000
    for read in (read_npz, test_arrays.READERS["headers"], test_arrays.READERS["rows"]):
        with pytest.raises(ValueError, match="FEDGEN_MAX_UNPACKED"):
            read(path)
    monkeypatch.setenv("FEDGEN_MAX_UNPACKED", "400000000")
    assert read_npz(path)["x"].nbytes == 257 * 2**20


def test_images_that_unfold_a_thousand_times_are_refused_until_a_setting_allows_them(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("1", (10_000, 10_000)).save(path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow warns above 89 million, and refuses twice as many
    for read in (read_header, lambda path: read_image(path, 3)):
        with pytest.raises(ValueError, match="FEDGEN_MAX_UNPACKED"):
            read(path)
    monkeypatch.setenv("FEDGEN_MAX_UNPACKED", "400000000")
    assert read_header(path).size == (10_000, 10_000)


@pytest.mark.slow
def test_gzipped_idx_files_that_unfold_a_thousand_times_are_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(2**20)) * 257)
    with pytest.raises(ValueError, match="FEDGEN_MAX_UNPACKED"):
        read_idx(path)


YAMLS = {
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)),
    "keys of one hash": "{" + ", ".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 2000)) + "}",
    "keys of one hash in a set": "!!set {" + ", ".join(f"{i * (2**61 - 1)}" for i in range(1, 2000)) + "}",
    "a number of base 60": "a: 1" + ":59" * 10_000,
    "a float of base 60": "a: 1" + ":59" * 10_000 + ".5",
    "many parts": "[" + "1," * 20_000 + "1]",
    "long": "a: " + "x" * 2**21,
    "deep": "[" * 2000 + "]" * 2000,
    "itself": "a: &a [*a]",
    "a list for a key": "? [1, 2]\n: 3",
}


@pytest.mark.parametrize(("kind", "names"), first_and_others({"yaml": YAMLS}))
def test_recipes_that_take_far_more_time_than_their_length_are_refused(kind, names, tmp_path):
    path = tmp_path / "a.yaml"
    for name in names:
        path.write_text(YAMLS[name])
        refuses(read_yaml, path, what=name)


def test_merges_and_aliases_of_honest_recipes_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 2}\n3: 90\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1, "y": [1, 2]}, "b": {"x": 2, "y": [1, 2]}, 3: 90}
    (tmp_path / "a.yaml").write_text("")
    assert read_yaml(tmp_path / "a.yaml") is None


@pytest.mark.parametrize(("shape", "data"), [("(True,)", b"1"), (f"({2**64}, 0)", b"")])
def test_a_shape_that_numpy_does_not_take_is_refused_by_name(shape, data, tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data)
    refuses(read_npz, path)


def test_safetensors_are_read_from_the_bytes_that_were_opened(tmp_path, monkeypatch):
    """Not by a path that may lead elsewhere the second time."""
    save_file({"w": torch.zeros(2)}, tmp_path / "a.safetensors")
    opened = []
    monkeypatch.setattr("builtins.open", lambda path, *rest, **more: opened.append(path))
    assert read_safetensors(tmp_path / "a.safetensors")[0]["w"].tolist() == [0, 0]
    assert opened == []


def test_many_keys_whose_hashes_can_be_chosen_are_refused(tmp_path):
    """Each is looked for in the places of all others: half a megabyte took ten seconds, a whole one forty."""
    for kind in (lambda place: 2**24 + place, lambda place: place + 0.5):
        torch.save({kind(place): 0 for place in range(500)}, tmp_path / "a.pt")
        assert len(read_torch(tmp_path / "a.pt")) == 500
        torch.save({kind(place): 0 for place in range(501)}, tmp_path / "a.pt")
        (tmp_path / "a.yaml").write_text("".join(f"{kind(place)}: 0\n" for place in range(501)))
        for read, name in ((read_torch, "a.pt"), (read_yaml, "a.yaml")):
            with pytest.raises(ValueError, match="allowed"):
                read(tmp_path / name)
    torch.save(dict.fromkeys(range(2000)), tmp_path / "a.pt")
    assert len(read_torch(tmp_path / "a.pt")) == 2000
