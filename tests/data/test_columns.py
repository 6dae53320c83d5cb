import io

import datasets
import pytest

from fedgen.data import HuggingFace
from tests.data.tables import CLASSES, levels, picture, save, table


def test_one_parquet_file_without_the_librarys_notes_is_read(tmp_path):
    """As other programs write them: a struct of bytes and path, and plain integers."""
    from pyarrow import parquet

    table(kind=datasets.Value("int64"), labels=[7, 3, 7]).to_parquet(tmp_path / "train.parquet")
    plain = parquet.read_table(tmp_path / "train.parquet").replace_schema_metadata(None)
    parquet.write_table(plain, tmp_path / "train.parquet")
    train = HuggingFace(tmp_path / "train.parquet").load()
    assert levels(train) == [10, 20, 30]
    assert (train.labels.tolist(), train.classes) == ([7, 3, 7], tuple("01234567"))


@pytest.mark.parametrize(
    ("kind", "labels", "expected", "classes"),
    [
        ("string", ["owl", "ant", "owl"], [1, 0, 1], ("ant", "owl")),
        ("int32", [5, 2, 5], [5, 2, 5], tuple("012345")),
        ("float64", [5.0, 2.0, 5.0], [5, 2, 5], tuple("012345")),
    ],
)
def test_labels_without_names_keep_numbers_and_sort_texts_of_the_train_split(tmp_path, kind, labels, expected, classes):
    train = table(labels=labels, kind=datasets.Value(kind))
    test = table([40], labels[:1], kind=datasets.Value(kind))
    data = HuggingFace(save(datasets.DatasetDict(train=train, test=test), tmp_path / "pets"), test_split="test")
    assert (data.load().labels.tolist(), data.load().classes) == (expected, classes)
    assert data.load("test").labels.tolist() == expected[:1]


def test_without_labels_there_are_no_classes(tmp_path):
    train = HuggingFace(save(table(labels=None), tmp_path / "pets")).load()
    assert not train.is_labelled
    assert train.labels.tolist() == [0, 0, 0]


def test_columns_are_found_by_type_and_several_must_be_chosen_from(tmp_path):
    fine, coarse = datasets.ClassLabel(names=CLASSES), datasets.ClassLabel(names=["pet", "wild"])
    mask = (datasets.Image(), [picture(99)] * 3)
    data = table(
        kind=fine, label="fine", coarse=(coarse, [0, 1, 0]), mask=mask, label2=(datasets.Value("int8"), [1] * 3)
    )
    path = save(data, tmp_path / "pets")
    with pytest.raises(ValueError, match="label_column"):
        HuggingFace(path).load()
    assert HuggingFace(path, label_column="coarse").load().labels.tolist() == [0, 1, 0]
    assert levels(HuggingFace(path, image_column="mask", label_column="fine").load()) == [99] * 3
    renamed = save(data.rename_column("image", "photo"), tmp_path / "renamed")
    with pytest.raises(ValueError, match="image_column"):
        HuggingFace(renamed).load()


def test_a_column_of_bytes_holds_images_if_it_is_named(tmp_path):
    content = io.BytesIO()
    picture(50).save(content, "PNG")
    data = datasets.Dataset.from_dict({"png": [content.getvalue()]})
    assert levels(HuggingFace(save(data, tmp_path / "pets"), image_column="png").load()) == [50]
    with pytest.raises(ValueError, match="column"):
        HuggingFace(tmp_path / "pets").load()


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (None, [0, None, 1], "row 1: label None in 'label' is none of the 3 classes"),
        (None, [0, -1, 1], "row 1: label -1 in 'label' is none of the 3 classes"),
        (datasets.Value("string"), ["a", None, "b"], "labels 'label', item 1: None"),
        (datasets.Value("int32"), [0, -1, 5], "labels 'label', item 1: -1 is no number of a class"),
        (datasets.Value("float32"), [0.5, 1, 2], "labels 'label', item 0: 0.5"),
        (datasets.Value("float32"), [0.5, 1.5, 2.5], "labels 'label', item 0: 0.5; .* must be integers"),
        (
            datasets.List(datasets.Value("int8")),
            [[0], [1], [2]],
            "labels 'label' are one-hot|item 0: .* must be integers",
        ),
    ],
)
def test_labels_that_are_missing_or_of_another_kind_are_named(tmp_path, kind, labels, message):
    with pytest.raises(ValueError, match=message):
        HuggingFace(save(table(labels=labels, kind=kind), tmp_path / "pets")).load()


def test_test_labels_that_the_train_split_does_not_have_are_named(tmp_path):
    text = datasets.Value("string")
    splits = datasets.DatasetDict(train=table(labels=["a", "b", "a"], kind=text), test=table([40], ["c"], kind=text))
    with pytest.raises(ValueError, match="classes"):
        HuggingFace(save(splits, tmp_path / "pets"), test_split="test").load("test")
    named = datasets.ClassLabel(names=["dog", "cat"])
    splits = datasets.DatasetDict(train=table(), test=table([40], [0], kind=named))
    with pytest.raises(ValueError, match="ClassLabel"):
        HuggingFace(save(splits, tmp_path / "zoo"), test_split="test").load("test")


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [("string", ["f2", "f1", "f2"], ("f1", "f2")), ("int32", [10, 9, 10], ("9", "10"))],
)
def test_a_column_of_owners_is_read_where_it_is_named(tmp_path, kind, values, names):
    path = save(table(writer_id=(datasets.Value(kind), values)), tmp_path / "pets")
    train = HuggingFace(path, owner_column="writer_id").load()
    assert (train.owners.tolist(), train.owner_names) == ([1, 0, 1], names)
    assert HuggingFace(path).load().owners is None


def test_a_missing_owner_and_a_missing_column_of_owners_are_named(tmp_path):
    path = save(table(writer=(datasets.Value("string"), ["a", None, "b"])), tmp_path / "pets")
    with pytest.raises(ValueError, match="owners"):
        HuggingFace(path, owner_column="writer").load()
    with pytest.raises(ValueError, match="column"):
        HuggingFace(path, owner_column="owner").load()
