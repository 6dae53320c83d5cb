"""The recipes that need more than this machine may have run on stand-ins in the real formats."""

import sys
from pathlib import Path

import pytest
import yaml

from fedgen.__main__ import main
from fedgen.evaluation import Run
from tests.data.published import write_cifar10
from tests.random_networks import save_inception

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.mark.slow
def test_the_papers_protocol_trains_and_scores_on_a_tiny_cifar10(tmp_path, monkeypatch):
    """The ResNet pair at full size, the standard Inception network with random weights, an iteration of two clients."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    write_cifar10(tmp_path / "cifar-10-batches-py", count=10, labels=list(range(10)))
    evaluation = {
        "class_path": "fedgen.callbacks.FederatedEvaluation",
        "init_args": {
            "embeddings": [{"name": "inception-v3-compat", "weights": str(save_inception(tmp_path))}],
            "num_images": 4,
        },
    }
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [evaluation]}}))
    arguments = ["fit", "--config", str(RECIPES / "wgan_gp_cifar10.yaml"), "--config", "smaller.yaml"]
    arguments += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--data.init_args.batch_size", "2"]
    arguments += ["--trainer.strategy.init_args.communication_interval", "1", "--model.init_args.n_critic", "1"]
    arguments += ["--trainer.strategy.init_args.cohort_size", "2", "--data.init_args.held_out", "0.0"]
    assert main([*arguments, "--data.init_args.data.init_args.root", str(tmp_path)]) == 0
    records = [record for record in Run("checkpoints/wgan_gp_cifar10").records if record.round == 0]
    assert {record.embedding for record in records} == {"inception-v3-compat"}
    assert {record.num_clients for record in records} == {10}
