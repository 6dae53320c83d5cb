import pickle

import numpy as np
import pytest

from fedgen.data.sets.pickled_images import PickledBatch


def batch(tmp_path, contents):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(contents, protocol=2))
    return PickledBatch.open(tmp_path / "data_batch_1", "https://example.org")


def images(count=2, values=12):
    return np.arange(count * values, dtype=np.uint8).reshape(count, values)


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_row_is_a_red_a_green_and_a_blue_plane(tmp_path, as_bytes):
    key = b"data" if as_bytes else "data"
    assert batch(tmp_path, {key: images()}).images(2)[1].tolist() == [
        [[12, 13], [14, 15]],
        [[16, 17], [18, 19]],
        [[20, 21], [22, 23]],
    ]


def test_labels_count_from_zero(tmp_path):
    labels = batch(tmp_path, {"data": images(3), "labels": [1, 3, 2]}).labels("labels", first=1, count=3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 2, 1]


def test_a_pickle_without_a_dictionary_is_named(tmp_path):
    with pytest.raises(ValueError, match="data_batch_1"):
        batch(tmp_path, [1, 2])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, "NoneType"),
        ([1], "list"),
        (images(2, 10), r"uint8 \[2, 10\]"),
        (images().astype(float), r"float64 \[2, 12\]"),
        (images().reshape(2, 3, 4), r"uint8 \[2, 3, 4\]"),
    ],
)
def test_data_of_another_kind_or_size_are_named(tmp_path, data, found):
    with pytest.raises(ValueError, match=rf"data_batch_1 .*2 x 2 images: 'data' must be uint8 \[N, 12\], not {found}"):
        batch(tmp_path, {"data": data}).images(2)


@pytest.mark.parametrize("labels", [None, [0], [0, "1"], [0, True], np.array([0, 1])])
def test_labels_that_are_not_one_integer_an_image_are_named(tmp_path, labels):
    with pytest.raises(ValueError, match="data_batch_1"):
        batch(tmp_path, {"data": images(), "labels": labels}).labels("labels", 0, 10)


@pytest.mark.parametrize(("labels", "span"), [([0, 3], "0 to 3"), ([4, 1], "1 to 4")])
def test_labels_out_of_range_are_named_as_the_file_counts(tmp_path, labels, span):
    with pytest.raises(ValueError, match=f"'labels' run from {span}, not 1 to 3"):
        batch(tmp_path, {"data": images(), "labels": labels}).labels("labels", first=1, count=3)
