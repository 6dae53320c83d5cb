"""Checkpoints appear whole or not at all, and are read without running what they hold."""

import pytest
import torch

from fedgen.federated import AtomicCheckpointIO, FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "runs" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 3, "w": torch.arange(3.0)}, path)
    loaded = AtomicCheckpointIO().load_checkpoint(path)
    assert loaded["epoch"] == 3
    assert loaded["w"].tolist() == [0, 1, 2]
    assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_in_the_middle_of_writing_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, error):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 1}, path)

    def write_half(checkpoint, file):
        file.write(b"half a checkpoint")
        file.flush()
        raise error

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(type(error)):
        AtomicCheckpointIO().save_checkpoint({"epoch": 2}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert AtomicCheckpointIO().load_checkpoint(path)["epoch"] == 1


class Hostile:
    ran = False

    def __reduce__(self):
        return (setattr, (Hostile, "ran", True))


def test_objects_are_refused_unless_asked_for(tmp_path):
    path = tmp_path / "bad.ckpt"
    torch.save({"hyper_parameters": Hostile()}, path)
    with pytest.raises(ValueError, match="plain"):
        AtomicCheckpointIO().load_checkpoint(path)
    assert not Hostile.ran
    AtomicCheckpointIO().load_checkpoint(path, weights_only=False)
    assert Hostile.ran


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="ckpt"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")


def test_storage_options_are_refused_not_ignored(tmp_path):
    with pytest.raises(TypeError, match="storage_options"):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "a.ckpt", storage_options={"key": "value"})


def test_a_checkpoint_can_be_removed(tmp_path):
    path = tmp_path / "old.ckpt"
    AtomicCheckpointIO().save_checkpoint({}, path)
    AtomicCheckpointIO().remove_checkpoint(path)
    assert not path.exists()


def test_a_checkpoint_of_weights_only_holds_no_clients_states(tmp_path):
    trainer = make_trainer(FedAvgStrategy(1, optimizer_state="keep", seed=0), 1)
    trainer.fit(Automatic(), make_data())
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert "fedavg" in torch.load(tmp_path / "whole.ckpt", weights_only=True)
    assert "fedavg" not in torch.load(tmp_path / "weights.ckpt", weights_only=True)


def test_a_checkpoint_of_a_remote_file_system_is_read_without_unpickling(tmp_path):
    for value in ({"w": torch.arange(3.0)}, {"w": Hostile()}):
        torch.save(value, tmp_path / "a.ckpt")
        if "w" in value and isinstance(value["w"], torch.Tensor):
            assert AtomicCheckpointIO().load_checkpoint(f"file://{tmp_path}/a.ckpt")["w"].tolist() == [0, 1, 2]
        else:
            Hostile.ran = False
            with pytest.raises(ValueError, match="ckpt"):
                AtomicCheckpointIO().load_checkpoint(f"file://{tmp_path}/a.ckpt")
            assert not Hostile.ran
