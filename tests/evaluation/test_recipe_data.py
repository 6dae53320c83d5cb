"""The clients of a recipe, without its model and its trainer."""

import json

import numpy as np
import pytest
import torch
import yaml

from fedgen.clients.partitions import IID, Dirichlet, SavedPartition, save_partition
from fedgen.data import Digits
from fedgen.evaluation.runs.rebuild import PARTITION, RECIPE
from fedgen.evaluation.runs.recipe_data import load_federation
from tests.data.test_medmnist import write as write_medmnist

DATA = {
    "class_path": "fedgen.clients.FederatedDataModule",
    "init_args": {
        "data": {"class_path": "fedgen.data.Digits"},
        "partition": {
            "class_path": "fedgen.clients.partitions.Dirichlet",
            "init_args": {"num_clients": 4, "alpha": 1.0},
        },
    },
}


def write(path, **changes):
    recipe = {"seed_everything": 7, "model": {"class_path": "not.there"}, "data": DATA, **changes}
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_clients_are_those_of_the_recipes_data_and_seed_and_nothing_else_is_made(tmp_path):
    before = torch.get_rng_state()
    data = load_federation(write(tmp_path / "r.yaml"))
    assert data.seed == 7
    expected = Dirichlet(4, 1.0).assign(Digits().load(), seed=7)
    found = [torch.cat([client.train, client.held_out]).sort().values.numpy() for client in data.clients]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))
    assert torch.equal(torch.get_rng_state(), before)
    alone = tmp_path / "alone.yaml"
    alone.write_text(yaml.safe_dump({"data": DATA}))
    assert load_federation(alone).seed == 0


def test_a_seed_of_the_data_goes_before_that_of_the_recipe(tmp_path):
    own = {**DATA, "init_args": {**DATA["init_args"], "seed": 3}}
    assert load_federation(write(tmp_path / "r.yaml", data=own)).seed == 3
    assert load_federation(write(tmp_path / "r.yaml", seed_everything=True)).seed == 0


def test_settings_are_changed_as_for_fit(tmp_path):
    path = write(tmp_path / "r.yaml")
    changed = load_federation(path, ["--data.init_args.partition.init_args.alpha=0.1", "--seed_everything=2"])
    assert (changed.partition.alpha, changed.seed) == (0.1, 2)
    other = load_federation(path, ["--data.partition=IID", "--data.partition.num_clients=3"])
    assert isinstance(other.partition, IID)
    assert len(other.clients) == 3


def test_a_run_has_the_clients_of_its_partition_file(tmp_path):
    write(tmp_path / RECIPE)
    rule, examples = IID(5), Digits().load()
    save_partition(tmp_path / PARTITION, rule, examples, 1)
    data = load_federation(tmp_path)
    assert isinstance(data.partition, SavedPartition)
    assert len(data.clients) == 5
    with pytest.raises(ValueError, match="seed_everything"):
        load_federation(tmp_path, ["--seed_everything=3"])


def test_mistakes_are_named(tmp_path):
    path = tmp_path / "r.yaml"
    with pytest.raises(FileNotFoundError, match="recipe"):
        load_federation(path)
    with pytest.raises(FileNotFoundError, match="recipe"):
        load_federation(tmp_path)
    path.write_text("data: [1, 2")
    with pytest.raises(ValueError, match="yaml"):
        load_federation(path)
    for content in ("just text", "model: 3"):
        path.write_text(content)
        with pytest.raises(ValueError, match="data"):
            load_federation(path)
    with pytest.raises(ValueError, match="trainer"):
        load_federation(write(path, modle=3))
    wrong = {**DATA, "init_args": {**DATA["init_args"], "batchsize": 3}}
    with pytest.raises(ValueError, match="batchsize"):
        load_federation(write(path, data=wrong))
    with pytest.raises(ValueError, match=r"[\s\S]*'alpa'|alpa"):
        load_federation(write(path), ["--data.partition.init_args.alpa=3"])
    plain = {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"}
    with pytest.raises(ValueError, match="BoringDataModule"):
        load_federation(write(path, data=plain))


class Shapes(torch.utils.data.Dataset):
    """A Dataset of somebody's own, named in a recipe."""

    def __init__(self, count: int = 40) -> None:
        self.kinds = [position % 4 for position in range(count)]

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, position):
        return {"scan": torch.full((1, 8, 8), position / 80), "kind": self.kinds[position]}


def scans(batch):
    return batch["scan"]


def test_a_recipe_names_a_dataset_of_ones_own_its_functions_and_settings(tmp_path):
    own = {
        "data": {"class_path": f"{__name__}.Shapes", "init_args": {"count": 80}},
        "partition": {"class_path": "fedgen.clients.partitions.ByClass"},
        "images_of": f"{__name__}.scans",
        "labels": "kinds",
        "value_range": [0, 1],
    }
    (tmp_path / "own.json").write_text(
        json.dumps({"data": {"class_path": "fedgen.clients.FederatedDataModule", "init_args": own}})
    )
    data = load_federation(tmp_path / "own.json")
    assert repr(data) == "FederatedDataModule(Shapes, 4 clients, 80 examples, ByClass(classes_per_client=1))"
    assert data.image_shape == (1, 8, 8)


def of_data(path, data, partition=None, **reading):
    """A recipe of data by class path."""
    own = {"data": data, **({"partition": partition} if partition else {}), **reading}
    return write(path, data={"class_path": "fedgen.FederatedDataModule", "init_args": own})


NATURAL = {"class_path": "fedgen.clients.partitions.Natural"}


def write_femnist(folder):
    """A Parquet file in the hub's form of flwrlabs/femnist: five images by two writers."""
    import datasets

    from tests.data.tables import picture

    columns = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(names=[str(number) for number in range(62)]),
    }
    rows = {
        "image": [picture(40 * number, (28, 28), "L") for number in range(5)],
        "writer_id": ["f3795_00", "f0000_14", "f3795_00", "f0000_14", "f3795_00"],
        "hsf_id": [0, 0, 1, 1, 0],
        "character": [3, 61, 3, 0, 12],
    }
    (folder / "data").mkdir(parents=True)
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(columns))
    table.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    return table


@pytest.mark.parametrize("where", ["file", "lazy file", "hub", "lazy hub"])
def test_a_table_of_the_hub_is_dealt_by_writer_from_a_recipe(tmp_path, monkeypatch, where):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    table = write_femnist(tmp_path / "elsewhere")
    name, asked = "flwrlabs/femnist", []
    if "file" in where:
        (tmp_path / "flwrlabs").mkdir()
        (tmp_path / "elsewhere").rename(tmp_path / name)
    known = datasets.DatasetDict(train=table)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *given, **options: asked.append(name) or known)
    init = {"path": name, "owner_column": "writer_id", "channels": 1, "in_memory": "lazy" not in where}
    data = load_federation(
        of_data(tmp_path / "r.yaml", {"class_path": "fedgen.data.HuggingFace", "init_args": init}, NATURAL)
    )
    assert {client.name: len(client.everything) for client in data.clients} == {"f0000_14": 2, "f3795_00": 3}
    assert data.examples.labels.tolist() == [3, 61, 3, 0, 12]
    assert data.examples.inputs[:][:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160]
    assert asked == ([name] if "hub" in where else [])


def test_published_medical_images_are_dealt_from_a_recipe(tmp_path):
    arrays = write_medmnist(tmp_path / "bloodmnist.npz")
    init = {"name": "bloodmnist", "root": str(tmp_path)}
    by_class = {"class_path": "fedgen.clients.partitions.ByClass"}
    data = load_federation(
        of_data(tmp_path / "r.yaml", {"class_path": "fedgen.data.MedMNIST", "init_args": init}, by_class)
    )
    assert [client.name for client in data.clients] == [f"class {number}" for number in range(4)]
    assert torch.equal(data.examples.inputs[0, :, 3, 4], torch.from_numpy(arrays["train_images"][0, 3, 4]))


def test_functions_make_data_and_say_so_and_labels_and_owners_may_be_others_than_the_data_s(tmp_path):
    data = load_federation(
        of_data(tmp_path / "r.yaml", {"class_path": f"{__name__}.make_digits"}, NATURAL, owners=f"{__name__}.third")
    )
    assert [client.name for client in data.clients] == ["0", "1", "2"]
    both = {"labels": f"{__name__}.third", "owners": f"{__name__}.third"}
    data = load_federation(of_data(tmp_path / "r.yaml", {"class_path": "fedgen.data.Digits"}, NATURAL, **both))
    assert (len(data.clients), data.examples.classes) == (3, ("0", "1", "2"))
    with pytest.raises(ValueError, match="function"):
        load_federation(of_data(tmp_path / "r.yaml", {"class_path": f"{__name__}.untyped"}, NATURAL))


def make_digits() -> torch.utils.data.Dataset:
    return torch.utils.data.TensorDataset(Digits().load().inputs[:9])


def untyped():
    return make_digits()


def third(position):
    return position % 3
