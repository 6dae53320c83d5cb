"""Small files that would take memory far beyond their length: one limit, which the error names with its setting."""

import io
import struct
from functools import partial

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from fedgen.data import CelebA, HuggingFace, ImageManifest
from fedgen.data.formats.image_files import read_header, read_image
from fedgen.data.formats.image_folder import read_images
from fedgen.data.formats.tables import open_tables
from fedgen.data.text import read_books
from fedgen.io.files import read_csv
from fedgen.reports.logged import Logs
from tests.data.bible_file import compress_lzw

LIMIT = 2_000_000
REFUSAL = r"unfolds from \d+ bytes into \d+, more than \d+; .* environment variable FEDGEN_MAX_UNPACKED="


@pytest.fixture(autouse=True)
def low_limit(monkeypatch):
    monkeypatch.setattr("fedgen.io.regular_files._ALWAYS", LIMIT)


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", **options)
    return file.getvalue()


def write_rows(path, pictures, **columns):
    """A Parquet file with a column of pictures; repeated values stand in a dictionary once."""
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    stored = pyarrow.array([{"bytes": one, "path": None} for one in pictures], image)
    parquet.write_table(pyarrow.table({"image": stored, **columns}), path, compression="zstd")
    return path


BLANK = png(np.zeros((100, 100, 3), np.uint8))


def repeated_text(path):
    """Some kilobytes whose column has 10 MB."""
    write_rows(path / "a.parquet", [BLANK] * 1000, text=["x" * 10_000] * 1000)
    return list(open_tables(path / "a.parquet")["a"].column("text"))


def repeated_text_to_disk(path):
    write_rows(path / "a.parquet", [BLANK] * 1000, text=["x" * 10_000] * 1000)
    return open_tables(path / "a.parquet")["a"].rows()


def many_rows(path):
    parquet.write_table(pyarrow.table({"label": np.zeros(1_000_000, np.int64)}), path / "a.parquet")
    return open_tables(path / "a.parquet")


def lists_of_zeros(path):
    """Some hundred bytes whose 20 rows have 8 MB, which Arrow would make at once."""
    zeros = pyarrow.array([np.zeros(50_000, np.int64)] * 20, pyarrow.list_(pyarrow.int64()))
    parquet.write_table(pyarrow.table({"label": zeros}), path / "a.parquet", compression="zstd")
    return open_tables(path / "a.parquet")


def binaries_of_zeros(path):
    zeros = pyarrow.array([bytes(200_000)] * 20, pyarrow.binary(200_000))
    parquet.write_table(pyarrow.table({"image": zeros}), path / "a.parquet", compression="zstd")
    return open_tables(path / "a.parquet")


def one_picture_in_many_rows(path):
    return HuggingFace(write_rows(path / "a.parquet", [BLANK] * 5000), train_split="a").load("train")


def one_file_in_many_rows(path):
    """The rows name a file beside the table."""
    (path / "0.png").write_bytes(BLANK)
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = pyarrow.array([{"bytes": None, "path": "0.png"}] * 5000, image)
    parquet.write_table(pyarrow.table({"image": rows}), path / "a.parquet")
    return HuggingFace(path / "a.parquet", train_split="a").load("train")


def one_picture_listed_again(path):
    (path / "a.png").write_bytes(BLANK)
    (path / "a.csv").write_text("path,client\n" + "a.png,b\n" * 5000)
    return ImageManifest(path / "a.csv").load("train")


def one_picture_under_many_names(path):
    (path / "0.png").write_bytes(BLANK)
    for number in range(1, 100):
        (path / f"{number}.png").symlink_to("0.png")
    return read_images(sorted(path.iterdir()), "linked", partial(read_image, channels=3))


def list_of_faces(path):
    folder = path / "img_align_celeba"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.jpg").touch()
    (path / "list_eval_partition.txt").write_text("".join(f"{number}.jpg 0\n" for number in range(200)))
    return CelebA(path).load("train")


def windows_of_text(path):
    window = compress_lzw(bytes(20_000))
    start = 0x54 + 8 + 4 * 201 + 3
    ends = [start + len(window) * number for number in range(201)]
    header = b"EC02" + b"".ljust(0x50, b"\0") + struct.pack(">2I", 20_000, 200)
    (path / "a").write_bytes(header + struct.pack(">201I", *ends) + b"\x1f\x9d\x90" + window * 200)
    return read_books(path / "a")


def table_of_values(path):
    (path / "a.csv").write_text("step,a\n" + "1,2\n" * 50_000)
    return read_csv(path / "a.csv")


def webp(path):
    Image.new("RGB", (600, 600)).save(path / "a.webp", lossless=True)
    return read_image(path / "a.webp", 3)


HOSTILE = [
    repeated_text,
    repeated_text_to_disk,
    many_rows,
    lists_of_zeros,
    binaries_of_zeros,
    one_picture_in_many_rows,
    one_file_in_many_rows,
    one_picture_listed_again,
    one_picture_under_many_names,
    list_of_faces,
    windows_of_text,
    table_of_values,
    webp,
]


@pytest.mark.parametrize("read", HOSTILE, ids=lambda read: read.__name__)
def test_small_files_that_unfold_are_refused_with_the_setting(read, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=REFUSAL) as raised:
        read(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("read", [table_of_values, webp, repeated_text], ids=lambda read: read.__name__)
def test_the_setting_allows_what_it_names(read, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGEN_MAX_UNPACKED", "100000000")
    read(tmp_path)


def test_a_report_names_a_table_that_is_too_large_and_the_setting(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,a\n" + "1,2\n" * 50_000)
    logs = Logs(tmp_path)
    logs.refresh()
    assert logs.series == {}
    assert "FEDGEN_MAX_UNPACKED" in logs.unread[0]


def test_distinct_flat_pictures_are_read_one_by_one_but_not_all_at_once(tmp_path):
    """In memory they would take 5 MB of a file of 30 kB."""
    pictures = [png(np.full((100, 100, 3), level, np.uint8)) for level in range(128)] + [BLANK] * 50
    path = write_rows(tmp_path / "a.parquet", pictures)
    data = HuggingFace(path, train_split="a", in_memory=False).load("train")
    assert data.inputs[[7, 170]].flatten(1).unique(dim=1).tolist() == [[7], [0]]
    with pytest.raises(ValueError, match=rf"in_memory=True\), {REFUSAL}"):
        HuggingFace(path, train_split="a").load("train")
    assert HuggingFace(path, size=16, train_split="a").load("train").inputs.shape == (178, 3, 16, 16)


@pytest.mark.slow
def test_a_large_table_of_photographs_is_read(tmp_path):
    noise = torch.randint(0, 256, (300, 60, 60, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    path = write_rows(tmp_path / "a.parquet", [png(one.numpy(), compress_level=1) for one in noise], label=[3] * 300)
    assert path.stat().st_size > LIMIT
    found = HuggingFace(path, train_split="a").load("train")
    assert torch.equal(found.inputs, noise.permute(0, 3, 1, 2))


def test_a_table_of_the_names_of_photographs_is_read(tmp_path):
    noise = torch.randint(0, 256, (40, 140, 140, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for number, one in enumerate(noise):
        (tmp_path / f"{number}.png").write_bytes(png(one.numpy(), compress_level=1))
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = pyarrow.array([{"bytes": None, "path": f"{number}.png"} for number in range(40)], image)
    parquet.write_table(pyarrow.table({"image": rows}), tmp_path / "a.parquet")
    assert torch.equal(HuggingFace(tmp_path, train_split="a").load("train").inputs, noise.permute(0, 3, 1, 2))


def test_photographs_listed_a_few_times_are_read(tmp_path):
    (tmp_path / "a.png").write_bytes(BLANK)
    assert read_images([tmp_path / "a.png"] * 60, "listed", partial(read_image, channels=3)).shape == (60, 3, 100, 100)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif"])
def test_large_pictures_are_the_same_in_strips(suffix, tmp_path, monkeypatch):
    pixels = torch.randint(0, 256, (50, 70, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(pixels.numpy()).save(tmp_path / f"a.{suffix}")
    for channels in (1, 3):
        whole = read_image(tmp_path / f"a.{suffix}", channels)
        monkeypatch.setattr("fedgen.data.formats.image_files._AT_ONCE", 500)
        assert torch.equal(read_image(tmp_path / f"a.{suffix}", channels), whole)
        monkeypatch.undo()
    assert read_header(tmp_path / f"a.{suffix}").size == (50, 70)
