"""Damaged files of data sets: pickled batches, idx files, images, tables of the `datasets` library.

Most forms carry no checksum of what they hold (gzip and PNG do): what is read has the form that was asked for, and
nothing in a file runs, hangs or takes memory by the gigabyte.
"""

import gzip
import pickle
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data import HuggingFace
from fedgen.data.formats.image_files import FORMATS, read_header, read_image
from fedgen.data.sets.pickled_images import PickledBatch, read_pickle
from fedgen.data.sets.small_images import read_idx
from tests.data.published import idx
from tests.data.tables import save, table
from tests.fuzz.damage import fuzz, refuses

ROWS = np.arange(4 * 12, dtype=np.uint8).reshape(4, 12)


def write_batch(path, protocol=2):
    path.write_bytes(pickle.dumps({b"data": ROWS, b"labels": [1, 2, 3, 0], b"batch_label": b"one"}, protocol))


def read_batch(path):
    batch = PickledBatch.open(path, "https://example.org")
    return batch.images(2), batch.labels("labels", 0, 4)


def is_batch(found, _):
    images, labels = found
    in_range = len(labels) == 0 or 0 <= labels.min() <= labels.max() < 4
    return images.dtype == np.uint8 and images.shape == (len(labels), 3, 2, 2) and in_range


def is_array(found, _):
    return found.dtype == np.uint8


# name: file, writer, reader, whether what is read has its form (None: it must be the same), least refusals
READERS = {
    "pickle": ("batch_1", write_batch, read_pickle, lambda *_: True, 300),
    "batch": ("batch_1", write_batch, read_batch, is_batch, 300),
    "newer batch": ("batch_1", lambda path: write_batch(path, 4), read_batch, is_batch, 300),
    "idx": ("a-idx1-ubyte", lambda path: path.write_bytes(idx(ROWS)), read_idx, is_array, 300),
    "gzipped idx": ("a-idx.gz", lambda path: path.write_bytes(gzip.compress(idx(ROWS), mtime=0)), read_idx, None, 900),
}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_are_refused_or_have_their_form(kind, tmp_path, copies):
    name, write, read, form, least = READERS[kind]
    write(tmp_path / name)
    # a pickle of a number or a list is data, and read_pickle leaves it to others what of data is a batch
    fuzz(read, tmp_path / name, form, copies=copies, least=least)


def write_image(path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "tif", "ppm", "gif"])
def test_damaged_images_are_refused_or_are_images(suffix, tmp_path, copies):
    path = tmp_path / f"a.{suffix}"
    write_image(path)

    def read(path):
        with warnings.catch_warnings():  # Pillow warns of what it mends, as of a TIFF's tags
            warnings.simplefilter("ignore")
            return read_header(path).size, read_image(path, 3)

    def is_image(found, _):
        size, image = found
        return image.dtype == torch.uint8 and image.shape == (3, *size)

    fuzz(read, path, is_image, copies=copies, least=50)


@pytest.mark.parametrize("size", ["60000 60000", "999999999 999999999", "-3 4", "0 4"])
def test_an_image_larger_than_any_picture_is_refused_before_memory_is_taken(size, tmp_path):
    path = tmp_path / "a.ppm"
    path.write_bytes(f"P6 {size} 255\n".encode() + bytes(100))
    assert "PPM" in FORMATS
    refuses(lambda path: read_image(path, 3), path)


@pytest.mark.parametrize("sides", [(2**32 - 1,), (2**31, 2**31), (2**32 - 1,) * 255])
def test_an_idx_file_larger_than_its_content_is_refused(sides, tmp_path):
    path = tmp_path / "a-idx"
    path.write_bytes(bytes([0, 0, 8, len(sides)]) + np.array(sides, ">u4").tobytes() + bytes(12))
    refuses(read_idx, path)


@pytest.mark.parametrize("name", ["data-00000-of-00001.arrow", "state.json", "dataset_info.json", "train.parquet"])
def test_damaged_tables_are_refused_or_have_their_form(name, tmp_path, copies):
    """Arrow maps its files into memory and would read beyond them: a process died of it."""
    folder = tmp_path / "saved"
    folder.mkdir()
    table().to_parquet(folder / name) if name.endswith("parquet") else save(table(), folder)

    def read(path):
        try:
            return HuggingFace(folder).load("train")
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}" if str(folder) in str(error) else str(error)) from error

    def is_table(found, expected):
        return len(found) == len(found.labels) and found.inputs.shape[1:] == expected.inputs.shape[1:]

    # the library finds in the Arrow file what its description leaves out
    valid = ("JSON object",) if name == "dataset_info.json" else ()
    fuzz(read, folder / name, is_table, valid=valid, copies=copies, least=300)
