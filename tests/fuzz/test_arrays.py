"""Damaged .npz files: statistics, projections, partitions, stored features and images. Each member has a checksum."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch

from fedgen.clients.partitions import IID, load_partition, save_partition
from fedgen.data import Examples
from fedgen.evaluation.stored.stored_images import Reading, read_rows
from fedgen.evaluation.stored.stored_sets import open_sets
from fedgen.io.files import read_headers, read_npz
from fedgen.statistics import Projection, load_npz, save_npz, summarize
from tests.fuzz.damage import equal, fuzz, overwrite, refuses
from tests.quick import first_and_others

FEATURES = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))


def read_stored(path):
    """All that `fedgen evaluate` takes from one set."""
    (stored,) = open_sets([path], Reading())
    if stored.images is not None:
        return stored.count, list(stored.images.batches(3, 4))
    return stored.count, stored.provenance, stored.load()


READERS = {
    "arrays": read_npz,
    "compressed": read_npz,
    "headers": read_headers,
    "rows": lambda path: list(read_rows(path, "x", 7)),
    "compressed rows": lambda path: list(read_rows(path, "x", 7)),
    "statistics": load_npz,
    "projection": Projection.load,
    "partition": load_partition,
    "stored statistics": read_stored,
    "stored features": read_stored,
    "stored images": read_stored,
}
PLAIN = ("npz", "empty zip")  # what readers of any arrays take
VALID = {"arrays": PLAIN, "compressed": PLAIN, "headers": (*PLAIN, "npz of objects")} | dict.fromkeys(
    ("rows", "compressed rows"), ("npz",)
)


def write(kind, path):
    arrays = {"x": np.arange(30.0), "n": np.asarray(3), "t": np.asarray("hello")}
    images = np.arange(10 * 4 * 4 * 3, dtype=np.uint8).reshape(10, 4, 4, 3)
    if kind in ("statistics", "stored statistics"):
        save_npz(path, summarize(FEATURES), "pixels", "0" * 32, "none")
    elif kind == "projection":
        Projection.fit(FEATURES, 3, "pixels", "public").save(path)
    elif kind == "partition":
        labels = torch.arange(20) % 4
        save_partition(
            path, IID(3), Examples(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), labels, "toy/train", tuple("abcd")), 0
        )
    elif kind == "stored features":
        np.savez(path, features=FEATURES.numpy(), embedding="pixels", weights="0" * 32, resize="none")
    elif kind == "stored images":
        np.savez_compressed(path, arr_0=images, arr_1=np.arange(10))
    else:
        (np.savez_compressed if "compressed" in kind else np.savez)(path, **arrays)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.npz"


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_are_refused_or_harmless(path, kind, copies):
    # of headers nothing is read that a checksum covers
    least = 100 if kind == "headers" else 400
    fuzz(READERS[kind], write(kind, path), valid=VALID.get(kind, ()), copies=copies, least=least)


@pytest.mark.parametrize("step", [31, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_flipped_bit_is_taken(path, save, step):
    """Every third bit of a file, of its headers and its directory too; among the quick tests some of them."""
    save(path, x=np.arange(3.0), n=np.asarray(3))
    content, expected, refused = path.read_bytes(), read_npz(path), 0
    for place in range(0, 8 * len(content), step):
        copy = bytearray(content)
        copy[place // 8] ^= 1 << place % 8
        overwrite(path, copy)
        try:
            assert equal(read_npz(path), expected), f"bit {place % 8} of byte {place // 8}"
        except ValueError:
            refused += 1
    assert refused > 4 * len(content) // step  # the others are dates, and what the directory repeats


def rewrite(path, **changes):
    """The file with other arrays, None for none; of settings, those of a partition, single ones."""
    arrays = read_npz(path)
    if isinstance(settings := changes.get("settings"), dict):
        stored = json.loads(str(arrays["settings"])) | settings
        changes["settings"] = json.dumps({key: value for key, value in stored.items() if value is not None})
    kept = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(path, allow_pickle=True, **kept)


NAN, INF, OBJECT = float("nan"), float("inf"), np.array([{}], dtype=object)
EYE, RECORDS = np.eye(5), np.zeros(5, dtype=[("a", "f8")])
STATISTICS = [
    *[{key: None} for key in ("mu", "sigma")],
    *[{"mu": mu} for mu in (np.zeros(4), np.zeros((1, 5)), np.zeros(0), np.float64(0), np.full(5, NAN))],
    *[
        {"mu": mu}
        for mu in (np.full(5, INF), np.zeros(5, complex), np.full(5, "0"), np.zeros(5, bool), OBJECT, RECORDS)
    ],
    *[{"sigma": sigma} for sigma in (np.eye(4), np.ones(5), np.eye(5)[None], -EYE, np.triu(np.ones((5, 5))))],
    *[
        {"sigma": sigma}
        for sigma in (EYE * NAN, np.full((5, 5), INF), EYE + 0j, EYE.astype(str), EYE * 1.7e308, EYE > 0)
    ],
    *[{"count": count} for count in (NAN, INF, -INF, -1, -40.0, 0, 0.5, "40", [40.0], 40 + 0j, None, True)],
    *[{"ddof": ddof} for ddof in (NAN, INF, -1, 40, 41, "1", [1.0])],
    *[{key: word} for key in ("embedding", "weights", "resize") for word in (3.0, ["a", "b"], b"pixels", OBJECT)],
]
PROJECTIONS = [
    *[{key: None} for key in ("mean", "components", "explained", "embedding", "public", "count", "fingerprint")],
    *[{"mean": mean} for mean in (np.zeros(5), np.zeros(4), np.zeros(5, complex), np.full(5, "0"), np.full(5, NAN))],
    *[{"components": rows} for rows in (np.eye(5)[:3], np.ones((3, 5)), np.zeros((0, 5)), np.eye(5)[0], np.eye(3))],
    *[{"components": rows} for rows in (np.eye(5)[:3] * NAN, np.eye(5)[:3] + 0j, OBJECT)],
    *[{"explained": share} for share in (NAN, INF, 0.0, -0.5, 1.5, "1", [0.5])],
    *[{"count": count} for count in (NAN, -1, 41, "40")],
    *[{key: word} for key in ("embedding", "public", "fingerprint") for word in ("other", 3, b"pixels")],
]
INDICES, OFFSETS = np.arange(20), np.array([0, 7, 14, 20])
PARTITIONS = [
    *[{key: None} for key in ("indices", "offsets", "settings")],
    *[{"indices": indices} for indices in (INDICES * 1.0, INDICES.astype(str), INDICES[:, None], INDICES[:19], OBJECT)],
    *[{"indices": indices} for indices in (INDICES - 1, INDICES + 1, INDICES // 2, INDICES + 2**62, INDICES > 3)],
    *[{"offsets": offsets} for offsets in (OFFSETS * 1.0, OFFSETS - 1, OFFSETS + 1, OFFSETS[::-1], OFFSETS[:0])],
    *[{"offsets": np.array(offsets)} for offsets in ([0, 20], [0, 14, 7, 20], [0, 7, 7, 20], [0, -6, 14, 20], [0, 9])],
    *[{"offsets": np.array(offsets)} for offsets in ([0, 5, 9, 14, 20], [[0, 7, 14, 20]], 20)],
    *[{"settings": text} for text in ("", "{", "[]", "3", "null", "[" * 9999, "1" * 9999, b"{}", 3.0)],
    *[{"settings": {"version": version}} for version in (None, 0, 1, 3, 99, -1, "2", 2.0, True, [2])],
    *[{"settings": {key: None}} for key in ("data", "num_examples", "fingerprint", "names", "partition", "seed")],
    *[{"settings": {"num_examples": number}} for number in (-1, 19, 20.0, "20", True, [20])],
    *[{"settings": {"names": names}} for names in ([], ["a"], ["a", "b", 3], "abc", {"a": 1, "b": 2, "c": 3})],
    *[{"settings": {"seed": seed}} for seed in ("0", 0.5, [0])],
    *[{"settings": {key: 3}} for key in ("data", "fingerprint", "partition", "owners_fingerprint", "of_nobody")],
]
FEATURES_CHANGED = [
    *[{"features": features} for features in (FEATURES.numpy() * NAN, np.full((40, 5), INF), FEATURES.numpy() + 0j)],
    *[{"features": features} for features in (FEATURES.numpy().astype(str), FEATURES.numpy().astype(int), OBJECT)],
    *[
        {"features": features}
        for features in (np.zeros((40, 0)), np.zeros((0, 5)), np.zeros((1, 5)), np.zeros(40), None)
    ],
    *[{key: word} for key in ("embedding", "weights", "resize") for word in (3.0, b"pixels")],
    *[{"count": count} for count in (NAN, -1, "40")],
]
IMAGES_CHANGED = [
    *[{"arr_0": np.zeros(shape, np.uint8)} for shape in ((10, 4, 4, 2), (10, 4, 4), (1, 4, 4, 3), (0, 4, 4, 3))],
    *[{"arr_0": np.zeros(shape, np.uint8)} for shape in ((10, 0, 4, 3), (10, 4, 0, 3))],
    *[{"arr_0": np.zeros((10, 4, 4, 3), kind)} for kind in (np.int8, bool, float, complex, "U1", object)],
    {"arr_0": np.asfortranarray(np.zeros((10, 4, 4, 3), np.uint8))},
    {"arr_0": None},
    {"arr_1": np.zeros((10, 4, 4, 3), np.uint8)},
]
CHANGED = {
    "statistics": STATISTICS,
    "projection": PROJECTIONS,
    "partition": PARTITIONS,
    "stored features": FEATURES_CHANGED,
    "stored images": IMAGES_CHANGED,
}


@pytest.mark.parametrize(("kind", "changes"), first_and_others(CHANGED))
def test_whole_files_of_wrong_content_are_refused(path, kind, changes):
    for change in changes:
        rewrite(write(kind, path), **change)
        refuses(READERS[kind], path, what=change)


def test_statistics_that_do_not_say_are_taken_as_before(path):
    """The checks above refuse what is there and wrong, not what peers leave out."""
    rewrite(write("statistics", path), embedding=None, weights=None, resize=None, ddof=None, more=np.zeros(3))
    assert load_npz(path)[1].count == 40


def promise(path, shape, file_size=None):
    """An .npz file of one small array whose header, and directory if asked, promise a large one."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"shape": shape, "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(8000))
        if file_size is not None:
            archive.getinfo("x.npy").file_size = file_size + len(header.getvalue())


@pytest.mark.parametrize("shape", [(2**28,), (2**40,), (10**30,), (-1,), (2**62, 4), (1000, 0), ()])
def test_arrays_larger_than_their_file_are_refused_before_memory_is_taken(path, shape):
    for read in (read_npz, read_headers, READERS["rows"]):
        promise(path, shape)
        refuses(read, path)
        if 0 < np.prod(shape, dtype=float) < 2**60:
            promise(path, shape, file_size=8 * int(np.prod(shape)))
            refuses(read, path)


def test_a_partition_of_more_examples_than_memory_holds_is_read_by_what_it_deals(path):
    rewrite(write("partition", path), settings={"num_examples": 10**15})
    assert load_partition(path).num_examples == 10**15


@pytest.mark.parametrize("spoil", ["count", "twice", "folder", "lzma", "locked", "other"])
def test_archives_that_readers_understand_in_two_ways_are_refused(path, spoil):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA if spoil == "lzma" else zipfile.ZIP_STORED) as archive:
        content = io.BytesIO()
        np.save(content, np.arange(3.0))
        archive.writestr("x.npy", content.getvalue())
        if spoil == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("x.npy", content.getvalue())
        elif spoil == "folder":
            archive.getinfo("x.npy").external_attr |= 0x10
        elif spoil == "locked":
            archive.getinfo("x.npy").flag_bits |= 1
        elif spoil == "other":
            archive.writestr("readme.txt", "hello")
    if spoil == "count":
        content = bytearray(path.read_bytes())
        content[-12] += 1  # the number of members in the last 22 bytes
        path.write_bytes(content)
    refuses(read_npz, path)
