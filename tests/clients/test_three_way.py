"""Who trains and who is only scored."""

import json

import pytest
import torch

from fedgen.clients import FederatedDataModule, ThreeWaySplit
from fedgen.clients.client import Roles, load_roles, save_roles
from fedgen.clients.partitions import IID
from tests.clients.test_data_module import examples


def make(split=None, clients=10, count=200, **options):
    return FederatedDataModule(examples(count), IID(clients), seed=0, split=split, **options)


def test_a_fifth_of_ten_clients_is_kept_and_half_of_the_others_train():
    roles = ThreeWaySplit(0.2, participating=0.5).assign(10, seed=1)
    assert [len(part) for part in (roles.participating, roles.unparticipating, roles.left_out)] == [4, 2, 4]
    everyone = [*roles.participating, *roles.unparticipating, *roles.left_out]
    assert sorted(everyone) == list(range(10))
    assert roles == ThreeWaySplit(0.2, participating=0.5).assign(10, seed=1)
    assert roles != ThreeWaySplit(0.2, participating=0.5).assign(10, seed=2)


def test_fewer_participants_are_some_of_the_same_and_the_kept_ones_stay():
    all_, some, few = (ThreeWaySplit(0.3, participating=rate).assign(40, 0) for rate in (1.0, 0.5, 0.1))
    assert set(few.participating) < set(some.participating) < set(all_.participating)
    assert few.unparticipating == some.unparticipating == all_.unparticipating


def test_a_pattern_keeps_the_clients_that_it_names():
    names = ["a", "unseen: a", "b", "unseen: b", "c"]
    roles = ThreeWaySplit("unseen: *").assign(names, seed=0)
    assert (roles.participating, roles.unparticipating, roles.left_out) == ((0, 2, 4), (1, 3), ())
    fewer = ThreeWaySplit("unseen: *", participating=0.34).assign(names, seed=0)
    assert fewer.unparticipating == (1, 3)
    assert len(fewer.participating) == 1
    data = make(ThreeWaySplit("*[12]"))  # of clients 0 to 9
    assert data.roles.unparticipating == (1, 2)


@pytest.mark.parametrize(
    ("clients", "word"), [(5, "each needs one"), (["a", "b"], "named"), (["unseen: a"], "each needs one")]
)
def test_a_pattern_that_keeps_nobody_or_everybody_is_refused(clients, word):
    with pytest.raises(ValueError, match=word):
        ThreeWaySplit("unseen: *").assign(clients, seed=0)


def test_every_client_is_kept_in_its_share_of_the_draws():
    kept = torch.zeros(10)
    for seed in range(200):
        kept[list(ThreeWaySplit(0.3).assign(10, seed).unparticipating)] += 1
    assert (kept / 200 - 0.3).abs().max() < 0.12  # 3.7 standard deviations


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unparticipating": 0.0}, r"lies in \(0, 1\)"),
        ({"unparticipating": 1.0}, r"lies in \(0, 1\)"),
        ({"participating": 0.0}, r"lies in \(0, 1\]"),
        ({"participating": 1.1}, r"lies in \(0, 1\]"),
        ({"max_examples": 1}, "max_examples=1"),
        ({"eval_clients": 1}, "eval_clients=1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ThreeWaySplit(**settings)


@pytest.mark.parametrize(
    ("clients", "settings"), [(2, {}), (3, {"unparticipating": 0.9}), (10, {"participating": 0.01})]
)
def test_a_role_without_a_client_is_refused(clients, settings):
    with pytest.raises(ValueError, match=rf"of {clients} client\(s\).* each needs one"):
        ThreeWaySplit(**settings).assign(clients, 0)


def test_training_sees_participating_clients_alone():
    data = make(ThreeWaySplit(0.3), held_out=0.25)
    assert (len(data.everyone), len(data.clients), len(data.unparticipating)) == (10, 7, 3)
    trained, held = (set(data.pooled(part).tolist()) for part in ("train", "held_out"))
    for client in data.unparticipating:
        own = set(torch.cat([client.train, client.held_out]).tolist())
        assert len(own) == 20
        assert not own & (trained | held)
    assert not trained & held
    assert len(trained) == 7 * 15
    pooled = {float(x) for batch, _ in data.train_dataloader() for x in batch[:, 0, 0, 0]}
    assert len(pooled) == len(trained)


def test_a_clients_own_parts_do_not_hang_on_who_trains():
    alone, split = make(held_out=0.25), make(ThreeWaySplit(0.3, participating=0.5), held_out=0.25)
    for one, other in zip(alone.everyone, split.everyone):
        assert torch.equal(one.train, other.train)
        assert torch.equal(one.held_out, other.held_out)
    assert alone.clients is alone.clients
    assert alone.unparticipating == []
    assert split.clients is split.clients


def test_a_cap_takes_a_draw_of_each_part_and_the_partition_stays_whole():
    data = make(ThreeWaySplit(0.3, max_examples=4), held_out=0.25)
    whole = make(ThreeWaySplit(0.3), held_out=0.25)
    for capped, full, dealt in zip(data.everyone, whole.everyone, data.dealt):
        assert (len(capped.train), len(capped.held_out)) == (4, 4)
        assert set(capped.train.tolist()) < set(full.train.tolist())
        assert capped.train.tolist() == sorted(capped.train.tolist())
        assert len(dealt) == 20
    assert [c.train.tolist() for c in data.everyone] != [c.train[:4].tolist() for c in whole.everyone]


def test_roles_are_kept_on_disk_with_names(tmp_path):
    roles = Roles((0, 3), (1,), (2,))
    path = save_roles(tmp_path / "split.json", roles, ["a", "b", "c", "d"])
    assert load_roles(path) == roles
    assert json.loads(path.read_text())["unparticipating"] == [{"client": 1, "name": "b"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "does not hold the roles"),
        ('{"version": 1}', "does not hold the roles"),
        ('{"version": 9, "participating": [], "unparticipating": [], "left_out": []}', "format 9"),
        (
            '{"version": 1, "participating": [{"client": 0}], "unparticipating": [{"client": 0}], "left_out": []}',
            "two roles, or none",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    (tmp_path / "split.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_roles(tmp_path / "split.json")


def test_roles_of_other_clients_are_refused():
    data = make(ThreeWaySplit(0.3))
    data.roles = Roles((0,), (1,))
    with pytest.raises(ValueError, match="partition"):
        _ = data.clients
    data.roles = Roles(tuple(range(9)), (9,))
    assert len(data.clients) == 9
