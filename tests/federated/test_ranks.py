"""Several processes give the model of one, to rounding, and a checkpoint of several goes on on any number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedgen.federated.ranks import Ranks, share_out
from tests.federated.rank_runs import CONFIGURATIONS, RESUMED, SIZES

ROOT = Path(__file__).parent.parent.parent
# Adam divides by the root of a mean square: where a gradient is next to nothing, its rounding becomes a step
LOOSE = {"adam": 1e-4, "gan": 2e-3, "ddpm": 5e-4}


def start(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "tests.federated.rank_runs", *map(str, arguments)]
    free = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "PYTEST_"))}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**free, "OMP_NUM_THREADS": "1"}, **options)


def end(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of the results by number of processes, and what rank 0 said."""
    root = tmp_path_factory.mktemp("ranks")
    found = {}
    for devices in (1, 2, 3):  # one after the other: they are as many processes as this machine has cores, or more
        found[devices] = root / str(devices), end(start(devices, root / str(devices)))
    return found


def read(runs, devices, name):
    return torch.load(runs[devices][0] / f"{name}.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_several_processes_train_the_model_of_one(runs, devices, name):
    one, several = read(runs, 1, name), read(runs, devices, name)
    for key, value in one["weights"].items():
        torch.testing.assert_close(several["weights"][key], value, rtol=0, atol=LOOSE.get(name, 2e-6))
    assert several["clients"]["iterations"] == one["clients"]["iterations"]
    assert several["left_out"] == one["left_out"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_a_checkpoint_holds_every_ranks_clients(runs, devices):
    one, several = (read(runs, number, "personal")["clients"] for number in (1, devices))
    assert sorted(several["personal"]) == [0, 1, 2, 3, 4]
    assert sorted(several["local"]["clients"]) == [0, 1, 2, 3, 4]
    for client, tensors in one["personal"].items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(several["personal"][client][name], tensor, rtol=0, atol=2e-6)
    one, several = (read(runs, number, "scaffold")["clients"]["algorithm"] for number in (1, devices))
    assert several["clients"].keys() == one["clients"].keys()
    for client, variates in one["clients"].items():
        for name, variate in variates.items():
            torch.testing.assert_close(several["clients"][client][name], variate, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_a_client_that_fails_on_another_rank_is_named_on_the_first(runs):
    found = read(runs, 2, "fails")["left_out"]
    assert found == [{"round": 1, "client": 1, "name": "b", "reason": "RuntimeError: this client's turn fails"}]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_a_checkpoint_goes_on_on_another_number_of_processes(runs, before, after, tmp_path):
    end(start(after, tmp_path, runs[before][0]))
    for name in RESUMED:
        straight = read(runs, 1, name)["weights"]
        resumed = torch.load(tmp_path / f"{name}.pt", weights_only=True)["weights"]
        for key, value in straight.items():
            torch.testing.assert_close(resumed[key], value, rtol=0, atol=5e-6)


def test_the_largest_clients_go_first_and_numbers_are_equal():
    # 20 | 11, then 9 to the second, 6 to the first of two equals, 3 to the second: 26 and 23 examples
    assert share_out(SIZES, 2) == [[2, 3], [0, 1, 4]]
    assert share_out(SIZES, 3) == [[3], [0, 1], [2, 4]]
    assert [len(share) for share in share_out([1] * 7, 3)] == [3, 2, 2]
    assert share_out([5], 2) == [[0], []]


def test_equal_clients_are_dealt_evenly():
    loads = [sum([4, 4, 4, 4][place] for place in share) for share in share_out([4, 4, 4, 4], 2)]
    assert loads == [8, 8]


def test_one_process_tells_itself():
    ranks = Ranks()
    assert (ranks.size, ranks.rank) == (1, 0)
    assert ranks.gather("word") == ["word"]
    tensors = [torch.ones(2), torch.zeros(3, dtype=torch.float64)]
    assert ranks.add(tensors, torch.device("cpu")) == tensors
    ranks.copy_first(tensors)
