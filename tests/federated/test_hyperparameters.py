"""Hyperparameters that are objects are named before training, and where their checkpoints are read."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from fedgen.evaluation.runs.checkpoints import load_weights
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer

SAID = r"the hyperparameter 'net' of Given is of class torch.nn.modules.linear.Linear: .*ignore=\['net'\]"


@dataclass
class Options:
    width: int = 3


class Given(Automatic):
    def __init__(self, net, width=3, sizes=(1, 2), ignore=()):
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # Lightning says, too, that a module is better left out
            self.save_hyperparameters(ignore=list(ignore))
        self.extra = net if isinstance(net, nn.Module) else None


def fit(module, folder, rounds=1, **options):
    callbacks = [ModelCheckpoint(folder, "{epoch}")] if folder else []
    trainer = make_trainer(FedAvgStrategy(1, seed=0), rounds, callbacks=callbacks, enable_checkpointing=bool(folder))
    trainer.fit(module, make_data(), **options)


def test_an_object_among_the_hyperparameters_is_warned_of_before_training(tmp_path):
    class Untrained(Given):
        def on_fit_start(self):
            raise KeyboardInterrupt

    Untrained.__name__ = "Given"
    with pytest.warns(UserWarning, match=SAID), pytest.raises(SystemExit):
        fit(Untrained(nn.Linear(2, 2)), tmp_path)


@pytest.mark.filterwarnings("ignore:the hyperparameter 'net'", "ignore:Checkpoint directory .* exists")
def test_its_checkpoints_are_refused_by_the_class_with_the_remedy(tmp_path):
    fit(Given(nn.Linear(2, 2)), tmp_path)
    path = tmp_path / "epoch=0.ckpt"
    said = r"epoch=0.ckpt .*it holds torch.nn.modules.linear.Linear, which .*save_hyperparameters\(ignore="
    with pytest.raises(ValueError, match=said) as found:
        fit(Given(nn.Linear(2, 2)), tmp_path, 2, ckpt_path=path)
    assert "damaged" not in str(found.value)
    with pytest.raises(ValueError, match=said):
        load_weights(Given(nn.Linear(2, 2)), path)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_class_that_is_allowed_is_neither_warned_of_nor_refused(tmp_path):
    with torch.serialization.safe_globals([Options]):
        fit(Given(Options()), tmp_path)
        fit(Given(Options()), tmp_path, 2, ckpt_path=tmp_path / "epoch=0.ckpt")


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_remedy_lets_the_run_be_resumed(tmp_path):
    fit(Given(nn.Linear(2, 2), ignore=["net"]), tmp_path)
    fit(Given(nn.Linear(2, 2), ignore=["net"]), tmp_path, 2, ckpt_path=tmp_path / "epoch=0.ckpt")


def test_plain_hyperparameters_and_runs_without_checkpoints_are_not_warned_of(tmp_path):
    fit(Given({"a": [1, "b"]}), tmp_path)
    fit(Given(nn.Linear(2, 2)), None)
