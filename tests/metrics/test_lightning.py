"""Metrics as attributes of any LightningModule, logged by a real Trainer."""

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from tests.metrics.sets import CLIENTS, FEDERATED, METRICS, features, filled
from tests.trainers import quiet_trainer

NOISE = features(25, 3)  # what the module "generates" from zeros


class Scored(LightningModule):
    """Moves its generated points by a learned shift; scores them against clients' validation points."""

    def __init__(self, name):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(1))
        make = METRICS[name]
        self.distance = make(aggregate="all")
        self.several = MetricCollection(
            {"scores": make(aggregate=("avg", "worst", 2) if "frechet" in name else ("avg", "worst"))}
        )

    def training_step(self, batch, batch_idx):
        return (self.shift - 1).square().sum()

    def validation_step(self, batch, batch_idx):
        points, clients = batch
        self.distance(points, client=clients)  # calling is updating
        self.several.update(points, client=clients)
        self.log("score", self.distance)

    def on_validation_epoch_start(self):
        for metric in (self.distance, self.several):  # Lightning computes what a step logs before the epoch's end
            metric.update(NOISE + self.shift.float(), client=None)

    def on_validation_epoch_end(self):
        self.log_dict(self.several.compute())
        self.several.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.zeros(1)))

    def val_dataloader(self):
        clients = torch.repeat_interleave(torch.arange(3), torch.tensor([len(part) for part in CLIENTS]))
        return DataLoader(TensorDataset(torch.cat(CLIENTS), clients), batch_size=7)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.parametrize("name", FEDERATED)
def test_a_scalar_metric_and_a_collection_are_logged_with_the_right_values(name, precision, tmp_path):
    module = Scored(name)
    (logged,) = quiet_trainer(default_root_dir=tmp_path, precision=precision).validate(module, verbose=False)
    key = "fid" if "frechet" in name else "kid"
    assert set(logged) == {"score", f"{key}_avg", f"{key}_worst", *([f"{key}_power_2"] if key == "fid" else [])}
    if precision == "32-true":
        expected = filled(name).compute()
        assert logged["score"] == pytest.approx(expected[f"{key}_all"].item(), rel=1e-6)
        assert logged[f"{key}_avg"] == pytest.approx(expected[f"{key}_avg"].item(), rel=1e-6)
    states = [v for s in module.distance.metric_state.values() for v in (s if isinstance(s, list) else [s])]
    assert {state.dtype for state in states} <= {torch.float64, torch.int64}


@pytest.mark.parametrize("name", FEDERATED)
def test_every_epoch_starts_anew_and_a_checkpoint_can_watch_the_score(name, tmp_path):
    module = Scored(name)
    saved = ModelCheckpoint(tmp_path, filename="{epoch}", monitor="score", save_top_k=-1)
    run = quiet_trainer(
        default_root_dir=tmp_path, rounds=2, num_sanity_val_steps=0, callbacks=[saved], enable_checkpointing=True
    )
    run.fit(module)
    scores = {path: score.item() for path, score in saved.best_k_models.items()}
    assert len(scores) == 2
    for path, score in scores.items():
        shift = torch.load(path, weights_only=True)["state_dict"]
        assert list(shift) == ["shift"]
        exact = METRICS[name](aggregate="all")
        exact.update(torch.cat(CLIENTS), client=0)
        exact.update(NOISE + shift["shift"], client=None)
        assert score == pytest.approx(exact.compute().item(), rel=1e-6)


def test_a_sanity_check_with_too_few_batches_says_how_to_switch_it_off(tmp_path):
    with pytest.raises(ValueError, match="num_sanity_val_steps"):
        quiet_trainer(default_root_dir=tmp_path, num_sanity_val_steps=1).fit(Scored("federated-frechet"))


def test_a_metric_that_gives_a_dict_is_refused_by_log_with_its_value(tmp_path):
    module = Scored("federated-frechet")
    module.distance = METRICS["federated-frechet"]()
    with pytest.raises(ValueError, match=r"fid_avg"):
        quiet_trainer(default_root_dir=tmp_path).validate(module, verbose=False)


class Listed(Scored):
    """Logs a collection of scalar metrics as it is: Lightning computes and resets each."""

    def __init__(self, name):
        super().__init__(name)
        make = METRICS[name]
        self.several = MetricCollection({word: make(aggregate=word) for word in ("avg", "all", "worst")})

    def on_validation_epoch_end(self):
        pass

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log_dict(self.several)


@pytest.mark.parametrize("name", FEDERATED)
def test_a_collection_of_scalar_metrics_is_logged_as_it_is_epoch_after_epoch(name, tmp_path):
    module, key = Listed(name), "fid" if "frechet" in name else "kid"
    run = quiet_trainer(default_root_dir=tmp_path)
    expected = {k.removeprefix(f"{key}_"): v for k, v in filled(name).compute().items()}
    for _ in range(2):
        (logged,) = run.validate(module, verbose=False)
        assert logged.keys() == {"avg", "all", "worst", "score"}
        for word in ("avg", "all", "worst"):
            assert logged[word] == pytest.approx(expected[word].item(), rel=1e-6)
