"""Clients of clusters that are alike across labels; the answer is known where groups were drawn."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from sklearn.metrics import adjusted_mutual_info_score

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import (
    Clustering,
    Dirichlet,
    Partition,
    Semantic,
    VarianceLimited,
    load_partition,
    save_partition,
)
from fedgen.clients.partitions.clustered import principal_components
from fedgen.data import Digits, Examples, MNIST5k, StyleShift
from fedgen.embeddings import load_embedding
from fedgen.extras import MissingExtraError
from fedgen.seeds import numpy_generator

GROUPS, LABELS, DIM = 8, 4, 20
SURE = Clustering(n_init=5)  # k-means from one start may miss a group


def grouped(seed=0, spread=0.0, each=20):
    """Points of N(label's mean + group's style, diag(exp(2 spread z))), z of the group; and groups; in random order."""
    random = numpy_generator(seed, "test of semantic")
    styles = 1.5 * random.standard_normal((GROUPS, DIM))
    scales = np.exp(spread * random.standard_normal((GROUPS, DIM)))
    means = 4.0 * random.standard_normal((LABELS, DIM))
    order = random.permutation(LABELS * GROUPS * each)
    labels, groups = order // (GROUPS * each), order % GROUPS
    points = means[labels] + styles[groups] + scales[groups] * random.standard_normal((len(order), DIM))
    inputs = torch.tensor(points, dtype=torch.float32)
    return Examples(inputs, torch.tensor(labels), "groups/train", tuple("abcd")), groups


def owners(rule, examples, seed=0):
    """The client of each example, all of which must have one."""
    clients = rule.assign(examples, seed)
    owner = np.full(len(examples), -1)
    for client, own in enumerate(clients):
        owner[own] = client
    assert (owner >= 0).all()
    return owner


def recovered(rule, **options):
    """Adjusted mutual information of clients and groups: 1 for the same, 0 by chance."""
    examples, groups = grouped(**options)
    return adjusted_mutual_info_score(owners(rule, examples), groups)


@pytest.mark.parametrize("covariance", ["diag", "tied", "shrunk"])
def test_clients_are_the_groups_that_the_points_were_drawn_from(covariance):
    assert recovered(Semantic(GROUPS, "identity", clustering=replace(SURE, covariance=covariance))) > 0.95


@pytest.mark.slow
def test_groups_that_vary_in_ways_of_their_own_are_found_by_full_covariances():
    assert recovered(Semantic(GROUPS, "identity", clustering=SURE), spread=0.4, each=80) > 0.95


def test_with_labels_means_left_in_clusters_are_found_but_fewer_partners():
    centred = Semantic(GROUPS, "identity", clustering=SURE)
    published = Semantic(GROUPS, "identity", clustering=SURE, center_per_label=False)
    examples, groups = grouped()
    owner, labels = owners(published, examples), examples.labels.numpy()
    within = [adjusted_mutual_info_score(owner[labels == k], groups[labels == k]) for k in range(LABELS)]
    assert min(within) > 0.95
    assert recovered(published) < 0.6
    assert recovered(centred) > recovered(published) + 0.15


@pytest.mark.slow
def test_tied_covariances_match_the_same_whatever_the_labels_means():
    rules = (Semantic(GROUPS, "identity", None, replace(SURE, covariance="tied"), centre) for centre in (True, False))
    examples, _ = grouped()
    assert adjusted_mutual_info_score(*(owners(rule, examples) for rule in rules)) > 0.999


@pytest.mark.slow
def test_random_partners_and_random_starts_lose_the_groups():
    assert recovered(Semantic(GROUPS, "identity", clustering=SURE, matching="random")) < 0.5
    frozen = replace(SURE, init="random", n_init=1, max_iter=1000)
    assert recovered(Semantic(GROUPS, "identity", clustering=frozen)) < 0.5


def test_the_same_seed_gives_the_same_clients_another_one_others_and_global_generators_do_not_matter():
    examples, _ = grouped()
    rule = Semantic(GROUPS, "identity")
    first = rule.assign(examples, seed=0)
    np.random.seed(5)
    torch.manual_seed(5)
    assert all(np.array_equal(a, b) for a, b in zip(first, rule.assign(examples, seed=0)))
    assert any(not np.array_equal(a, b) for a, b in zip(first, rule.assign(examples, seed=1)))


@pytest.mark.slow
def test_writers_of_known_styles_are_found_far_above_chance_and_above_a_label_partition(monkeypatch):
    """From the pixels of 1,248 digits by 8 writers whose labels are alike, so that labels tell nothing about them.

    Measured over four seeds: 0.15 to 0.20, with random partners 0.04 to 0.05, by Dirichlet and by chance within 0.005.
    """
    read = MNIST5k.read
    monkeypatch.setattr(MNIST5k, "read", lambda self, split: read(self, split).subset(range(0, 4992, 4)))
    digits = StyleShift(num_writers=8).load()
    writers = digits.owners.numpy()
    shrunk = Clustering(covariance="shrunk", n_init=3)

    def agreement(rule):
        return np.mean([adjusted_mutual_info_score(owners(rule, digits, seed), writers) for seed in range(2)])

    chance = [adjusted_mutual_info_score(numpy_generator(0, draw).permutation(writers), writers) for draw in range(20)]
    found = agreement(Semantic(8, "pixels", 32, shrunk))
    assert max(map(abs, chance)) < 0.015
    assert abs(agreement(Dirichlet(8, 1.0))) < 0.015
    assert found > 0.12
    assert found > 2 * agreement(Semantic(8, "pixels", 32, shrunk, matching="random"))


def test_clients_of_a_data_module_are_the_partitions_and_keep_part_of_theirs_from_training():
    digits = Digits().load().subset(range(300))
    rule = Semantic(4, "pixels", 8)
    module = FederatedDataModule(digits, rule, held_out=0.25, seed=5)
    assert [client.name for client in module.clients] == [f"client {client}" for client in range(4)]
    for client, dealt in zip(module.clients, rule.assign(digits, seed=5)):
        assert sorted([*client.train.tolist(), *client.held_out.tolist()]) == dealt.tolist()
        assert len(client.held_out) == len(dealt) // 4
    assert module.image_shape == (1, 8, 8)


def test_a_sample_of_each_label_is_enough_to_assign_all():
    rule = Semantic(GROUPS, "identity", clustering=replace(SURE, covariance="tied", fit_examples=100))
    assert recovered(rule) > 0.9


def test_images_are_embedded_and_features_kept(tmp_path, monkeypatch):
    digits, pixels = Digits().load().subset(range(300)), load_embedding("pixels")
    rule = Semantic(4, pixels, cache=str(tmp_path))
    first = owners(rule, digits)
    monkeypatch.setattr(type(pixels), "forward", None)
    assert np.array_equal(first, owners(rule, digits))


def test_settings_and_the_partition_file(tmp_path):
    digits = Digits().load().subset(range(300))
    rule = Semantic(4, {"name": "pixels"}, 8)
    stored = load_partition(save_partition(tmp_path / "clients.npz", rule, digits, seed=3))
    assert stored.partition == json.loads(json.dumps(rule.settings()))
    assert stored.partition["clustering"]["covariance"] == "full"
    assert stored.names == ["client 0", "client 1", "client 2", "client 3"]
    assert all(np.array_equal(a, b) for a, b in zip(stored.assignment, rule.assign(digits, 3)))
    pixels = load_embedding("pixels")
    assert Semantic(4, pixels).settings()["embedding"] == {"name": "pixels", "fingerprint": pixels.fingerprint()}
    assert Semantic(4, {"name": "x", "weights": Path("w")}).settings()["embedding"]["weights"] == "w"


def test_the_papers_settings():
    rule = Semantic.paper()
    assert (rule.num_clients, rule.components, rule.center_per_label, rule.min_examples) == (300, 256, False, 1)
    assert rule.clustering == Clustering("full", "kmeans", "always", 10_000, 100, 1e-3, 1e-4, 1)


def test_a_recipe_names_the_class_or_the_papers_settings():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Partition, "partition")
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # renamed in jsonargparse 4.49

    def made(name, **arguments):
        given = {"class_path": f"fedgen.clients.partitions.{name}", "init_args": arguments}
        return instantiate(parser.parse_object({"partition": given})).partition

    rule = made("Semantic", num_clients=5, embedding="pixels", clustering={"covariance": "tied", "n_init": 2})
    assert (rule.clustering, rule.embedding) == (Clustering("tied", n_init=2), "pixels")
    rule = made("Semantic.paper", num_clients=100)
    assert (rule.num_clients, rule.clustering.em) == (100, "always")


def test_components_are_the_singular_vectors_and_as_many_as_there_are():
    features = torch.tensor(numpy_generator(0, "x").standard_normal((30, 5)) * [5, 4, 3, 2, 1] + 7, dtype=torch.float32)
    found = principal_components(features, 256, seed=0)
    centred = features.double().numpy() - features.double().numpy().mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    assert found.shape == (30, 5)
    np.testing.assert_allclose(abs(found), abs(left * values), atol=1e-9)
    assert principal_components(features[:3], 256, seed=0).shape == (3, 3)
    np.testing.assert_allclose(principal_components(features, None, seed=0), centred, atol=1e-9)


def test_components_of_very_many_examples_come_from_a_sample(monkeypatch):
    monkeypatch.setattr("fedgen.clients.partitions.clustered.PCA_EXAMPLES", 200)
    features = torch.tensor(numpy_generator(0, "x").standard_normal((1000, 4)) * [9, 3, 1, 0.3], dtype=torch.float32)
    found = principal_components(features, 2, seed=0)
    assert found.shape == (1000, 2)
    assert abs(np.corrcoef(found[:, 0], features[:, 0])[0, 1]) > 0.99


def test_a_client_of_too_few_examples_is_filled_up_and_the_warning_counts():
    # two tight clusters and a lone point in each of two labels: the lone points make a client of two
    one = [0.0] * 10 + [100.0] * 10 + [1000.0]
    values = torch.tensor(one + one) + torch.linspace(0, 1, 42)
    examples = Examples(values.unsqueeze(1), torch.tensor([0] * 21 + [1] * 21), "lone/train", ("a", "b"))
    clustering = Clustering(covariance="tied", em="never", n_init=5)
    with pytest.warns(UserWarning, match="min_examples"):
        clients = Semantic(3, "identity", clustering=clustering, min_examples=6).assign(examples, 0)
    (lone,) = (own for own in clients if 20 in own)
    assert {20, 41} < set(lone)
    assert len(lone) == 6
    assert values[lone].sort().values[0] > 99  # given by the nearer cluster
    assert sorted(np.concatenate(clients)) == list(range(42))


def test_labels_with_fewer_examples_than_clusters_are_named_before_anything_is_embedded(monkeypatch):
    monkeypatch.setattr("fedgen.clients.partitions.clustered.load_embedding", None)
    examples, _ = grouped(each=5)
    few = examples.subset(
        np.flatnonzero(examples.labels != 2).tolist() + (examples.labels == 2).nonzero()[:7, 0].tolist()
    )
    with pytest.raises(ValueError, match="Semantic"):
        Semantic(8, "identity").assign(few, 0)
    with pytest.raises(ValueError, match="min_examples"):
        Semantic(8, "identity", min_examples=21).assign(examples, 0)
    flat = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), "flat/train", ())
    with pytest.raises(ValueError, match="Semantic"):
        Semantic(2, "identity").assign(flat, 0)


def test_features_that_are_not_finite_are_refused():
    examples, _ = grouped()
    examples.inputs[3, 1] = float("nan")
    name = examples.classes[int(examples.labels[3])]
    with pytest.raises(ValueError, match=rf"sample 3 holds NaN or infinity .* \(of class '{name}'\)$"):
        Semantic(4, "identity").assign(examples, 0)


class Fails(torch.nn.Module):
    """Mean grey levels as features: NaN for a white image, or the same for all."""

    def __init__(self, constant=False):
        super().__init__()
        self.constant = constant

    def forward(self, images):
        means = images.float().mean(dim=(2, 3))
        if self.constant:
            return torch.ones_like(means)
        return means.masked_fill((means == means.max()) & (means > 0.99), float("nan"))


@pytest.mark.parametrize("rule", [Semantic, VarianceLimited])
def test_an_embedding_that_fails_is_named_with_the_data_and_the_image_its_label_and_owner(rule):
    digits = Digits().load().subset(range(100))
    digits.inputs[71] = 255
    say = r"^digits/train: embedding Fails gives NaN or infinity for image 71; check its weights and dtype"
    label = int(digits.labels[71])
    with pytest.raises(ValueError, match=rf"{say} \(of class '{label}'\)$"):
        rule(3, load_embedding(Fails())).assign(digits, 0)
    written = replace(digits, owners=torch.arange(100) % 3, owner_names=("ann", "bob", "eve"))
    with pytest.raises(ValueError, match=rf"{say} \(of class '{label}', of owner 'eve'\)$"):  # 71 = 3 * 23 + 2
        rule(3, load_embedding(Fails())).assign(written, 0)
    with pytest.raises(ValueError, match="embedding"):
        rule(3, load_embedding(Fails(constant=True))).assign(digits, 0)


def test_labels_are_counted_by_a_progress_bar(monkeypatch):
    shown = []

    def track(items, description, total, unit):
        shown.append((description, total, unit))
        return items

    monkeypatch.setattr("fedgen.clients.partitions.clustered.track", track)
    Semantic(4, "identity").assign(grouped()[0], 0)
    assert shown == [("cluster groups/train", LABELS, "labels")]


def test_examples_that_are_all_alike_in_a_label_are_named():
    points = torch.cat([torch.zeros(20, 3), torch.arange(60.0).reshape(20, 3)])
    examples = Examples(points, torch.tensor([0] * 20 + [1] * 20), "toy/train", ("flat", "wide"))
    with pytest.warns(UserWarning, match="clusters"):
        clients = Semantic(4, "identity", min_examples=1).assign(examples, 0)
    assert sorted(np.concatenate(clients)) == list(range(40))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1"),
        ({"components": 0}, "components must be at least 1"),
        ({"min_examples": 0}, "min_examples must be at least 1"),
        ({"matching": "greedy"}, "matching must be one of kl, random, got 'greedy'"),
        ({"clustering": Clustering(fit_examples=3)}, "fit_examples=3 cannot form the 4 clusters of each label"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Semantic(**{"num_clients": 4, **arguments})


def test_without_scikit_learn_it_is_told_before_images_are_embedded(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    monkeypatch.setattr(Semantic, "_features", None)
    with pytest.raises(MissingExtraError, match=r"Semantic needs sklearn.cluster: pip install 'fedgen\[clusters\]'"):
        Semantic(2).assign(Digits().read("train"), 0)
