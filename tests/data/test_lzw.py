"""LZW streams as `compress` writes them."""

import random
import shutil
import subprocess

import pytest

from fedgen.data.text import decompress_lzw
from tests.data.bible_file import compress_lzw, pack


def some_text(length, letters=b"abcdefgh \n", seed=0):
    return bytes(random.Random(seed).choices(letters, k=length))


def test_a_stream_by_hand():
    """ "ababab": a, b, then 257 = "ab" twice, each code of 9 bits."""
    assert decompress_lzw(pack([97, 98, 257, 257])) == b"ababab"


def test_a_code_may_be_the_one_that_it_defines():
    """ "aaa": a, then 257 = "a" + its own first letter."""
    assert decompress_lzw(pack([97, 257])) == b"aaa"


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 3000, 40_000])
def test_what_was_compressed_comes_back(length):
    text = some_text(length)
    assert decompress_lzw(compress_lzw(text)) == text


def test_the_table_stops_growing_at_its_largest_width():
    text = some_text(30_000, bytes(range(256)))
    assert decompress_lzw(compress_lzw(text, 10), 10) == text


def test_the_table_begins_anew_after_its_clear_code():
    text = some_text(5000)
    assert decompress_lzw(compress_lzw(text, clear_after=700)) == text


@pytest.mark.skipif(shutil.which("gzip") is None, reason="there is no gzip to compare with")
@pytest.mark.parametrize("clear_after", [None, 700])
def test_gzip_reads_the_same(clear_after):
    """An independent reader of the format, so that writer and reader here are not wrong alike."""
    text = some_text(20_000)
    stream = compress_lzw(text, clear_after=clear_after)
    found = subprocess.run(["gzip", "-dc"], input=b"\x1f\x9d\x90" + stream, capture_output=True, check=True)
    assert found.stdout == text == decompress_lzw(stream)


@pytest.mark.parametrize("codes", [[300], [257], [97, 258], [97, 98, 400]])
def test_codes_that_are_not_known_are_refused(codes):
    with pytest.raises(ValueError, match="LZW"):
        decompress_lzw(pack(codes))


def test_a_stream_that_is_longer_than_it_says_is_refused():
    with pytest.raises(ValueError, match="longer"):
        decompress_lzw(compress_lzw(b"a" * 11), limit=10)
    assert decompress_lzw(compress_lzw(b"a" * 10), limit=10) == b"a" * 10
