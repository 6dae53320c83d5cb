"""Bytes that a client sends in a round, of a training that is over."""

import math

import pytest
import yaml

from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine.scored_checkpoints import message_bytes
from fedgen.experiments.engine.trainings import Training
from fedgen.federated import ClientAlgorithm
from fedgen.io.tensor_files import bytes_of
from fedgen.training.fit import fit
from tests.experiments.tiny_runs import TINY

BUFFERS = 4 * 4 * 4  # bytes: mean and variance of four channels in two BatchNorms, float32


def trained(folder, **strategy):
    """One round of the tiny GAN with these settings of the strategy, and its parameters' numbers of entries."""
    settings = yaml.safe_load(yaml.safe_dump(TINY))
    settings["trainer"] |= {"max_epochs": 1, "logger": False, "enable_progress_bar": False}
    settings["trainer"]["strategy"]["init_args"] |= {"cohort_size": 1, **strategy}
    recipe = folder / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(settings))
    run = Training(recipe, folder / "run", 0)
    fit(["--config", str(recipe), "--trainer.default_root_dir", str(run.folder)])
    return run, [parameter.numel() for parameter in rebuild(run.place)[0].parameters() if parameter.requires_grad]


@pytest.mark.slow
def test_weights_and_buffers_that_turns_change_are_sent_whole(tmp_path):
    run, counts = trained(tmp_path)
    assert message_bytes(run) == {
        "weights": 4 * sum(counts) + BUFFERS,
        "optimizer states": 0,
        "control variates": 0,
    }


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.01])
def test_compressed_updates_count_as_they_are_sent(share, tmp_path):
    rule = {"class_path": "fedgen.federated.compression.TopK", "init_args": {"share": share}}
    run, counts = trained(tmp_path, compression=rule)
    kept = sum(math.ceil(share * count) for count in counts)
    assert message_bytes(run)["weights"] == 8 * kept + BUFFERS  # a place and a value of each


class Verbose(ClientAlgorithm):
    """Sends so many times the trained parameters besides, and keeps nothing in checkpoints."""

    def __init__(self, times=3):
        self.times = times

    def num_bytes(self, model):
        return self.times * bytes_of(model.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "times"),
    [
        ({"class_path": f"{__name__}.Verbose"}, 3),
        ({"class_path": f"{__name__}.Verbose", "init_args": {"times": 5}}, 5),
        ({"class_path": "fedgen.federated.Scaffold"}, 1),
        ({"class_path": "fedgen.federated.FedProx", "init_args": {"mu": 0.1}}, 0),
    ],
)
def test_a_client_algorithm_says_what_it_sends_beside_the_model(rule, times, tmp_path):
    run, counts = trained(tmp_path, client_algorithm=rule)
    sent = message_bytes(run)
    assert sent["control variates"] == times * 4 * sum(counts)
    assert sent["weights"] == 4 * sum(counts) + BUFFERS


@pytest.mark.slow
def test_nothing_is_sent_where_every_client_keeps_its_own(tmp_path):
    run, _ = trained(tmp_path, personal=["*"], optimizer_state="keep")
    assert sum(message_bytes(run).values()) == 0
