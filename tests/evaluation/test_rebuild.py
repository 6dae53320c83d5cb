"""The model and the clients of a run folder, made again."""

import os

import numpy as np
import pytest
import torch
import yaml

from fedgen.clients.client import hold_out
from fedgen.clients.partitions import IID, save_partition
from fedgen.evaluation.runs.rebuild import PARTITION, RECIPE, rebuild
from fedgen.models import WGANGP

SETTINGS = {
    "seed_everything": 7,
    "trainer": {"accelerator": "gpu", "devices": 64},  # of another machine
    "model": {
        "class_path": "fedgen.models.WGANGP",
        "init_args": {
            "generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 8}},
            "critic": {"class_path": "fedgen.models.networks.SmallCritic", "init_args": {"width": 8}},
        },
    },
    "data": {
        "class_path": "fedgen.clients.FederatedDataModule",
        "init_args": {
            "data": {"class_path": "fedgen.data.Digits"},
            "partition": {"class_path": "fedgen.clients.partitions.ByClass"},
            "held_out": 0.5,
            "seed": None,
        },
    },
    "optimizer": None,
}


def write(folder, **changes):
    (folder / RECIPE).write_text(yaml.safe_dump(SETTINGS | changes))
    return folder


def test_model_and_clients_come_back_with_the_runs_own_seed(tmp_path):
    before = torch.get_rng_state()
    environment = os.environ.get("PL_GLOBAL_SEED")
    model, data = rebuild(write(tmp_path))
    assert isinstance(model, WGANGP)
    assert data.seed == 7
    zeros = (data.examples.labels == 0).nonzero().flatten()
    assert torch.equal(data.clients[0].train, hold_out(zeros, 0.5, 7, 0)[0])
    assert os.environ.get("PL_GLOBAL_SEED") == environment
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_of_the_clients_goes_before_that_of_the_run(tmp_path):
    data = {**SETTINGS["data"], "init_args": {**SETTINGS["data"]["init_args"], "seed": 3}}
    assert rebuild(write(tmp_path, data=data))[1].seed == 3


def test_the_clients_are_those_of_the_folders_partition_file(tmp_path):
    dealt = rebuild(write(tmp_path))[1]
    examples = dealt.examples
    shares = [np.arange(5), np.arange(20, 35), np.arange(40, 1000)]  # no classes: what nobody would deal again
    save_partition(tmp_path / PARTITION, IID(3), examples, 7, shares)
    data = rebuild(tmp_path)[1]
    assert [client.name for client in data.clients] == ["client 0", "client 1", "client 2"]
    for client, share in zip(data.clients, shares):
        assert torch.equal(torch.cat([client.train, client.held_out]).sort().values, torch.from_numpy(share))
    assert torch.equal(data.clients[1].train, hold_out(torch.arange(20, 35), 0.5, 7, 1)[0])
    assert len(dealt.clients) == 10


def test_the_file_that_training_saves_gives_the_clients_of_the_training(tmp_path):
    data = rebuild(write(tmp_path))[1]
    dealt = [torch.cat([client.train, client.held_out]).numpy() for client in data.clients]  # as `fedgen fit` does
    save_partition(tmp_path / PARTITION, data.partition, data.examples, data.seed, dealt)
    for one, other in zip(data.clients, rebuild(tmp_path)[1].clients, strict=True):
        assert one.name == other.name
        assert torch.equal(one.train, other.train)
        assert torch.equal(one.held_out, other.held_out)


def test_a_damaged_partition_file_is_named(tmp_path):
    (write(tmp_path) / PARTITION).write_bytes(b"PK damaged")
    with pytest.raises(ValueError, match="partition"):
        _ = rebuild(tmp_path)[1].clients


def test_what_is_no_run_of_a_federation_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="recipe"):
        rebuild(tmp_path)
    other = {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"}
    with pytest.raises(ValueError, match="BoringDataModule"):
        rebuild(write(tmp_path, data=other))
    with pytest.raises(ValueError, match="WGANGQ"):
        rebuild(write(tmp_path, model={"class_path": "fedgen.models.WGANGQ"}))
    (tmp_path / RECIPE).write_text("model: {class_path: [")
    with pytest.raises(ValueError, match="YAML"):
        rebuild(tmp_path)
    (tmp_path / RECIPE).write_text("model: {class_path: fedgen.models.WGANGP}\n")
    with pytest.raises(ValueError, match="recipe"):
        rebuild(tmp_path)
