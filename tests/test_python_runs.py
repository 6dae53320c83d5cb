"""Runs trained in Python, without a recipe: the same tables and curves, and scored again by what their author names."""

import json
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import nn

from fedgen import FedAvgStrategy, FederatedEvaluation, RoundCheckpoint
from fedgen.__main__ import main
from fedgen.evaluation import Run, evaluate, print_report
from fedgen.evaluation.federation_splits import as_splits
from tests.trainers import quiet_trainer

OWN = '''
import lightning as L, torch
from fedgen import ByClass, Digits, FederatedDataModule


class Brush(L.LightningModule):
    """Paints with one grey level and noise."""

    def __init__(self, noise=0.5):
        super().__init__()
        self.save_hyperparameters()
        self.level = torch.nn.Parameter(torch.zeros(1, 8, 8))

    def training_step(self, batch, index):
        return (self.level - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)

    def sample(self, num_images, generator=None):
        noise = torch.randn(num_images, 1, 8, 8, generator=generator)
        return (self.level.cpu() + self.hparams.noise * noise).clamp(-1, 1)


def make_model():
    return Brush()


def make_data():
    return FederatedDataModule(Digits(), ByClass())


data_of_seed_1 = FederatedDataModule(Digits(), ByClass(), seed=1)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of somebody's own in the folder where they work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # put back afterwards, whatever seed_everything makes of it
    Path("own_brush.py").write_text(OWN)
    import own_brush

    yield own_brush
    import sys

    del sys.modules["own_brush"]


def train(own, folder="runs/own", **options):
    L.seed_everything(3, verbose=False)
    trainer = quiet_trainer(
        2,
        strategy=FedAvgStrategy(communication_interval=1),
        callbacks=[FederatedEvaluation(1, ["pixels"], num_images=80, **options), RoundCheckpoint()],
        enable_checkpointing=True,
        default_root_dir=folder,
    )
    trainer.fit(own.make_model(), own.make_data())


def words(capsys):
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


@pytest.mark.slow
def test_the_end_of_a_run_is_its_tables_and_curves_and_they_can_be_had_again(own, capsys):
    train(own)
    said = words(capsys)
    for part in ("embedding pixels", "Selected by each column", "pairs of checkpoints", "runs/own/curves.png"):
        assert part in said
    assert Path("runs/own/curves.png").read_bytes()[:4] == b"\x89PNG"
    print_report("runs/own")
    assert "Selected by each column" in words(capsys)
    assert main(["select", "runs/own"]) == 0
    assert "round=0000" in words(capsys)
    train(own, "runs/silent", report=False)
    assert "Selected" not in words(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["own_brush:make_model", "own_brush.Brush", "own_brush.py:make_model"])
def test_its_checkpoints_are_scored_again_by_what_is_named(own, monkeypatch, model):
    train(own, report=False)
    before = {(r.round, r.name): r.value for r in Run("runs/own").records if r.is_model and r.split == "train"}
    monkeypatch.delenv("PL_GLOBAL_SEED")  # another process knows nothing of the script's seed
    named = ["--model", model, "--data", "own_brush:make_data"]
    assert main(["evaluate", "runs/own", "pixels", "--num_images", "80", *named]) == 0
    records = [r for r in Run("runs/own").records if r.is_model and r.split == "train"]
    assert {r.seed for r in records} == {3}
    assert {(r.round, r.name): r.value for r in records} == pytest.approx(before)  # the same clients, the same images


@pytest.mark.slow
def test_what_is_missing_is_said_with_the_call_that_does_it(own, capsys):
    train(own, report=False)
    scored = ["evaluate", "runs/own", "pixels", "--num_images", "80"]
    for arguments, message in [
        ([], "trained in Python, which keeps no recipe: say what its model and data are with --model my_module:make"),
        ([], "call evaluate_run('runs/own', model, Evaluator(data, ['pixels'])) of fedgen.evaluation"),
        (["--model", "own_brush:make_model"], "--model and --data go together"),
        (
            ["--model", "own_brush:make_model", "--data", "own_brush:data_of_seed_1"],
            "seed 3, and own_brush:data_of_seed",
        ),
        (["--model", "own_brush:make_data", "--data", "own_brush:make_data"], "must be a LightningModule"),
        (["--model", "own_brush:make_modl", "--data", "own_brush:make_data"], "did you mean 'make_model'?"),
        (["--model", "gone.py:make_model", "--data", "own_brush:make_data"], "there is no file gone.py"),
    ]:
        assert main([*scored, *arguments]) == 2
        assert message in words(capsys)
    assert main(["evaluate", "runs/none", "pixels"]) == 2
    assert "give the folder of a run made by `fedgen fit`" in words(capsys)


@pytest.mark.slow
def test_its_clients_are_shown_of_the_data_that_are_named(own, capsys, monkeypatch):
    train(own, report=False)
    monkeypatch.delenv("PL_GLOBAL_SEED")
    look = ["clients", "runs/own", "--embedding", "pixels", "--num_images", "100", "--controls", "0"]
    assert main([*look, "--data", "own_brush:make_data"]) == 0
    assert "digits/train: 1,797 images, 10 clients, seed 3" in words(capsys)
    stored = json.loads(Path("checkpoints/clients-own/clients.json").read_text())
    assert stored["partition"]["class"] == "ByClass"
    assert stored["partition"]["saved"] == "runs/own/partition.npz"
    for arguments, message in [
        ([], "its partition.npz says which of the 1797 examples of digits/train each of its 10 clients has (seed 3)"),
        ([], "fedgen clients runs/own --data my_module:make_data"),
        (["--data", "own_brush:data_of_seed_1"], "seed 3, and own_brush:data_of_seed"),
        (["--data", "own_brush:make_model"], "must be a FederatedDataModule"),
        (["--data.batch_size", "3"], "which is over; leave --data.batch_size=3 out"),
    ]:
        assert main([*look, *arguments]) == 2
        assert message in words(capsys)
    Path("runs/own/partition.npz").unlink()
    assert main(look) == 2
    assert "no partition.npz either, which FederatedEvaluation writes" in words(capsys)


def test_evaluate_takes_a_data_module_its_clients_or_their_examples(own):
    data, model = own.make_data(), own.make_model()
    options = {"embeddings": ["pixels"], "num_images": 80, "seed": 0, "scores": ["fid"]}

    def found(clients):
        return {r.aggregate: r.value for r in evaluate(model, clients, **options) if r.split == "train"}

    whole = found(data)
    assert found(data.clients) == whole
    assert found([client.train_examples for client in data.clients]) == whole
    assert found({"train": [client.train_examples for client in data.clients]}) == whole
    assert as_splits(data.clients)[0].client_names == tuple(client.name for client in data.clients)


@pytest.mark.parametrize(
    ("clients", "got"),
    [
        (torch.zeros(3, 1, 8, 8), "got a Tensor"),
        ([torch.zeros(3, 1, 8, 8, dtype=torch.uint8)], "got a list of Tensor"),
        ([], "got a list of nothing"),
        ("digits", "got a str"),
        ({"train": [torch.zeros(3, 1, 8, 8)]}, "split 'train' is a list of Examples, one a client; got a Tensor in it"),
    ],
)
def test_other_clients_are_named(clients, got):
    with pytest.raises(TypeError, match=got):
        evaluate(nn.Identity(), clients, embeddings=["pixels"])


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unexpected"):
        evaluate(nn.Identity(), [], embedding="pixels")
