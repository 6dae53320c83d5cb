"""What finished runs left to score."""

import pytest
import torch

from fedgen.experiments.engine.scored_arms import real_side
from fedgen.experiments.engine.scored_checkpoints import client_images, clients_of, generated_images, kept_checkpoints
from fedgen.experiments.engine.trainings import Training
from tests.experiments.tiny_runs import untrained, write_recipe


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs over the same clients, and one over others."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = write_recipe(folder) / "quickstart.yaml"
    splits = {"a": "0", "b": "0", "other": "1"}
    return [
        untrained(
            Training(recipe, folder / name, seed, ("--data.init_args.seed", split, "--data.init_args.held_out", "0.5"))
        )
        for seed, (name, split) in enumerate(splits.items())
    ]


def test_a_run_without_checkpoints_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} holds no checkpoint; remove it"):
        kept_checkpoints(tmp_path)


def test_images_are_the_last_checkpoints_and_those_of_a_seed_always_the_same(runs):
    assert list(kept_checkpoints(runs[0])) == [1, 3]
    images = generated_images(runs[0], 20)
    assert images.shape == (20, 1, 8, 8)
    assert torch.equal(images, generated_images(runs[0], 20))
    assert not torch.equal(images, generated_images(runs[0], 20, seed=1))
    assert not torch.equal(images, generated_images(runs[1], 20))


@pytest.mark.slow
def test_clients_are_those_of_all_runs_or_the_run_of_others_is_named(runs):
    data = clients_of(runs[:2])
    assert [len(client.train) for client in data.clients] == [len(part) for part in client_images(runs[0])]
    with pytest.raises(ValueError, match="remove"):
        clients_of(runs)
    with pytest.raises(ValueError, match="had other clients"):
        real_side(runs[1:], [])
