import io

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data import HuggingFace
from tests.data.tables import levels, picture, save, table, write_paths


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


@pytest.mark.parametrize(("path", "name"), [("zoo/pets.v1", "pets.v1"), ("zoo/pets.parquet", "pets")])
def test_the_name_is_that_of_the_folder_or_file(path, name):
    assert HuggingFace(path).name == name


def test_without_a_name_for_it_there_is_no_test_split(tmp_path):
    with pytest.raises(ValueError, match="split"):
        HuggingFace(tmp_path / "pets").load("test")


def test_images_beside_the_table_are_read_from_their_files(tmp_path):
    (tmp_path / "images").mkdir()
    picture(60).save(tmp_path / "images" / "a.png")
    write_paths(tmp_path, tmp_path / "images" / "a.png", "images/a.png")
    assert levels(HuggingFace(tmp_path).load()) == [60, 60]
    assert levels(HuggingFace(tmp_path / "train.parquet").load()) == [60, 60]
    (tmp_path / "images" / "a.png").unlink()
    with pytest.raises(ValueError, match="stored"):
        HuggingFace(tmp_path).load()


@pytest.mark.parametrize("path", ["{folder}/private.png", "../private.png", "images/../../private.png"])
def test_a_table_cannot_name_files_outside_of_its_folder(tmp_path, path):
    picture(60).save(tmp_path / "private.png")
    (tmp_path / "pets").mkdir()
    write_paths(tmp_path / "pets", path.format(folder=tmp_path))
    with pytest.raises(ValueError, match="private"):
        HuggingFace(tmp_path / "pets").load()


def test_a_path_is_not_one_of_the_folder_the_program_runs_in(tmp_path, monkeypatch):
    (tmp_path / "pets").mkdir()
    picture(60).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="pets"):
        HuggingFace(write_paths(tmp_path / "pets", "a.png")).load()


def test_postscript_is_no_image_and_no_other_program_is_started_for_it(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args) or picture(1).im)
    content = io.BytesIO()
    picture(60).save(content, "EPS")
    data = table([{"bytes": content.getvalue(), "path": "a.png"}], [0])
    with pytest.raises(ValueError, match="read"):
        HuggingFace(save(data, tmp_path / "pets")).load()
    assert started == []


def test_an_address_in_place_of_an_image_is_not_fetched(tmp_path):
    with pytest.raises(ValueError, match="stored"):
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
    with pytest.raises(ValueError, match="several"):
        HuggingFace(path).load()
    train = HuggingFace(path, size=5).load()
    assert train.inputs.shape == (2, 3, 5, 5)
    assert (levels(train), train.name) == ([7, 8], "pets-5/train")


@pytest.mark.parametrize("value", [b"no image", b""])
def test_an_image_that_cannot_be_read_is_named(tmp_path, value):
    data = table([10, {"bytes": value, "path": None}], [0, 1])
    with pytest.raises(ValueError, match="JPEG"):
        HuggingFace(save(data, tmp_path / "pets")).load()


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(ValueError, match="row 1: there is no image"):
        HuggingFace(save(table([10, None], [0, 1]), tmp_path / "pets")).load()


@pytest.mark.parametrize("content", ["text", 5])
def test_an_image_that_is_not_stored_as_bytes_is_named(tmp_path, content):
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pydict({"image": [{"bytes": content}]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"row 0: the image is stored as (str|int), not as bytes"):
        HuggingFace(tmp_path).load()


def test_pixels_of_16_bits_keep_their_high_byte(tmp_path):
    deep = Image.fromarray(np.full((4, 6), 234 * 257, np.uint16))
    assert levels(HuggingFace(save(table([deep], [0]), tmp_path / "pets")).load()) == [234]


def test_a_palettes_transparency_is_dropped(tmp_path):
    content = io.BytesIO()
    picture(9, mode="L").convert("P").save(content, "PNG", transparency=bytes(range(9)))
    data = table([{"bytes": content.getvalue(), "path": None}], [0])
    assert levels(HuggingFace(save(data, tmp_path / "pets")).load()) == [9]


def test_unknown_splits_and_columns_are_refused_with_the_known_ones(tmp_path):
    path = save(datasets.DatasetDict(training=table()), tmp_path / "pets")
    with pytest.raises(ValueError, match="train_split"):
        HuggingFace(path).load()
    with pytest.raises(ValueError, match="test_split"):
        HuggingFace(path, train_split="training", test_split="test").load("test")
    with pytest.raises(ValueError, match="column"):
        HuggingFace(path, train_split="training", image_column="photo").load()
    with pytest.raises(ValueError, match="column"):
        HuggingFace(path, train_split="training", label_column="class").load()
    with pytest.raises(ValueError, match="ClassLabel"):
        HuggingFace(path, train_split="training", image_column="label").load()


def test_a_split_without_rows_is_refused(tmp_path):
    table([], []).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="split"):
        HuggingFace(tmp_path).load()


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "size must be"), ({"channels": 2}, "channels must be 1")]
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HuggingFace("pets", **options)


# ------------------------------------------------------------------ the hub


def hub(monkeypatch, answer):
    asked = []

    def load_dataset(*names, **options):
        asked.append((names, options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_a_name_of_the_hub_is_fetched_by_the_library(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = table(writer=(datasets.Value("string"), ["b", "a", "b"]))
    asked = hub(monkeypatch, datasets.DatasetDict(train=rows))
    data = HuggingFace("flwrlabs/femnist", owner_column="writer", revision="abc")
    train = data.load()
    assert asked == [(("flwrlabs/femnist", None), {"revision": "abc"})]
    assert (train.name, train.owner_names, levels(train)) == ("femnist/train", ("a", "b"), [10, 20, 30])


def test_what_is_on_disk_goes_before_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = hub(monkeypatch, OSError("not to be asked"))
    save(table(), tmp_path / "flwrlabs" / "femnist")
    assert levels(HuggingFace("flwrlabs/femnist").load()) == [10, 20, 30]
    assert asked == []


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), datasets.exceptions.DatasetNotFoundError("doesn't exist on the Hub")]
)
def test_without_a_network_or_the_data_set_the_error_says_both_places(monkeypatch, tmp_path, error):
    monkeypatch.chdir(tmp_path)
    hub(monkeypatch, error)
    with pytest.raises(FileNotFoundError, match="save_to_disk"):
        HuggingFace("flwrlabs/femnist").load()


@pytest.mark.parametrize("path", ["a/b/c", "/zoo/pets", "./zoo/pets", "../pets", "pets", "zoo/pets.parquet"])
def test_other_paths_are_no_names_of_the_hub(monkeypatch, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    asked = hub(monkeypatch, OSError("not to be asked"))
    with pytest.raises(FileNotFoundError, match="there is no"):
        HuggingFace(path).load()
    assert asked == []
