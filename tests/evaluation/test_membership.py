"""Membership inference: of models that know their training images by heart, and of models that never saw them."""

import json

import pytest
import torch

from fedgen import FedAvgStrategy, FederatedDataModule, FlowMatching
from fedgen.callbacks import RoundCheckpoint
from fedgen.clients.partitions import IID, ByClass, Natural
from fedgen.data import Digits, Examples
from fedgen.evaluation import audit_run, membership_inference, membership_table
from fedgen.evaluation.audit import membership
from fedgen.evaluation.audit.membership import SignalOptions
from fedgen.models import GAN, EmpiricalGenerator
from fedgen.models.adversarial import Hinge
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.evaluation.memorisers import (
    DenseVelocity,
    KernelDensity,
    Noisy,
    apart_from,
    digits,
    stored_flow,
    stored_gan,
    trained_on,
)
from tests.evaluation.places import Placed, federation, fit
from tests.trainers import quiet_trainer


def small(count=80, held_out=0.5):
    """Two clients of digits, so few that a flow to all training images is quick."""
    examples = Digits().load("train").subset(torch.arange(2 * count))
    return FederatedDataModule(examples, IID(2), held_out=held_out, seed=0)


def knows_nothing(audit):
    """Whether the intervals over all clients hold what a signal without knowledge has."""
    rows = (audit.avg, audit.all)
    return all(one.auc.low <= 0.5 <= one.auc.high and one.advantage.low <= 0 <= one.advantage.high for one in rows)


MODELS = {"loss": stored_flow, "critic": stored_gan, "likelihood": lambda stored: KernelDensity(stored.flatten(1))}


@pytest.mark.parametrize("signal", MODELS)
def test_a_model_that_knows_its_training_images_by_heart_is_found_out(signal):
    data = small()
    audit = membership_inference(MODELS[signal](trained_on(data)), data)
    assert audit.signal == signal
    assert [client.pairs for client in audit.clients] == [40, 40]
    for row in (*audit.clients, audit.avg, audit.all):
        assert row.auc.value > 0.95
        assert row.advantage.value > 0.85
        assert row.advantage.low > 0.6


@pytest.mark.parametrize("signal", MODELS)
def test_a_model_of_other_images_tells_nothing(signal):
    data, others = apart_from(small(160))
    assert knows_nothing(membership_inference(MODELS[signal](others), data, seed=0))  # of 20 seeds one does not


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["critic", "loss"])
def test_a_model_that_trained_on_few_images_is_found_out_by_them_and_not_by_others(signal):
    others = Digits().load("train").subset(torch.arange(400, 1000))
    data, elsewhere = small(40), FederatedDataModule(others, IID(2), held_out=0.5, seed=0)
    torch.manual_seed(0)
    if signal == "critic":
        model = GAN(SmallGenerator(), SmallCritic(), Hinge(), lr=1e-3)
    else:
        model = FlowMatching(DenseVelocity(), lr=1e-2, ema_decay=None)
    quiet_trainer(6, strategy=FedAvgStrategy(communication_interval=60, seed=0)).fit(model, data)
    found = membership_inference(model, data)
    assert found.signal == signal
    assert found.all.auc.low > 0.8
    assert found.all.advantage.value > 0.6
    assert knows_nothing(membership_inference(model, elsewhere))


def test_copies_are_found_by_their_distance_and_other_images_are_not():
    data = digits(held_out=0.2)
    copies = EmpiricalGenerator(data.examples.subset(data.pooled("train")), replacement=True)
    found = membership_inference(copies, data, embedding="pixels", num_images=3000)
    assert found.signal == "distance"
    assert found.words == "distance to the nearest of 3,000 generated images in pixels"
    assert found.all.auc.value > 0.9
    data, _ = apart_from(digits())
    own = set(data.pooled("train").tolist()) | set(data.pooled("held_out").tolist())
    assert len(own) == len(data.examples)
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(1))
    elsewhere = EmpiricalGenerator(Digits().load("train").subset(order[718:]), replacement=True)
    assert knows_nothing(membership_inference(elsewhere, data, embedding="pixels", num_images=500))


def test_members_and_others_share_their_noise_and_draws_are_averaged():
    data = small()
    model = Noisy(trained_on(data), noise=0.0)
    membership_inference(model, data, draws=5)
    assert len(model.seeds) == 2 * 2 * 2  # clients, parts, draws: the second was the first again
    loud = Noisy(trained_on(data), noise=5.0)
    audit = membership_inference(loud, data, draws=64)
    assert len(loud.seeds) == 2 * 2 * 64
    assert loud.seeds[:2] == [loud.seeds[0]] * 2  # of the first draw's members and others
    assert len(set(loud.seeds)) == 64
    one = membership_inference(Noisy(trained_on(data), noise=5.0), data, draws=1)
    assert audit.avg.auc.value > one.avg.auc.value + 0.05


def test_a_critic_that_compares_the_images_of_a_batch_gets_members_and_others_together():
    """Apart, every member's value would be above every other image's."""
    data = small()
    found = membership_inference(stored_gan(trained_on(data), together=True), data)
    assert 0.2 < found.all.auc.value < 0.8


def test_members_are_drawn_from_training_images_and_are_as_many_as_held_out_ones():
    data = digits(held_out=0.2)
    attacked, few = membership._pairs_of(data.clients, 3)
    assert few == []
    for client, one in zip(data.clients, attacked):
        assert set(one.members.tolist()) < set(client.train.tolist())
        assert one.others.tolist() == client.held_out.tolist()
        assert len(one.members) == len(client.held_out)


def test_the_same_seed_finds_the_same_and_the_average_goes_by_training_images():
    data = FederatedDataModule(Digits(), ByClass(), held_out=0.2, seed=0)
    model = Noisy(trained_on(data), noise=1.0)
    first, again = (membership_inference(model, data, seed=5) for _ in range(2))
    assert first == again
    sizes = torch.tensor([len(client.train) for client in data.clients]).double()
    areas = torch.tensor([row.auc.value for row in first.clients]).double()
    assert first.avg.auc.value == pytest.approx(float(sizes @ areas / sizes.sum()))
    assert [row.name for row in first.clients] == [client.name for client in data.clients]


def test_clients_with_few_images_are_left_out_by_name_and_none_at_all_is_an_error():
    owners = torch.arange(3).repeat_interleave(torch.tensor([60, 12, 60]))
    points = torch.randn(132, 2, generator=torch.Generator().manual_seed(0))
    examples = Examples(points, torch.zeros(132, dtype=torch.int64), "points", (), owners, ("a", "b", "c"))
    data = FederatedDataModule(examples, Natural(), held_out=0.5)
    with pytest.warns(UserWarning, match="attacked"):
        found = membership_inference(KernelDensity(points), data)
    assert ([row.name for row in found.clients], found.left_out) == (["a", "c"], ["b"])
    with pytest.raises(ValueError, match="both"):
        membership_inference(KernelDensity(points), FederatedDataModule(examples, Natural(), held_out=0.0))


def test_what_cannot_be_attacked_is_refused():
    data = small()
    with pytest.raises(TypeError, match="example_losses"):
        membership_inference(torch.nn.Linear(2, 2), data)
    with pytest.raises(TypeError, match="GAN"):
        membership_inference(Noisy(trained_on(data)), data, signal="critic")
    with pytest.raises(ValueError, match="likelihood"):
        SignalOptions(name="losses")
    with pytest.raises(ValueError, match="draws"):
        membership_inference(Noisy(trained_on(data)), data, draws=0)


def test_each_client_is_attacked_through_its_own_model(tmp_path):
    data = federation()
    trainer = fit(tmp_path, Placed(), data, [RoundCheckpoint(every_n_rounds=1)])
    (audit,) = audit_run(tmp_path, module := Placed(), data, seed=2)
    assert (audit.round, audit.checkpoint, audit.all) == (1, "round=00001.ckpt", None)
    kept = trainer.strategy.personal_tensors
    common = trainer.lightning_module.place.common.detach()
    for number, (client, row) in enumerate(zip(data.clients, audit.clients)):
        point = common + kept[number]["place.own"]
        losses = [(data.examples.inputs[part] - point).square().sum(1) for part in (client.train, client.held_out)]
        wins = (losses[0].unsqueeze(1) < losses[1]).double().mean()
        assert row.auc.value == pytest.approx(float(wins), abs=1e-6)
    assert torch.equal(module.place.own, torch.zeros(2))
    stored = json.loads((tmp_path / "membership.json").read_text())
    assert stored["version"] == 1
    assert stored["audits"][0]["clients"][0]["auc"]["value"] == audit.clients[0].auc.value
    assert [one.round for one in audit_run(tmp_path, Placed(), data, [1, 0])] == [0, 1]


def test_rounds_that_are_not_there_are_refused(tmp_path):
    fit(tmp_path, Placed(), federation(), [RoundCheckpoint()])
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        audit_run(tmp_path, Placed(), federation(), [7])


def test_the_table_has_a_row_of_each_client_and_of_all():
    data = small()
    audit = membership_inference(stored_gan(trained_on(data)), data)
    table = membership_table(audit)
    assert str(table.title) == "membership inference by the critic's value"
    assert list(table.columns[0].cells) == ["client 0", "client 1", "avg", "all"]
    auc = audit.clients[0].auc
    assert next(iter(table.columns[2].cells)) == f"{auc.value:.2f} [{auc.low:.2f}, {auc.high:.2f}]"
    assert [column.header for column in table.columns] == ["client", "pairs", "AUC", "advantage"]


def test_a_part_of_a_clients_images_can_be_attacked():
    data = small()
    audit = membership_inference(stored_flow(trained_on(data)), data, pairs=12)
    assert [client.pairs for client in audit.clients] == [12, 12]
    assert audit.avg.auc.value > 0.95
    with pytest.raises(ValueError, match="attack"):
        membership_inference(stored_flow(trained_on(data)), data, pairs=9)
