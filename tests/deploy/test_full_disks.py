"""Disks that are full or can only be read: a client's costs it that round, the server's ends a run that goes on."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from tests.deploy.runs import deploy, read, recipe, same_weights, simulate, write_images

KEEPING = {"optimizer_state": "keep", "personal": ["critic.*"]}
ANSWERS = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"))


def spoil(patch, folder, name, answer, when=lambda: True):
    """Below a folder no file of a name can be written any more; what is written to /dev/full gets the system's answer.

    Args:
        patch: pytest's monkeypatch.
        folder: below which.
        name: a part of the names of files that cannot be written.
        answer: ENOSPC, or another error that opening a file meets.
        when: whether it is so far.
    """
    make = tempfile.mkstemp

    def mkstemp(dir, prefix, suffix):
        if not Path(dir).is_relative_to(folder) or name not in prefix or not when():
            return make(dir=dir, prefix=prefix, suffix=suffix)
        if answer != errno.ENOSPC:
            raise OSError(answer, os.strerror(answer), f"{dir}/{prefix}")
        descriptor, path = make(dir=dir, prefix=prefix, suffix=suffix)
        os.close(descriptor)
        return os.open("/dev/full", os.O_WRONLY), path

    patch.setattr(tempfile, "mkstemp", mkstemp)


@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_client_that_cannot_keep_its_turn_is_left_out_of_the_round_and_comes_back(
    answer, images, tmp_path, monkeypatch
):
    settings = recipe(3, **KEEPING)
    with monkeypatch.context() as patch:
        spoil(patch, tmp_path / "run-b", "round=00001.pt", answer)
        found, _ = deploy(settings, images, tmp_path / "run")
    (entry,) = found["fedavg"]["left_out"]
    assert (entry["round"], entry["name"]) == (1, "b")
    assert ANSWERS[answer] in entry["reason"]
    assert [path.name for path in (tmp_path / "run-b").rglob("*.tmp")] == []
    settings["trainer"]["callbacks"] = [{"class_path": "tests.deploy.test_flower_strategy.FailsInRoundOne"}]
    failing = simulate(settings, images, tmp_path / "simulated")
    assert found["fedavg"]["iterations"] == failing["fedavg"]["iterations"]
    same_weights(failing, found)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_cannot_keep_a_round_says_so_and_goes_on_to_the_same_end(answer, images, tmp_path, monkeypatch):
    settings = recipe(3, **KEEPING)
    straight, _ = deploy(settings, images, tmp_path / "straight")
    with monkeypatch.context() as patch:
        spoil(patch, tmp_path / "run", "last.ckpt", answer, (tmp_path / "run" / "last.ckpt").exists)
        with pytest.raises(OSError, match="goes on after round 1") as caught:
            deploy(settings, images, tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    assert read(tmp_path / "run")["epoch"] == 0
    found, _ = deploy(settings, images, tmp_path / "run")
    assert found["epoch"] == 2
    same_weights(straight, found, atol=0)
