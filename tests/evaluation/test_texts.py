"""Data without images: texts, and items of any structure, scored by the model's own loss of them."""

import json
import math

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule, ThreeWaySplit
from fedgen.clients.partitions import IID, Natural
from fedgen.data.text import encode, windows_of
from fedgen.evaluation import Evaluator, evaluate
from fedgen.evaluation.federation_splits import splits_of
from fedgen.evaluation.records import by_column
from fedgen.federated import FedAvgStrategy
from fedgen.models import CharacterTransformer
from tests.federated.modules import make_trainer

OWNERS = [f"owner {place}" for place in range(6)]


def texts(length=4):
    """Six owners, each of whom writes a letter of its own between "x" and "y"."""
    return windows_of({owner: f"x{'abcdef'[place]}y" * 40 for place, owner in enumerate(OWNERS)}, length, "notes/train")


def federation(data=None, **options):
    shape = {"batch_size": 8, "held_out": 0.5, "seed": 0, "split": ThreeWaySplit(0.5), **options}
    return FederatedDataModule(texts() if data is None else data, Natural(), **shape)


def model():
    torch.manual_seed(0)
    return CharacterTransformer(4, 8, 1, 1, 1e-2)


def test_the_loss_of_texts_is_that_of_their_windows_by_client_and_split():
    data, module = federation(), model()
    found = {name: group[0] for name, group in by_column(evaluate(module, data, scores=["loss"])).items()}
    for split in splits_of(data):
        column = "loss" if split.name == "part_train" else f"{split.name}/loss"
        own = module.example_losses(split.images).double()
        each = [float(part.mean()) for part in own.split(list(split.counts))]
        assert found[f"{column}_all"].value == pytest.approx(float(own.mean()), rel=1e-9)
        assert found[f"{column}_avg"].per_client == pytest.approx(each, rel=1e-9)
        assert found[f"{column}_pct95"].value == pytest.approx(max(each), rel=1e-9)
        assert found[f"{column}_avg"].reference.endswith("texts")
    gap = found["unpart/loss_avg"].value - found["part_val/loss_avg"].value
    assert found["gap/participation/loss_avg"].value == pytest.approx(gap, rel=1e-6)


def test_scores_of_images_are_refused_for_texts_by_name():
    with pytest.raises(ValueError, match="compares"):
        Evaluator(federation())


class Sentences(Dataset):
    """Items that are dictionaries, as tokenizers give them."""

    def __init__(self, owners=range(6), each=20):
        self.rows = [(place, number) for place in owners for number in range(each)]
        self.owners = [OWNERS[place] for place, _ in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, position):
        place, number = self.rows[position]
        ids = encode("abcdef"[place] * 6) + number % 3
        return {"input_ids": ids, "attention_mask": torch.ones(6, dtype=torch.int64), "weight": float(place)}


class Words(L.LightningModule):
    """Of dictionaries: the mean of their tokens beside a number that it learns."""

    def __init__(self):
        super().__init__()
        self.guess = torch.nn.Parameter(torch.tensor(90.0))

    def losses(self, batch):
        return (batch["input_ids"].float() - self.guess).square().mean(1) + batch["weight"].float()

    def training_step(self, batch, batch_idx):
        return self.losses(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def example_losses(self, batch, labels=None, seed=0):
        assert isinstance(batch, dict)
        assert labels is None
        with torch.no_grad():
            return self.losses(batch)


def by_hand(module, owner, positions):
    items = [Sentences()[int(at)] for at in positions]
    assert {OWNERS[int(item["weight"])] for item in items} == {owner}
    return [
        float((item["input_ids"].float() - module.guess.detach()).square().mean()) + item["weight"] for item in items
    ]


def test_items_of_any_structure_are_scored_by_the_model_s_own_loss():
    data, module = federation(Sentences(), owners="owners", num_workers=0), Words()
    records = by_column(evaluate(module, data, scores=["loss"]))
    avg = records["part_val/loss_avg"][0]
    clients = {client.name: client for client in data.clients}
    assert avg.client_names
    for name, value in zip(avg.client_names, avg.per_client):
        held = by_hand(module, name, clients[name].held_out)
        assert value == pytest.approx(sum(held) / len(held), rel=1e-6)
    assert avg.reference.endswith("30 items")


def test_items_are_scored_while_a_module_of_them_trains(tmp_path):
    data = FederatedDataModule(Sentences(), Natural(), 8, owners="owners", seed=0)
    judge = FederatedEvaluation(every_n_rounds=1, scores=["loss"], report=False)
    strategy = FedAvgStrategy(communication_interval=3, cohort_size=3)
    trainer = make_trainer(strategy, 2, callbacks=[judge], default_root_dir=tmp_path)
    trainer.fit(Words(), data)
    records = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    first, last = (next(r for r in records if r["round"] == round and r["split"] == "train") for round in (0, 1))
    assert last["value"] < first["value"]
    assert len(first["per_client"]) == 6
    assert float(trainer.callback_metrics["loss_avg"]) == pytest.approx(last["value"])


def test_clients_loaders_of_different_batches_are_scored_each_in_its_own():
    def shifted(items):
        return {**torch.utils.data.default_collate(items), "weight": torch.full((len(items),), 100.0)}

    loaders = {
        "plain": DataLoader(Sentences([0]), 4),
        "shifted": DataLoader(Sentences([1]), 4, collate_fn=shifted),
    }
    data = FederatedDataModule(loaders, held_out=0.5, seed=0)
    avg = by_column(evaluate(Words(), data, scores=["loss"]))["report/loss_avg"][0]
    found = dict(zip(avg.client_names, avg.per_client))
    assert found["shifted"] > 100
    assert found["plain"] < 100


def test_scores_of_images_are_refused_for_items_without_any():
    data = FederatedDataModule(Sentences(), IID(3))
    with pytest.raises(ValueError, match="images_of"):
        Evaluator(data)


def test_losses_of_another_number_of_items_are_refused():
    class Wrong(Words):
        def example_losses(self, batch, labels=None, seed=0):
            return super().example_losses(batch).mean()[None]

    with pytest.raises(ValueError, match="example_losses"):
        evaluate(Wrong(), FederatedDataModule(Sentences(), IID(3)), scores=["loss"])


# ---------------------------------------------------------- metrics by class path

PERPLEXITY = "torchmetrics.text.Perplexity"


def test_perplexity_of_each_client_and_of_all_is_that_of_the_mean_loss():
    """All windows are of one length, so the perplexity of a set is exp of its mean loss."""
    found = by_column(evaluate(model(), federation(), scores=["loss", PERPLEXITY]))
    for place in ("", "part_val/", "unpart/"):
        loss, avg, every = (found[f"{place}{name}"][0] for name in ("loss_avg", "perplexity_avg", "perplexity_all"))
        assert avg.per_client == pytest.approx([math.exp(value) for value in loss.per_client], rel=1e-5)
        assert every.value == pytest.approx(math.exp(loss.value), rel=1e-5)
        assert avg.value >= every.value  # of a convex function
    gap = found["unpart/perplexity_all"][0].value - found["part_val/perplexity_all"][0].value
    assert found["gap/participation/perplexity_all"][0].value == pytest.approx(gap)
    assert avg.score_settings == {"metric": PERPLEXITY}
    assert avg.higher_is_better is False


class Judge(Words):
    """Asked for predictions alone: of dictionaries, whether a text weighs more than 2, by chance right or wrong."""

    example_losses = None

    def predictions(self, batch, labels=None, seed=0):
        weighs_more = (batch["weight"] > 2).long()
        return torch.where(batch["input_ids"][:, 0] % 2 == 0, weighs_more, 1 - weighs_more), weighs_more


def test_a_metric_of_items_of_any_structure_needs_no_losses():
    name = "torchmetrics.classification.BinaryAccuracy"
    data = federation(Sentences(), owners="owners", split=None)
    found = by_column(evaluate(Judge(), data, scores=[{"name": name, "threshold": 0.5}]))
    avg = found["binaryaccuracy_avg"][0]
    for client, value in zip(data.clients, avg.per_client):
        even = [int(Sentences()[int(at)]["input_ids"][0]) % 2 == 0 for at in client.train]
        assert value == pytest.approx(sum(even) / len(even))
    assert avg.higher_is_better
    assert found["binaryaccuracy_worst"][0].value == pytest.approx(min(avg.per_client))
    assert avg.score_settings == {"metric": name, "threshold": 0.5}


def test_metrics_are_columns_while_a_model_trains(tmp_path):
    data = FederatedDataModule(texts(), Natural(), 8, seed=0)
    judge = FederatedEvaluation(every_n_rounds=1, scores=["loss", PERPLEXITY], report=False)
    strategy = FedAvgStrategy(communication_interval=2, cohort_size=2, personal=["head.bias"])
    trainer = make_trainer(strategy, 1, callbacks=[judge], default_root_dir=tmp_path)
    trainer.fit(model(), data)
    assert "perplexity_avg" in trainer.callback_metrics
    assert "perplexity_all" not in trainer.callback_metrics  # every client has a model of its own


@pytest.mark.parametrize(
    ("score", "says"),
    [
        ("torchmetrics.text.Nothing", "has no 'Nothing'"),
        ("torch.nn.Linear", "torch.nn.Linear is no torchmetrics class"),
        ({"name": PERPLEXITY, "ignore": 3}, "cannot be made of {'ignore': 3}"),
        ("torchmetrics.SumMetric", "does not say whether more of it is better"),
        ("perplexity", "unknown score 'perplexity'; known: .*fid, .*, and your own and torchmetrics classes by class"),
        ("metric", "unknown score 'metric'"),
    ],
)
def test_metrics_that_cannot_be_made_are_refused_before_any_work(score, says):
    with pytest.raises(ValueError, match=says):
        Evaluator(federation(), scores=[score])


def test_a_model_without_predictions_and_a_metric_of_many_numbers_are_refused():
    with pytest.raises(TypeError, match="predictions"):
        evaluate(Words(), federation(Sentences(), owners="owners"), scores=[PERPLEXITY])

    class Classes(Judge):
        def predictions(self, batch, labels=None, seed=0):
            found, real = super().predictions(batch)
            return found, real

    many = {"name": "torchmetrics.classification.MulticlassAccuracy", "num_classes": 2, "average": "none"}
    with pytest.raises(ValueError, match="MulticlassAccuracy"):
        evaluate(Classes(), federation(Sentences(), owners="owners"), scores=[many])
