"""Checkpoints read without unpickling, refused with a reason, and the generators that they hold."""

import sys

import pytest
import torch
from torch import nn

from fedgen.models import DDPM, WGANGP
from fedgen.models.checkpoint_file import read_checkpoint, read_generator, rebuild_model
from fedgen.models.networks import SmallGenerator
from fedgen.models.networks.network import describe


def save(path, module, **more):
    torch.save({"state_dict": module.state_dict(), **more}, path)
    return path


def test_a_missing_file_names_its_neighbours(tmp_path):
    save(tmp_path / "last.ckpt", nn.Linear(1, 1))
    with pytest.raises(FileNotFoundError, match="checkpoints"):
        read_checkpoint(tmp_path / "round=00001.ckpt")


class Payload:
    """Something that only unpickling would bring back."""


def test_objects_and_damaged_files_are_refused(tmp_path):
    torch.save({"state_dict": {}, "object": Payload()}, tmp_path / "object.ckpt")
    (tmp_path / "damaged.ckpt").write_bytes(save(tmp_path / "a.ckpt", nn.Linear(3, 3)).read_bytes()[:300])
    (tmp_path / "text.ckpt").write_text("hello")
    torch.save([1], tmp_path / "list.ckpt")
    for name in ("object", "damaged", "text"):
        with pytest.raises(ValueError, match=f"{name}.ckpt is not a file of torch.save with tensors and plain types"):
            read_checkpoint(tmp_path / f"{name}.ckpt")
    with pytest.raises(ValueError, match="state_dict"):
        read_checkpoint(tmp_path / "list.ckpt")


def test_a_generator_is_rebuilt_and_its_moving_average_goes_first(tmp_path):
    own, average = SmallGenerator(width=2), SmallGenerator(width=2)
    described = {"generator": describe(own)}
    state = {f"generator.{name}": value for name, value in own.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": described}, tmp_path / "own.ckpt")
    state |= {f"generator_ema.network.{name}": value for name, value in average.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": described}, tmp_path / "both.ckpt")
    for name, expected in (("own", own), ("both", average)):
        found = read_generator(tmp_path / f"{name}.ckpt").state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.state_dict().items())


def test_checkpoints_without_a_generator_are_refused(tmp_path):
    save(tmp_path / "classifier.ckpt", nn.Linear(1, 1), hyper_parameters={"lr": 1.0})
    with pytest.raises(ValueError, match="GAN"):
        read_generator(tmp_path / "classifier.ckpt")
    described = {"generator": describe(SmallGenerator(width=4))}
    save(tmp_path / "empty.ckpt", nn.Linear(1, 1), hyper_parameters=described)
    with pytest.raises(ValueError, match="settings"):
        read_generator(tmp_path / "empty.ckpt")
    stranger = {"generator": {"class_path": "os.system", "init_args": {}}}
    save(tmp_path / "stranger.ckpt", nn.Linear(1, 1), hyper_parameters=stranger)
    with pytest.raises(ValueError, match="rebuild"):
        read_generator(tmp_path / "stranger.ckpt")


@pytest.mark.parametrize("key", ["hyper_parameters", "hparams", "module_arguments"])
@pytest.mark.parametrize(("kind", "part"), [(WGANGP, "generator"), (DDPM, "network")])
def test_a_checkpoint_imports_no_module_of_its_choice(kind, part, key, tmp_path, monkeypatch):
    """Lightning would have a parser make the arguments, which imports what they name before it looks what it is."""
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    given = {"_instantiator": "lightning.pytorch.cli.instantiate_module", part: {"class_path": "strange.Network"}}
    said = {"hyper_parameters": {}, key: given, "pytorch-lightning_version": "2.6.1"}
    save(tmp_path / "a.ckpt", nn.Linear(1, 1), **said)
    with pytest.raises(ValueError, match=rf"a\.ckpt is no checkpoint of a {kind.__name__}"):
        rebuild_model(kind, tmp_path / "a.ckpt")
    assert not (tmp_path / "ran").exists()
    assert "strange" not in sys.modules
