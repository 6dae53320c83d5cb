"""Large arrays in .npz files: what they are without reading them, and their rows a batch at a time.

np.load reads an array of an .npz file whole; 50,000 images of 256 x 256 are 10 GB.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedgen.io.archives import Header, array_names, open_archive, open_array
from fedgen.io.files import ARRAYS


def read_headers(path: str | Path) -> dict[str, Header]:
    """The arrays of an .npz file by name, none of them read.

    Raises:
        ValueError: if it is not an .npz file, or one whose arrays are shorter than they say.
    """
    with open_archive(path, ARRAYS) as archive:
        headers = {}
        for name in array_names(archive):
            member, headers[name] = open_array(archive, name)
            member.close()
        return headers


def read_rows(path: str | Path, name: str, batch_size: int) -> Iterator[np.ndarray]:
    """The rows of one array, `batch_size` at a time.

    Raises:
        ValueError: for pickled objects, column-major arrays and damaged files; a wrong checksum is found with the last
            batch.
    """
    with open_archive(path, ARRAYS) as archive:
        member, header = open_array(archive, name)
        check_rows(header)
        row = math.prod(header.shape[1:]) * header.dtype.itemsize
        with member:
            for start in range(0, header.shape[0], batch_size):
                count = min(batch_size, header.shape[0] - start)
                data = member.read(count * row)
                if len(data) < count * row:
                    raise ValueError(f"it ends after {start} of {header.shape[0]} rows")
                yield np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])


def check_rows(header: Header) -> None:
    """Raise ValueError for an array that does not have its rows one after another."""
    if header.dtype.hasobject or header.fortran:
        raise ValueError("its array is of Python objects, or column-major; store it with np.ascontiguousarray")
