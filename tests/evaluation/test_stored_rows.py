import io
import zipfile

import numpy as np
import pytest

from fedgen.evaluation.stored.stored_images import read_rows
from fedgen.io.files import read_headers

ROWS = np.arange(7 * 2 * 3, dtype=np.uint8).reshape(7, 2, 3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_headers_and_rows_are_those_of_the_arrays(tmp_path, save):
    save(tmp_path / "a.npz", rows=ROWS, mu=np.zeros(3))
    headers = read_headers(tmp_path / "a.npz")
    assert (headers["rows"].shape, headers["rows"].dtype) == ((7, 2, 3), np.uint8)
    assert (headers["mu"].shape, headers["mu"].dtype) == ((3,), np.float64)
    parts = list(read_rows(tmp_path / "a.npz", "rows", 3))
    assert [len(part) for part in parts] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(parts), ROWS)


def test_no_more_is_read_than_is_asked_for(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", rows=np.zeros((1000, 100), np.uint8))
    asked = []
    read = zipfile.ZipExtFile.read

    def counted(self, n=-1):
        asked.append(n)
        return read(self, n)

    monkeypatch.setattr("zipfile.ZipExtFile.read", counted)
    next(read_rows(tmp_path / "a.npz", "rows", 2))
    assert max(asked) == 200


def test_other_files_damaged_ones_and_pickles_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="text"):
        read_headers(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", rows=np.array([[{}]]))
    np.savez(tmp_path / "columns.npz", rows=np.asfortranarray(np.zeros((3, 2))))
    for name in ("objects", "columns"):
        with pytest.raises(ValueError, match="objects"):
            next(read_rows(tmp_path / f"{name}.npz", "rows", 2))
    whole = io.BytesIO()
    np.save(whole, ROWS)
    short = whole.getvalue()[:-10]
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("rows.npy", short)
    for read in (read_headers, lambda path: list(read_rows(path, "rows", 3))):
        with pytest.raises(ValueError, match="short"):
            read(tmp_path / "short.npz")
