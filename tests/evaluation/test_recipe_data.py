"""The clients of a recipe, without its model and its trainer."""

import json

import numpy as np
import pytest
import torch
import yaml

from fedgen.clients.partitions import IID, Dirichlet, SavedPartition, save_partition
from fedgen.data import Digits
from fedgen.evaluation.rebuild import PARTITION, RECIPE
from fedgen.evaluation.recipe_data import load_federation

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
    with pytest.raises(ValueError, match=r"is a run.* leave --seed_everything=3 out"):
        load_federation(tmp_path, ["--seed_everything=3"])


def test_mistakes_are_named(tmp_path):
    path = tmp_path / "r.yaml"
    with pytest.raises(FileNotFoundError, match=r"give a recipe, or the folder of a run"):
        load_federation(path)
    with pytest.raises(FileNotFoundError, match=r"recipe\.yaml does not exist"):
        load_federation(tmp_path)
    path.write_text("data: [1, 2")
    with pytest.raises(ValueError, match="is no recipe"):
        load_federation(path)
    for content in ("just text", "model: 3"):
        path.write_text(content)
        with pytest.raises(ValueError, match="it has no 'data'"):
            load_federation(path)
    with pytest.raises(ValueError, match=r"r\.yaml: Option 'modle' is not accepted; a recipe has trainer, model"):
        load_federation(write(path, modle=3))
    wrong = {**DATA, "init_args": {**DATA["init_args"], "batchsize": 3}}
    with pytest.raises(ValueError, match=r"r\.yaml.*[\s\S]*Option 'batchsize' is not accepted"):
        load_federation(write(path, data=wrong))
    with pytest.raises(ValueError, match=r"[\s\S]*'alpa'|alpa"):
        load_federation(write(path), ["--data.partition.init_args.alpa=3"])
    plain = {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"}
    with pytest.raises(ValueError, match="is a BoringDataModule, which has no clients"):
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
