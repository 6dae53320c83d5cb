"""Clients of one image and its nearest neighbours."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import SavedPartition, VarianceLimited, load_partition, save_partition
from fedgen.clients.partitions.clustered import share_neighbours
from fedgen.data import Digits, Examples
from fedgen.embeddings import load_embedding
from fedgen.evaluation import evaluate
from fedgen.models import EmpiricalGenerator


def points(values, labels, classes=("a", "b")):
    return Examples(torch.tensor(values, dtype=torch.float32).unsqueeze(1), torch.tensor(labels), "toy/train", classes)


def by_hand(examples, anchor, among, count):
    """The anchor and its nearest, by sorting distances that are formed one by one."""
    x = examples.inputs.flatten(1).double().numpy()
    order = sorted((j for j in among if j != anchor), key=lambda j: (float(((x[j] - x[anchor]) ** 2).sum()), j))
    return sorted([anchor, *order[:count]])


def test_a_client_is_one_image_of_a_class_and_its_nearest_within_the_class():
    digits = Digits().load()
    rule = VarianceLimited(5, embedding="pixels")
    clients = rule.assign(digits, seed=0)
    assert rule.names(digits)[3] == "class 3"
    for label, client in enumerate(clients):
        own = (digits.labels == label).nonzero().flatten().tolist()
        assert any(by_hand(digits, anchor, own, 5) == client.tolist() for anchor in client.tolist())


def test_the_image_is_drawn_by_the_seed_and_more_neighbours_hold_fewer_ones():
    digits = Digits().load()
    few, many, other = (
        VarianceLimited(k, embedding="pixels").assign(digits, seed) for k, seed in ((5, 0), (20, 0), (5, 1))
    )
    assert [len(client) for client in many] == [21] * 10
    assert all(set(a) < set(b) for a, b in zip(few, many))
    assert sum(set(a) == set(b) for a, b in zip(few, other)) < 3


def test_a_client_of_the_whole_class_needs_no_distance():
    clients = VarianceLimited(2, embedding="identity").assign(points([0, 1, 2, 7, 8, 9], [0, 1, 0, 1, 0, 1]), seed=0)
    assert [client.tolist() for client in clients] == [[0, 2, 4], [1, 3, 5]]


def test_across_classes_the_nearest_pair_is_served_first():
    # anchors at 0 and 10: 6 and 5.5 are nearer to the second, which then has its two; 15 is left to the first
    features = torch.tensor([[0.0], [10.0], [6.0], [5.5], [-20.0], [15.0]])
    first, second = share_neighbours(features, [0, 1], 2)
    assert second.tolist() == [1, 2, 3]
    assert first.tolist() == [0, 5, 4]


def test_across_classes_every_image_may_be_dealt_and_none_twice():
    digits = Digits().load().subset(range(80))
    clients = VarianceLimited(7, embedding="pixels", across_classes=True).assign(digits, seed=0)
    assert sorted(np.concatenate(clients)) == list(range(80))
    labels = [set(digits.labels[client].tolist()) for client in clients]
    assert any(len(own) > 1 for own in labels)
    with pytest.raises(ValueError, match="neighbours"):
        VarianceLimited(8, embedding="pixels", across_classes=True).assign(digits, seed=0)


def test_a_class_with_too_few_images_is_named_before_anything_is_embedded(monkeypatch):
    monkeypatch.setattr("fedgen.clients.partitions.clustered.load_embedding", None)
    examples = points([0, 1, 2, 7], [0, 0, 0, 1])
    with pytest.raises(ValueError, match="class"):
        VarianceLimited(2, embedding="identity").assign(examples, seed=0)
    with pytest.raises(ValueError, match="neighbours"):
        VarianceLimited(0)


def test_data_without_labels_are_refused():
    flat = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), "flat/train", ())
    with pytest.raises(ValueError, match="VarianceLimited"):
        VarianceLimited(1, embedding="identity").assign(flat, seed=0)


@pytest.mark.parametrize(
    "given", ["pixels", {"name": "pixels"}, load_embedding("pixels")], ids=["name", "map", "object"]
)
def test_an_embedding_is_given_by_name_by_options_or_itself(given, tmp_path):
    digits = Digits().load()
    partition = VarianceLimited(3, given)
    expected = VarianceLimited(3, "pixels").assign(digits, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(partition.assign(digits, seed=0), expected))
    path = save_partition(tmp_path / "clients.npz", partition, digits, seed=0)
    assert load_partition(path).partition == json.loads(json.dumps(partition.settings()))
    assert repr(partition).startswith("VarianceLimited(neighbours=3, embedding=")


def test_settings_of_an_embedding_are_its_name_and_fingerprint_and_paths_are_text(tmp_path):
    pixels = load_embedding("pixels")
    found = VarianceLimited(3, pixels, cache=tmp_path).settings()
    assert found["embedding"] == {"name": "pixels", "fingerprint": pixels.fingerprint()}
    assert found["cache"] == str(tmp_path)
    options = {"name": "inception-v3-compat", "weights": Path("w.pth")}
    assert VarianceLimited(3, options).settings()["embedding"]["weights"] == "w.pth"


def test_features_are_kept_where_there_is_a_cache(tmp_path, monkeypatch):
    pixels, digits = load_embedding("pixels"), Digits().load()
    first = VarianceLimited(3, pixels, cache=tmp_path).assign(digits, seed=0)
    monkeypatch.setattr(type(pixels), "forward", None)
    again = VarianceLimited(3, pixels, cache=tmp_path).assign(digits, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_clients_are_scored_like_those_of_any_partition():
    digits = Digits().load()
    data = FederatedDataModule(digits, VarianceLimited(20, "pixels"), held_out=0.0, seed=0)
    records = evaluate(EmpiricalGenerator(digits), data, embeddings=["pixels"], num_images=300, scores=["kid"])
    gaps = [a.value - b.value for a, b in pairwise(records) if (a.aggregate, b.aggregate) == ("avg", "all")]
    assert records[0].num_clients == 10
    assert gaps[0] > 0


@pytest.mark.slow
def test_a_recipe_trains_over_such_clients_and_a_dealt_partition_is_not_dealt_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = {
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "strategy": {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": {"communication_interval": 1}},
        },
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
                "partition": {
                    "class_path": "fedgen.clients.partitions.VarianceLimited",
                    "init_args": {"neighbours": 9, "embedding": {"name": "pixels"}, "cache": "features"},
                },
            },
        },
    }
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", "tiny.yaml"]) == 0
    stored = load_partition("checkpoints/tiny/partition.npz")
    assert stored.partition["embedding"] == {"name": "pixels"}
    expected = VarianceLimited(9, "pixels").assign(Digits().load(), seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(stored.assignment, expected))


def test_an_assignment_that_is_known_is_saved_without_dealing(tmp_path, monkeypatch):
    examples = points([0, 1, 2, 7, 8, 9], [0, 1, 0, 1, 0, 1])
    rule = VarianceLimited(2, "identity")
    dealt = rule.assign(examples, seed=0)
    monkeypatch.setattr(VarianceLimited, "assign", None)
    path = save_partition(tmp_path / "clients.npz", rule, examples, 0, assignment=[part[::-1] for part in dealt])
    assert [part.tolist() for part in SavedPartition(path).assign(examples, 0)] == [[0, 2, 4], [1, 3, 5]]
