import random

import numpy as np
import pytest
import torch

from fedgen import seeds


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]


def test_derived_seeds_have_these_values_for_good():
    """Stored partitions and scores repeat only if these never change, in a process of whatever hashes of names."""
    assert seeds.derive(0) == 6197007067532723406
    assert seeds.derive(0, "turn", 3, 1) == 1044547660857915002
    assert torch.randint(1000, (3,), generator=seeds.generator(7, "chunk", 0)).tolist() == [335, 453, 280]
    assert seeds.numpy_generator(7, "partition").integers(1000, size=3).tolist() == [926, 607, 673]


def test_every_name_on_the_path_counts():
    paths = [
        (0,),
        (1,),
        (0, "turn"),
        (0, "turn", 1),
        (0, "turn", "1"),
        (0, "turn", 1, 2),
        (0, "turn", 2, 1),
        (0, "turn", 12),
    ]
    values = {seeds.derive(*path) for path in paths}
    assert len(values) == len(paths)
    assert all(0 <= value < 2**63 for value in values)


def test_a_seed_of_none_is_what_lightning_was_given_or_0(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert seeds.resolve(None) == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "17")
    assert seeds.resolve(None) == 17
    assert seeds.resolve(3) == 3


def test_seed_all_repeats_every_global_generator():
    with seeds.isolated():
        seeds.seed_all(0, "turn", 1)
        first = draws()
        seeds.seed_all(0, "turn", 1)
        assert draws() == first
        seeds.seed_all(0, "turn", 2)
        assert all(now != then for now, then in zip(draws(), first))


def test_isolated_code_leaves_the_global_generators_alone():
    with seeds.isolated():
        seeds.seed_all(5)
        expected = draws()
        seeds.seed_all(5)
        with seeds.isolated():
            seeds.seed_all(99)
            draws()
        assert draws() == expected


def test_isolated_code_that_raises_leaves_them_alone_too():
    with seeds.isolated():
        seeds.seed_all(5)
        expected = draws()
        seeds.seed_all(5)
        with pytest.raises(ZeroDivisionError), seeds.isolated():
            random.random() / 0
        assert draws() == expected


def test_a_subset_is_drawn_once_each_in_rising_order_from_names():
    subset = seeds.subset
    found = subset(50, 10, 3, "a", 1)
    assert found.tolist() == sorted(set(found.tolist()))
    assert len(found) == 10
    assert torch.equal(found, subset(50, 10, 3, "a", 1))
    assert not torch.equal(found, subset(50, 10, 3, "a", 2))
    assert subset(4, 10, 0).tolist() == [0, 1, 2, 3]
    assert subset(4, None, 0).tolist() == [0, 1, 2, 3]


def test_an_items_seed_depends_on_each_number():
    found = {seeds.item_seed(base, place, visit) for base in range(3) for place in range(3) for visit in range(3)}
    assert len(found) == 27
    assert seeds.item_seed(5, 1) == seeds.item_seed(5, 1, 0)
    assert all(0 <= seed < 2**63 for seed in found)


def test_seeding_an_item_seeds_what_its_transforms_draw_from():
    with seeds.isolated():
        seeds.seed_item(7)
        first = draws()
        seeds.seed_item(7)
        assert draws() == first
        seeds.seed_item(8)
        assert all(one != other for one, other in zip(draws(), first, strict=True))


def test_the_cpus_generators_alone_can_be_isolated():
    torch.manual_seed(3)
    with seeds.isolated(devices=False):
        torch.rand(5)
        random.random()
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
