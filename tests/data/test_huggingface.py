import io
import json
import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data import HuggingFace

CLASSES = ["cat", "dog", "fox"]


@pytest.fixture(autouse=True)
def without_progress_bars():
    datasets.disable_progress_bars()


def picture(value=0, size=(6, 4), mode="RGB"):
    """An image of one grey level; size is (width, height)."""
    return Image.new(mode, size, value if len(mode) == 1 else (value,) * len(mode))


def table(values=(10, 20, 30), labels=(0, 2, 1), kind=None, label="label", **columns):
    """A Dataset with an image column and, unless None, labels (with names by default)."""
    features = {"image": datasets.Image()}
    rows = {"image": [picture(value) if isinstance(value, int) else value for value in values]}
    if labels is not None:
        features[label], rows[label] = kind or datasets.ClassLabel(names=CLASSES), list(labels)
    for name, (feature, content) in columns.items():
        features[name], rows[name] = feature, content
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def save(data, path):
    data.save_to_disk(path)
    return path


def levels(examples):
    return examples.inputs[:, 0, 0, 0].tolist()


def test_a_saved_dataset_is_the_train_split(tmp_path):
    train = HuggingFace(save(table(), tmp_path / "pets")).load()
    assert train.inputs.shape == (3, 3, 4, 6)
    assert levels(train) == [10, 20, 30]
    assert train.labels.tolist() == [0, 2, 1]
    assert (train.name, train.classes) == ("pets/train", ("cat", "dog", "fox"))


def test_a_dataset_dict_has_the_splits_asked_for(tmp_path):
    splits = datasets.DatasetDict(train=table(), validation=table([40], [1]), test=table([50], [2]))
    save(splits, tmp_path / "pets")
    data = HuggingFace(tmp_path / "pets", test_split="validation", name="zoo")
    assert levels(data.load()) == [10, 20, 30]
    assert levels(data.load("test")) == [40]
    assert data.load("test").name == "zoo/test"
    assert levels(HuggingFace(tmp_path / "pets", train_split="test").load()) == [50]


def test_without_a_name_for_it_there_is_no_test_split(tmp_path):
    with pytest.raises(ValueError, match="pets has no test split"):
        HuggingFace(tmp_path / "pets").load("test")


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001-0123abcd.parquet"),
        ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.parquet"),
        ("train/0000.parquet", "train/0001.parquet", "test/0000.parquet"),
    ],
)
def test_parquet_files_are_read_in_the_hubs_layouts(tmp_path, names):
    for name, part in zip(names, (table([10, 20], [0, 1]), table([30], [2]), table([40], [1]))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        part.to_parquet(tmp_path / name)
    data = HuggingFace(tmp_path, test_split="test", name="pets")
    train, test = data.load(), data.load("test")
    assert (levels(train), levels(test)) == ([10, 20, 30], [40])
    assert (train.labels.tolist(), train.classes) == ([0, 1, 2], ("cat", "dog", "fox"))


def test_one_parquet_file_without_the_librarys_notes_is_read(tmp_path):
    """As other programs write them: a struct of bytes and path, and plain integers."""
    from pyarrow import parquet

    table(kind=datasets.Value("int64"), labels=[7, 3, 7]).to_parquet(tmp_path / "train.parquet")
    plain = parquet.read_table(tmp_path / "train.parquet").replace_schema_metadata(None)
    parquet.write_table(plain, tmp_path / "train.parquet")
    train = HuggingFace(tmp_path / "train.parquet").load()
    assert levels(train) == [10, 20, 30]
    assert (train.labels.tolist(), train.classes) == ([1, 0, 1], ("3", "7"))


def test_more_rows_than_are_read_at_a_time_keep_their_order(tmp_path):
    values = [row % 251 for row in range(600)]
    rows = {"image": [picture(value, (1, 1), "L") for value in values]}
    features = datasets.Features(image=datasets.Image())
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet", batch_size=100)
    assert levels(HuggingFace(tmp_path, channels=1).load()) == values


def test_nothing_is_copied_to_a_cache_or_fetched(tmp_path, monkeypatch, offline):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table().to_parquet(tmp_path / "train.parquet")
    before = sorted(tmp_path.rglob("*"))
    assert len(HuggingFace(tmp_path).load()) == 3
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("kind", "labels"), [("string", ["owl", "ant", "owl"]), ("int32", [5, -1, 5])])
def test_labels_without_names_make_a_class_of_each_value_of_the_train_split(tmp_path, kind, labels):
    train = table(labels=labels, kind=datasets.Value(kind))
    test = table([40], labels[:1], kind=datasets.Value(kind))
    data = HuggingFace(save(datasets.DatasetDict(train=train, test=test), tmp_path / "pets"), test_split="test")
    assert data.load().labels.tolist() == [1, 0, 1]
    assert data.load().classes == (str(labels[1]), str(labels[0]))
    assert data.load("test").labels.tolist() == [1]


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
    with pytest.raises(ValueError, match="pets has the label columns fine, coarse; choose one by label_column"):
        HuggingFace(path).load()
    assert HuggingFace(path, label_column="coarse").load().labels.tolist() == [0, 1, 0]
    assert levels(HuggingFace(path, image_column="mask", label_column="fine").load()) == [99] * 3
    renamed = save(data.rename_column("image", "photo"), tmp_path / "renamed")
    with pytest.raises(ValueError, match="has the image columns photo, mask; choose one by image_column"):
        HuggingFace(renamed).load()


def test_a_column_of_bytes_holds_images_if_it_is_named(tmp_path):
    content = io.BytesIO()
    picture(50).save(content, "PNG")
    data = datasets.Dataset.from_dict({"png": [content.getvalue()]})
    assert levels(HuggingFace(save(data, tmp_path / "pets"), image_column="png").load()) == [50]
    with pytest.raises(ValueError, match=r"pets has no column of images, but png \(Value\)"):
        HuggingFace(tmp_path / "pets").load()


def write_paths(folder, *paths):
    """A table whose images are not stored in it (the library itself stores them when it saves)."""
    import pyarrow
    from pyarrow import parquet

    rows = pyarrow.array([{"bytes": None, "path": str(path)} for path in paths], datasets.Image().pa_type)
    parquet.write_table(pyarrow.table({"image": rows}), folder / "train.parquet")
    return folder


def test_images_beside_the_table_are_read_from_their_files(tmp_path):
    picture(60).save(tmp_path / "a.png")
    assert levels(HuggingFace(write_paths(tmp_path, tmp_path / "a.png")).load()) == [60]
    (tmp_path / "a.png").unlink()
    with pytest.raises(ValueError, match=r"split train, row 0: no image is stored, and there is no file .*a\.png"):
        HuggingFace(tmp_path).load()


def test_an_address_in_place_of_an_image_is_not_fetched(tmp_path):
    with pytest.raises(
        ValueError, match=r"row 0: no image is stored, and there is no file https://example\.org/a\.png"
    ):
        HuggingFace(write_paths(tmp_path, "https://example.org/a.png")).load()


@pytest.mark.parametrize(("channels", "mode"), [(1, "RGB"), (3, "L"), (1, "L"), (3, "RGBA")])
def test_images_are_converted_to_the_channels_asked_for(tmp_path, channels, mode):
    train = HuggingFace(save(table([picture(9, mode=mode)], [0]), tmp_path / "pets"), channels=channels).load()
    assert train.inputs.shape == (1, channels, 4, 6)
    assert train.inputs.unique().tolist() == [9]


def test_channels_and_rows_keep_their_places(tmp_path):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    train = HuggingFace(save(table([Image.fromarray(pixels)], [0]), tmp_path / "pets")).load()
    assert torch.equal(train.inputs[0], torch.from_numpy(pixels).permute(2, 0, 1))


def test_images_are_resized_to_a_square_and_the_name_says_so(tmp_path):
    path = save(table([picture(7, (10, 6)), picture(8, (4, 8))], [0, 1]), tmp_path / "pets")
    with pytest.raises(ValueError, match=r"several sizes, 6 x 10 \(row 0\) and 8 x 4 \(row 1\); give size="):
        HuggingFace(path).load()
    train = HuggingFace(path, size=5).load()
    assert train.inputs.shape == (2, 3, 5, 5)
    assert (levels(train), train.name) == ([7, 8], "pets-5/train")


@pytest.mark.parametrize("value", [b"no image", b""])
def test_an_image_that_cannot_be_read_is_named(tmp_path, value):
    data = table([10, {"bytes": value, "path": None}], [0, 1])
    with pytest.raises(ValueError, match=r"pets, row 1: the image cannot be read \(cannot identify"):
        HuggingFace(save(data, tmp_path / "pets")).load()


def test_a_missing_image_and_one_of_16_bits_are_named(tmp_path):
    with pytest.raises(ValueError, match="row 1: there is no image"):
        HuggingFace(save(table([10, None], [0, 1]), tmp_path / "a")).load()
    deep = Image.fromarray(np.full((4, 6), 60_000, np.uint16))
    with pytest.raises(ValueError, match=r"row 0: the image's pixels \(I;16\) have more than 8 bits"):
        HuggingFace(save(table([deep], [0]), tmp_path / "b")).load()


def test_unknown_splits_and_columns_are_refused_with_the_known_ones(tmp_path):
    path = save(datasets.DatasetDict(training=table()), tmp_path / "pets")
    with pytest.raises(ValueError, match="has no split 'train', but training; give one of them as train_split"):
        HuggingFace(path).load()
    with pytest.raises(ValueError, match="has no split 'test', but training; give one of them as test_split"):
        HuggingFace(path, train_split="training", test_split="test").load("test")
    with pytest.raises(ValueError, match="split training has no column 'photo'; it has image, label"):
        HuggingFace(path, train_split="training", image_column="photo").load()
    with pytest.raises(ValueError, match="split training has no column 'class'; it has image, label"):
        HuggingFace(path, train_split="training", label_column="class").load()
    with pytest.raises(ValueError, match="column 'label' holds no images but ClassLabel"):
        HuggingFace(path, train_split="training", image_column="label").load()


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (None, [0, None, 1], "row 1: label None in 'label' is none of the 3 classes"),
        (None, [0, -1, 1], "row 1: label -1 in 'label' is none of the 3 classes"),
        (datasets.Value("string"), ["a", None, "b"], "row 1: label None in 'label' is none of the 2 classes"),
        (datasets.Value("float32"), [0.5, 1, 2], "labels 'label' must be classes, integers or text, not Value"),
        (datasets.List(datasets.Value("int8")), [[0], [1], [2]], "must be classes, integers or text, not List"),
    ],
)
def test_labels_that_are_missing_or_of_another_kind_are_named(tmp_path, kind, labels, message):
    with pytest.raises(ValueError, match=message):
        HuggingFace(save(table(labels=labels, kind=kind), tmp_path / "pets")).load()


def test_test_labels_that_the_train_split_does_not_have_are_named(tmp_path):
    text = datasets.Value("string")
    splits = datasets.DatasetDict(train=table(labels=["a", "b", "a"], kind=text), test=table([40], ["c"], kind=text))
    with pytest.raises(ValueError, match=r"split test, row 0: label 'c' in 'label' is none of the 2 classes"):
        HuggingFace(save(splits, tmp_path / "pets"), test_split="test").load("test")
    named = datasets.ClassLabel(names=["dog", "cat"])
    splits = datasets.DatasetDict(train=table(), test=table([40], [0], kind=named))
    with pytest.raises(ValueError, match=r"split test: labels 'label' are ClassLabel.*'dog', 'cat'.* but those of"):
        HuggingFace(save(splits, tmp_path / "zoo"), test_split="test").load("test")


def test_a_split_without_rows_is_refused(tmp_path):
    table([], []).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="split train has no rows"):
        HuggingFace(tmp_path).load()


def test_a_name_on_the_hub_is_not_looked_up(tmp_path, monkeypatch, offline):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no .*ylecun/mnist; .*save_to_disk\('ylecun/mnist'\)"):
        HuggingFace("ylecun/mnist").load()


def test_a_folder_of_something_else_or_damaged_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(
        ValueError, match=r"it has no dataset_dict\.json or state\.json of save_to_disk, and no \*\.parquet"
    ):
        HuggingFace(tmp_path).load()
    (tmp_path / "train.parquet").write_bytes(b"no parquet file")
    with pytest.raises(ValueError, match="cannot be read as a folder of datasets"):
        HuggingFace(tmp_path).load()
    path = save(table(), tmp_path / "pets")
    (path / "state.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="pets cannot be read as a folder of datasets"):
        HuggingFace(path).load()


def test_parquet_files_of_other_columns_or_several_configurations_are_named(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        table().to_parquet(tmp_path / folder / "train.parquet")
    with pytest.raises(ValueError, match="split train lies in the folders a, b; give the path of one of them"):
        HuggingFace(tmp_path).load()
    table().to_parquet(tmp_path / "train-00000-of-00002.parquet")
    table(labels=None).to_parquet(tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet has other columns than .*00000-of-00002"):
        HuggingFace(tmp_path).load()


def test_a_table_that_is_damaged_inside_is_named(tmp_path):
    table([np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)], [0]).to_parquet(
        tmp_path / "train.parquet"
    )
    content = bytearray((tmp_path / "train.parquet").read_bytes())
    content[4:64] = bytes(60)
    (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(ValueError, match="split train is damaged"):
        HuggingFace(tmp_path).load()


def test_without_the_library_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install fedgen\[datasets\]"):
        HuggingFace(tmp_path).load()


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "size must be"), ({"channels": 2}, "channels must be 1")]
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HuggingFace("pets", **options)
