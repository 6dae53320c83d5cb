"""Scores of models that each scored client fine-tunes first, against what gradient descent by hand gives."""

import lightning as L
import pytest
import torch
from torch import nn

from fedgen import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.evaluation import Evaluator, Run, evaluate_run
from fedgen.evaluation.runs.evaluate_run import LocalFineTuning
from fedgen.evaluation.tables.table import gap_tables, score_tables
from fedgen.models.ema import EMA
from tests.evaluation.places import federation

RATE, STEPS = 0.1, 3


class Mean(L.LightningModule):
    """Its loss is the squared distance to a point, and it samples that point; a moving average is what is used."""

    def __init__(self):
        super().__init__()
        self.point = nn.Linear(1, 2, bias=False)
        self.point.weight.data = torch.tensor([[4.0], [-4.0]])
        self.point_ema = EMA(self.point)

    def training_step(self, batch, batch_idx):
        return (batch[0] - self.point.weight[:, 0]).square().sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.point.parameters(), RATE)

    def sample(self, num_images, generator=None):
        noise = torch.randn(num_images, 2, generator=generator) / 10
        return self.point_ema.network.weight[:, 0] + noise

    def example_losses(self, points, labels=None, seed=0):
        return (points - self.point_ema.network.weight[:, 0]).square().sum(1)


@pytest.fixture
def run(tmp_path):
    """A folder with one checkpoint, whose moving average is elsewhere than its weights."""
    model = Mean()
    model.point_ema.network.weight.data = torch.tensor([[1.0], [2.0]])
    torch.save({"state_dict": model.state_dict()}, tmp_path / "round=00007.ckpt")
    return Run(tmp_path)


OPTIONS = {"num_images": 40, "scores": ["loss", "kid"], "seed": 3}


def tuned_records(run, data):
    """The records of a run's evaluation, and by split, score and aggregate those of fine-tuned models."""
    records = evaluate_run(run, Mean(), Evaluator(data, ["identity"], **OPTIONS), None, LocalFineTuning(data, STEPS))
    return records, {(r.split, r.score, r.aggregate): r for r in records if r.generator == f"fine-tuned {STEPS}"}


def assert_descended(tuned, data, splits):
    """Each client's loss is that of the point that gradient descent by hand reaches from the run's average."""
    by_name = {client.name: client for client in data.everyone}
    for split in splits:
        record = tuned[split, "loss", "avg"]
        assert (record.round, record.checkpoint) == (7, "round=00007.ckpt")
        expected = []
        scored = {s.name: s for s in Evaluator(data, ["identity"], **OPTIONS).splits}[split]
        for name, points in zip(scored.client_names, scored.images.split(list(scored.counts))):
            own = data.examples.inputs[by_name[name].train].mean(0)
            point = own + (1 - 2 * RATE) ** STEPS * (torch.tensor([1.0, 2.0]) - own)
            expected.append(float((points - point).square().sum(1).mean()))
        assert record.per_client == pytest.approx(expected, rel=1e-5)
        assert record.value == pytest.approx(sum(expected) / len(expected), rel=1e-5)
        assert (split, "loss", "all") not in tuned
        assert (split, "kid", "avg") in tuned


def test_clients_that_all_train_are_fine_tuned_too(run):
    data = FederatedDataModule(federation().examples, Natural(), held_out=0.5)
    records, tuned = tuned_records(run, data)
    assert_descended(tuned, data, ("train", "report"))
    assert {split for split, _, _ in tuned} == {"train", "report"}  # no gaps
    (table,) = score_tables(records, "report", width=120)
    rows = [str(cell) for cell in table.columns[0].cells]
    assert rows == ["7", "7, fine-tuned 3"]
    by_heading = {str(column.header).rstrip("~*"): list(column.cells) for column in table.columns}
    assert float(by_heading["kid_avg"][1]) == pytest.approx(tuned["report", "kid", "avg"].value, rel=1e-3)
    assert not by_heading["kid_all"][1]  # there is no one model to hold against the pool
    assert "fine-tuned 3: each client's own model, 3 iterations from the server's" in str(table.caption)


def test_each_client_descends_from_the_average_and_is_scored_alone(run):
    data = federation()
    records, tuned = tuned_records(run, data)
    assert_descended(tuned, data, ("part_train", "part_val", "unpart"))
    gap = tuned["gap/participation", "loss", "avg"]
    assert gap.value == pytest.approx(tuned["unpart", "loss", "avg"].value - tuned["part_val", "loss", "avg"].value)
    assert gap.error_over_clients > 0
    before = {(r.split, r.score, r.aggregate): r for r in records if r.generator == "model"}
    assert tuned["unpart", "loss", "avg"].value < before["unpart", "loss", "avg"].value
    assert before["unpart", "loss", "all"].value  # the model as it is has one
    assert run.records  # stored beside each other
    table = gap_tables(run.records)[0]
    assert [cell for cell in table.columns[0].cells if "fine-tuned" in str(cell)] == ["7, fine-tuned 3"]
    assert "fine-tuned 3: each client's own model" in str(table.caption)


def test_the_training_data_and_roles_stay_as_they_were(run):
    data = federation()
    roles, clients = data.roles, data.clients
    evaluate_run(run, Mean(), Evaluator(data, None, 10, ["loss"]), None, LocalFineTuning(data, 1))
    assert data.roles is roles
    assert data.clients is clients


def test_what_cannot_be_fine_tuned_is_refused(run, tmp_path):
    data = federation()
    with pytest.raises(ValueError, match="fine_tune"):
        LocalFineTuning(data, 0)
