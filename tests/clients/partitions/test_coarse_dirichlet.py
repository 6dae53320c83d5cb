import json

import numpy as np
import pytest
import torch

from fedgen.clients.partitions import CoarseDirichlet
from fedgen.clients.partitions.by_label import draw_shares, group_of_class
from fedgen.data import Examples
from fedgen.data.sets.pickled_images import COARSE_OF_FINE, FINE_CLASSES
from tests.clients.partitions.test_dirichlet import label_counts
from tests.clients.partitions.test_partition import labelled

PETS = {"cats": ["lynx", "puma"], "dogs": ["pug", "wolf", "fox"]}


def pets(counts=(4, 4, 4, 4, 4)):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return labelled(labels, ("pug", "lynx", "wolf", "puma", "fox"))


def like_cifar100(each):
    return Examples(torch.zeros(100 * each, 1), torch.arange(100 * each) % 100, "cifar100/train", FINE_CLASSES)


def test_classes_find_their_groups_by_name():
    assert group_of_class(pets(), PETS, np.arange(5)).tolist() == [1, 0, 1, 0, 1]


def test_the_superclasses_of_cifar100_are_known_by_name():
    rule = CoarseDirichlet(10)
    clients = rule.assign(like_cifar100(3), seed=0)
    assert [len(client) for client in clients] == [30] * 10
    assert rule.settings()["groups"] == "cifar100"


def test_clients_differ_in_groups_and_are_even_within_them():
    """The released grid: 0.5 a group and 200 a label, 100 clients, of which five labels a group are drawn evenly."""
    examples = like_cifar100(100)
    counts = label_counts(examples, CoarseDirichlet(20, 10.0, 1000.0).assign(examples, seed=0))
    groups = np.stack([counts[:, np.array(COARSE_OF_FINE) == group].sum(axis=1) for group in range(20)], axis=1)
    # An even client has 25 of its 500 images in each group; here the largest group has a fifth and more.
    assert (groups.max(axis=1) / 500).mean() > 0.2
    largest = groups.argmax(axis=1)
    within = np.stack([counts[row, np.array(COARSE_OF_FINE) == group] for row, group in enumerate(largest)])
    assert (within.max(axis=1) / within.sum(axis=1)).mean() < 0.35


def test_a_share_is_that_of_the_group_times_that_within_it():
    counts, group_of = np.array([3, 3, 6, 12]), np.array([0, 0, 4, 4])
    shares = draw_shares(counts, group_of, 3.0, 2.0, 40_000, np.random.default_rng(0))
    assert np.abs(shares.sum(axis=1) - 1).max() < 1e-12
    # Means are the frequencies: 1/8, 1/8, 1/4, 1/2.
    assert np.abs(shares.mean(axis=0) - counts / 24).max() < 0.006
    group, within = shares[:, :2].sum(axis=1), shares[:, 0] / shares[:, :2].sum(axis=1)
    # The group's share is Beta(3/4, 9/4), of variance 1/4 * 3/4 / 4; within it, Beta(1, 1), of variance 1/12.
    assert abs(group.var() - 3 / 64) < 0.002
    assert abs(within.var() - 1 / 12) < 0.003
    assert abs(np.corrcoef(group, within)[0, 1]) < 0.02


@pytest.mark.parametrize("rotate", [True, False])
def test_tiny_alphas_work_and_use_up_every_image(rotate):
    clients = CoarseDirichlet(5, 0.01, 0.01, PETS, rotate).assign(pets((40, 40, 40, 40, 40)), seed=0)
    assert sorted(np.concatenate(clients)) == list(range(200))


def test_a_class_without_images_is_left_out():
    examples = pets((6, 0, 6, 0, 6))
    counts = label_counts(examples, CoarseDirichlet(3, groups=PETS).assign(examples, seed=0))
    assert counts.sum(axis=0).tolist() == [6, 0, 6, 0, 6]


def test_groups_by_name_go_to_json_and_tuples_do_too():
    rule = CoarseDirichlet(3, groups={"all": ("a", "b")})
    assert json.loads(json.dumps(rule.settings()))["groups"] == {"all": ["a", "b"]}


@pytest.mark.parametrize(("groups", "homes"), [({"cats": ["lynx", "puma"]}, 0), ({**PETS, "small": ["pug"]}, 2)])
def test_a_class_in_no_group_or_in_two_is_named(groups, homes):
    with pytest.raises(ValueError, match=f"class 'pug' of toy/train is in {homes} of the {len(groups)} groups"):
        CoarseDirichlet(2, groups=groups).assign(pets(), seed=0)


def test_unknown_groups_and_concentrations_are_refused():
    with pytest.raises(ValueError, match="cifar100"):
        CoarseDirichlet(2, groups="imagenet")
    with pytest.raises(ValueError, match="alpha_fine"):
        CoarseDirichlet(2, alpha_fine=0)
