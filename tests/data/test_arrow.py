import json
import sys

import datasets
import numpy as np
import pytest

from fedgen.data import HuggingFace
from tests.data.tables import levels, picture, save, table


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


def test_a_folder_of_something_else_or_damaged_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(ValueError, match="dataset_dict"):
        HuggingFace(tmp_path).load()
    (tmp_path / "train.parquet").write_bytes(b"no parquet file")
    with pytest.raises(ValueError, match="datasets"):
        HuggingFace(tmp_path).load()
    path = save(table(), tmp_path / "pets")
    (path / "state.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="datasets"):
        HuggingFace(path).load()


def test_a_shard_that_is_named_twice_is_refused(tmp_path):
    path = save(table(), tmp_path / "pets")
    state = json.loads((path / "state.json").read_text())
    state["_data_files"] *= 2
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="state"):
        HuggingFace(path).load()


@pytest.mark.parametrize("name", ["{other}/{file}", "../other/{file}", "..", ""])
def test_a_saved_folder_cannot_name_tables_outside_of_it(tmp_path, name):
    other, path = save(table([99] * 3), tmp_path / "other"), save(table(), tmp_path / "pets")
    (file,) = (found.name for found in other.glob("*.arrow"))
    state = json.loads((path / "state.json").read_text())
    state["_data_files"] = [{"filename": name.format(other=other, file=file)}]
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="datasets"):
        HuggingFace(path).load()


@pytest.mark.parametrize("name", ["{other}", "../other"])
def test_a_saved_folder_cannot_name_splits_outside_of_it(tmp_path, name):
    name = name.format(other=save(table([99] * 3), tmp_path / "other"))
    path = save(datasets.DatasetDict(train=table()), tmp_path / "pets")
    (path / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(ValueError, match="datasets"):
        HuggingFace(path, train_split=name).load()


def test_parquet_files_of_other_columns_or_several_configurations_are_named(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        table().to_parquet(tmp_path / folder / "train.parquet")
    with pytest.raises(ValueError, match="folders"):
        HuggingFace(tmp_path).load()
    table().to_parquet(tmp_path / "train-00000-of-00002.parquet")
    table(labels=None).to_parquet(tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(ValueError, match="parquet"):
        HuggingFace(tmp_path).load()


def test_a_table_that_is_damaged_inside_is_named(tmp_path):
    table([np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)], [0]).to_parquet(
        tmp_path / "train.parquet"
    )
    content = bytearray((tmp_path / "train.parquet").read_bytes())
    content[4:64] = bytes(60)
    (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        HuggingFace(tmp_path).load()


def test_without_the_library_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="datasets"):
        HuggingFace(tmp_path).load()
