"""Disks that are full or can only be read: a client's costs it that round, the server's ends a run that goes on."""

import errno
import warnings
from pathlib import Path

import pytest

from tests.flower.runs import deploy, read, recipe, same_weights, simulate, write_images
from tests.full_disk import spoil

KEEPING = {"optimizer_state": "keep", "personal": ["critic.*"]}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


@pytest.fixture(scope="module")
def failing(images, tmp_path_factory):
    """The simulation of three rounds in which client b's turn of round 1 fails."""
    settings = recipe(3, **KEEPING)
    settings["trainer"]["callbacks"] = [{"class_path": "tests.flower.test_flower_strategy.FailsInRoundOne"}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "client 'b' is left out of round 1")
        return simulate(settings, images, tmp_path_factory.mktemp("failing"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
def test_a_client_that_cannot_keep_its_turn_is_left_out_of_the_round_and_comes_back(
    failing, images, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        kept = tmp_path / "run-b"
        spoil(patch, lambda dir, prefix: Path(dir).is_relative_to(kept) and "round=00001.safetensors" in prefix)
        found, _ = deploy(recipe(3, **KEEPING), images, tmp_path / "run")
    (entry,) = found["fedavg"]["left_out"]
    assert (entry["round"], entry["name"]) == (1, "b")
    assert "No space left on device" in entry["reason"]
    assert [path.name for path in (tmp_path / "run-b").rglob("*.tmp")] == []
    assert found["fedavg"]["iterations"] == failing["fedavg"]["iterations"]
    same_weights(failing, found)


@pytest.mark.slow
def test_a_server_that_cannot_keep_a_round_says_so_and_goes_on_to_the_same_end(images, tmp_path, monkeypatch):
    settings = recipe(2, **KEEPING)
    straight, _ = deploy(settings, images, tmp_path / "straight")
    with monkeypatch.context() as patch:
        last = tmp_path / "run" / "last.ckpt"
        is_its = lambda dir, prefix: last.exists() and Path(dir) == last.parent and last.name in prefix  # noqa: E731
        spoil(patch, is_its, errno.EROFS)
        with pytest.raises(OSError, match="resumes") as caught:
            deploy(settings, images, tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    assert read(tmp_path / "run")["epoch"] == 0
    found, _ = deploy(settings, images, tmp_path / "run")
    assert found["epoch"] == 1
    same_weights(straight, found, atol=0)
