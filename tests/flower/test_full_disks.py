"""Disks that are full or can only be read: a client's costs it that round, the server's ends a run that goes on."""

import errno
import warnings
from pathlib import Path

import pytest

from tests.flower.runs import deploy, read, recipe, same_weights, simulate
from tests.full_disk import spoil

KEEPING = {"optimizer_state": "keep", "personal": ["critic.*"]}
ANSWERS = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}


@pytest.fixture(scope="module")
def failing(images, tmp_path_factory):
    """The simulation of three rounds in which client b's turn of round 1 fails."""
    settings = recipe(3, **KEEPING)
    settings["trainer"]["callbacks"] = [{"class_path": "tests.flower.test_flower_strategy.FailsInRoundOne"}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "client 'b' is left out of round 1")
        return simulate(settings, images, tmp_path_factory.mktemp("failing"))


@pytest.fixture(scope="module")
def straight(images, tmp_path_factory):
    """The last checkpoint of two rounds that nothing disturbs."""
    return deploy(recipe(2, **KEEPING), images, tmp_path_factory.mktemp("straight") / "run")[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_client_that_cannot_keep_its_turn_is_left_out_of_the_round_and_comes_back(
    answer, failing, images, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        kept = tmp_path / "run-b"
        spoil(patch, lambda dir, prefix: Path(dir).is_relative_to(kept) and "round=00001.safetensors" in prefix, answer)
        found, _ = deploy(recipe(3, **KEEPING), images, tmp_path / "run")
    (entry,) = found["fedavg"]["left_out"]
    assert (entry["round"], entry["name"]) == (1, "b")
    assert ANSWERS[answer] in entry["reason"]
    assert [path.name for path in (tmp_path / "run-b").rglob("*.tmp")] == []
    assert found["fedavg"]["iterations"] == failing["fedavg"]["iterations"]
    same_weights(failing, found)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_cannot_keep_a_round_says_so_and_goes_on_to_the_same_end(
    answer, straight, images, tmp_path, monkeypatch
):
    settings = recipe(2, **KEEPING)
    with monkeypatch.context() as patch:
        last = tmp_path / "run" / "last.ckpt"
        spoil(patch, lambda dir, prefix: last.exists() and Path(dir) == last.parent and last.name in prefix, answer)
        with pytest.raises(OSError, match="resumes") as caught:
            deploy(settings, images, tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    assert read(tmp_path / "run")["epoch"] == 0
    found, _ = deploy(settings, images, tmp_path / "run")
    assert found["epoch"] == 1
    same_weights(straight, found, atol=0)
