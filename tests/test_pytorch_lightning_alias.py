"""Modules that import `pytorch_lightning` run after one line, and the error without it names that line."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fedgen
from fedgen.__main__ import main
from fedgen.pytorch_lightning_alias import _Aliases

ROOT = Path(__file__).parents[1]
LINE = "import fedgen; fedgen.alias_pytorch_lightning()"
MODULE = """
    import pytorch_lightning as pl
    import torch
    from pytorch_lightning.callbacks import EarlyStopping
    from torch import nn


    class Net(pl.LightningModule):
        def __init__(self, inputs: int = 3, width: int = 16):
            super().__init__()
            self.layer = nn.Linear(inputs, width)

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
"""
TRAIN = """
    from fedgen.federated import FedAvgStrategy
    from tests.federated.modules import make_data, make_trainer
    from theirs import Net
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 1)
    trainer.fit(Net(), make_data())
    print("trained", trainer.current_epoch)
"""


SAID = "No module named 'pytorch_lightning.metrics'\ntrained 1\n"


@pytest.fixture
def folder(tmp_path):
    """A module by others, and what stands for the other package where that is not installed, or is slow to load."""
    (tmp_path / "theirs.py").write_text(textwrap.dedent(MODULE))
    package = tmp_path / "other" / "pytorch_lightning"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import torch\nclass LightningModule(torch.nn.Module): ...\n")
    (package / "callbacks.py").write_text("class EarlyStopping: ...\n")
    return tmp_path


IMPORTS_NOTHING = f"""
    {LINE}
    import sys
    assert "torch" not in sys.modules
"""
# identity first, of packages and of their parts, then a training
BOTH_NAMES = f"""
    {LINE}
    fedgen.alias_pytorch_lightning()
    import pytorch_lightning as other, lightning.pytorch as own
    import pytorch_lightning.callbacks.early_stopping as theirs
    import lightning.pytorch.callbacks.early_stopping as ours
    from pytorch_lightning.callbacks import ModelCheckpoint
    assert other is own and theirs is ours and ModelCheckpoint is own.callbacks.ModelCheckpoint
    assert own.__spec__.name == own.__name__ == "lightning.pytorch"
    assert ours.__spec__.name == "lightning.pytorch.callbacks.early_stopping"
    try:
        import pytorch_lightning.metrics
    except ModuleNotFoundError as error:
        print(error)
"""


def train_under_both_names(before=""):
    return "".join(map(textwrap.dedent, (before, BOTH_NAMES, TRAIN)))


@pytest.mark.slow
def test_after_one_line_both_names_are_one_package_and_a_module_of_the_other_trains(folder):
    """In a new process, which would import the other package."""
    path = os.pathsep.join(map(str, (ROOT, folder, folder / "other")))
    command = [sys.executable, "-W", "ignore", "-c", train_under_both_names(IMPORTS_NOTHING)]
    options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path}, "timeout": 300}
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.stdout == SAID, result.stderr


@pytest.fixture
def unaliased(monkeypatch):
    """This process as it is before a command has aliased the package, and again afterwards."""
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, _Aliases)])
    for name in imported("pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in imported("pytorch_lightning", "theirs"):
        del sys.modules[name]


def imported(*packages):
    return [name for name in sys.modules if name.split(".")[0] in packages]


@pytest.mark.usefixtures("unaliased")
def test_the_other_package_need_not_be_there(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    exec(train_under_both_names(), {})
    assert capsys.readouterr().out == SAID


@pytest.mark.usefixtures("unaliased")
def test_without_the_line_the_error_names_it(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder / "other")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(TypeError, match="Net derives from pytorch_lightning") as raised:
        exec(textwrap.dedent(TRAIN), {})
    assert f"put `{LINE}` before the first import of pytorch_lightning" in str(raised.value)


@pytest.mark.usefixtures("unaliased")
def test_where_the_other_package_is_in_use_the_line_says_that_it_comes_too_late(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder / "other")
    importlib.import_module("pytorch_lightning")
    said = "^pytorch_lightning has been imported already, from .*before the first import"
    with pytest.raises(ImportError, match=said):
        fedgen.alias_pytorch_lightning()


RECIPE = """
    model: {class_path: theirs.Net, init_args: {inputs: 2}}
    data:
      class_path: fedgen.FederatedDataModule
      init_args:
        data: {class_path: fedgen.data.GaussianMixture, init_args: {}}
        partition: {class_path: fedgen.clients.partitions.ByClass}
    trainer:
      max_epochs: 1
      accelerator: cpu
      logger: false
      strategy: {class_path: fedgen.FedAvgStrategy, init_args: {communication_interval: 1, cohort_size: 2}}
"""


@pytest.mark.usefixtures("unaliased")
def test_commands_do_it_by_themselves(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "other")
    monkeypatch.syspath_prepend(folder)
    Path("recipe.yaml").write_text(textwrap.dedent(RECIPE))
    assert main(["fit", "--config", "recipe.yaml"]) == 0
    assert "theirs" in sys.modules
