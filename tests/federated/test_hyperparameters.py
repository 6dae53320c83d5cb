"""Hyperparameters that are objects are named before training, and where their checkpoints are read."""

import enum
import warnings
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import OmegaConf
from torch import nn

from fedgen.callbacks import RoundCheckpoint
from fedgen.clients import FederatedDataModule
from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.federated import FedAvgStrategy
from fedgen.federated.lightning.checkpoints import plain
from fedgen.io.tensor_files import read_torch
from tests.federated.modules import Automatic, Contiguous, make_data, make_trainer, same, weights

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


# ---- what is written as plain values ----


class Colour(enum.Enum):
    RED = 1


@dataclass
class Net:
    options: Options = field(default_factory=Options)
    folder: Path = Path("data")
    sizes: tuple = (PurePosixPath("a"), 2)


CONFIG = OmegaConf.create({"width": 3, "model": {"twice": "${width}", "sizes": [1, "${width}"], "home": Path("data")}})
PLAIN_CONFIG = {"width": 3, "model": {"twice": 3, "sizes": [1, 3], "home": "data"}}
KINDS = {
    "OmegaConf": (CONFIG, PLAIN_CONFIG),
    "a list of OmegaConf": (OmegaConf.create([1, {"a": 2}]), [1, {"a": 2}]),
    "Path": (Path("data") / "images", str(Path("data") / "images")),
    "dataclass": (Net(), {"options": {"width": 3}, "folder": "data", "sizes": ("a", 2)}),
    "nested": (
        {"a": [Options(2), {"b": Path("c"), "d": CONFIG}], "e": None},
        {"a": [{"width": 2}, {"b": "c", "d": PLAIN_CONFIG}], "e": None},
    ),
}


class OfEachKind(Automatic):
    def __init__(self, config, items, folder, net, nested, width=3, sizes=(1, 2)):
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("saver", [ModelCheckpoint, RoundCheckpoint])
def test_they_are_written_plain_and_the_run_is_resumed_bit_for_bit(tmp_path, saver):
    given, expected = [value for value, _ in KINDS.values()], [plain for _, plain in KINDS.values()]
    named = dict(zip(("config", "items", "folder", "net", "nested"), expected))

    def trained(rounds, **options):
        torch.manual_seed(0)
        module = OfEachKind(*given)
        callback = (
            ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
            if saver is ModelCheckpoint
            else saver(tmp_path, every_n_rounds=1)
        )
        trainer = make_trainer(
            FedAvgStrategy(1, seed=0),
            rounds,
            callbacks=[callback],
            default_root_dir=tmp_path,
            enable_checkpointing=True,
        )
        trainer.fit(module, make_data(), **options)
        return weights(module)

    whole = trained(2)
    paths = sorted(tmp_path.rglob("*.ckpt"))
    assert paths
    for path in paths:
        assert read_torch(path)["hyper_parameters"] == {**named, "width": 3, "sizes": (1, 2)}
    first = next(path for path in paths if read_torch(path)["epoch"] == 0)
    assert same(trained(2, ckpt_path=first), whole)
    assert same(load_weights(OfEachKind(*given), first)["state_dict"], read_torch(first)["state_dict"])
    assert {name: OfEachKind.load_from_checkpoint(first).hparams[name] for name in named} == named


class Whole(Automatic):
    """Has a whole configuration for its hyperparameters, as Hydra's projects do."""

    def __init__(self, config):
        super().__init__()
        self.save_hyperparameters(config)
        self.width = config["width"]


class Configured(FederatedDataModule):
    def __init__(self, config):
        data = make_data()
        super().__init__(data.data, Contiguous((12, 20, 8)), batch_size=config.model.sizes[1], held_out=0.0, seed=0)
        self.save_hyperparameters(config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_whole_configuration_is_written_plain_also_of_a_data_module(tmp_path):
    def trained(rounds, **options):
        torch.manual_seed(0)
        module = Whole(CONFIG)
        saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        trainer = make_trainer(FedAvgStrategy(1, seed=0), rounds, callbacks=[saver], enable_checkpointing=True)
        trainer.fit(module, Configured(CONFIG), **options)
        return weights(module)

    whole, path = trained(2), tmp_path / "epoch=0.ckpt"
    found = read_torch(path)
    assert found["hyper_parameters"] == found["datamodule_hyper_parameters"] == PLAIN_CONFIG
    assert found["hparams_name"] == "config"
    assert not any(name.endswith("hparams_type") for name in found)
    assert same(trained(2, ckpt_path=path), whole)
    assert Whole.load_from_checkpoint(path).hparams == PLAIN_CONFIG
    assert Whole.load_from_checkpoint(path, config=CONFIG).hparams == CONFIG


def test_interpolations_that_mean_nothing_here_stay_as_they_are():
    config = OmegaConf.create({"here": "${no.such.place}", "kind": Colour.RED})
    assert plain({"a": config}) == {"a": {"here": "${no.such.place}", "kind": "RED"}}


def test_other_values_stay():
    tensor, net = torch.ones(2), nn.Linear(1, 1)
    values = [1, 2.5, "a", None, True, tensor, net, Options, {1, 2}, torch.float32]
    assert all(one is other for one, other in zip(plain(values), values, strict=True))
    with torch.serialization.safe_globals([Options]):
        assert plain({"a": Options()}) == {"a": Options()}
