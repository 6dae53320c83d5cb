"""Several processes give the model of one, to rounding, and a checkpoint of several goes on on any number."""

import json

import pytest
import torch

from fedgen.federated import Mean
from fedgen.ranks import share_out
from tests.federated.kit_rules import aggregators
from tests.federated.rank_runs import CONFIGURATIONS, NETWORKS, PROCESSES, ROUNDS, SIZES, rounds_of
from tests.launched import Imported, end, meeting

KEPT = ("personal", "scaffold", "ditto", "sparse")  # which keep something of each client, on its process
# Adam divides by the root of a mean square: where a gradient is nothing but rounding, that becomes a step. Such are the
# gradients of a bias that shifts all critic scores, its last or that of a channel which is active on all images, and of
# an attention's bias of keys, which softmax does not see.
LOOSE = {
    ("adam", "body.bias"): 1e-4,
    ("gan", "critic.body.3.bias"): 2e-3,
    ("gan-server", "critic.body.1.bias"): 5e-4,
    ("gan-server", "critic.body.3.bias"): 2e-3,
    ("ddpm", "to_k.bias"): 5e-4,
    ("latent-flow", "to_k.bias"): 5e-4,
}


@pytest.fixture(scope="module")
def script():
    """The script, imported once."""
    return Imported("tests.federated.rank_runs")


@pytest.fixture(scope="module")
def runs(script, tmp_path_factory):
    """Folders of the results by number of processes."""
    root = tmp_path_factory.mktemp("ranks")
    found = {}
    for devices in (1, 2, 3):  # one after the other: they are as many processes as this machine has cores, or more
        found[devices] = root / str(devices)
        end(script.start(devices, found[devices], ranks=devices))
    return found


def test_every_aggregator_of_the_kit_trains_on_several_processes():
    tried = {type(options.get("aggregator", Mean())).__name__ for _, options in CONFIGURATIONS.values()}
    assert tried == set(aggregators())


@pytest.fixture(scope="module")
def scored(script, tmp_path_factory):
    """A folder of a GAN trained and scored on two processes that nothing disturbed."""
    folder = tmp_path_factory.mktemp("scored")
    end(script.start("scored", folder, ranks=2))
    assert {record["round"] for record in scores(folder) if record["generator"] == "model"} == set(range(ROUNDS))
    return folder


def read(runs, devices, name):
    return torch.load(runs[devices] / f"{name}.pt", weights_only=True)


def one_and_several(runs, name):
    return [read(runs, devices, name) for devices in (1, PROCESSES[name])]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_several_processes_train_the_model_of_one(runs, name):
    one, several = one_and_several(runs, name)
    for key, value in one["weights"].items():
        loose = [bound for (run, tensor), bound in LOOSE.items() if run == name and key.endswith(tensor)]
        torch.testing.assert_close(several["weights"][key], value, rtol=0, atol=max(loose, default=5e-6))
    assert several["clients"]["iterations"] == one["clients"]["iterations"]
    assert several["left_out"] == one["left_out"]


@pytest.mark.slow
def test_what_modules_keep_themselves_and_log_over_processes_is_that_of_one(runs):
    """Five clients on three processes: turns differ in number, so nothing may be exchanged within them."""
    one, several = one_and_several(runs, "stateful")
    assert several["clients"]["outside"] == one["clients"]["outside"] == {"values": {"steps": 12}, "personal": {}}
    assert bool(several["weights"]["initialised"])
    assert several["clients"]["exchange"] == one["clients"]["exchange"]
    assert several["clients"]["clock"] == one["clients"]["clock"] == {"total_steps": 4 * 5 * ROUNDS}
    assert several["metrics"]["synced_epoch"] == pytest.approx(one["metrics"]["synced_epoch"], rel=1e-5)


@pytest.mark.slow
def test_a_checkpoint_holds_every_ranks_clients(runs):
    one, several = (found["clients"] for found in one_and_several(runs, "personal"))
    assert sorted(several["personal"]) == [0, 1, 2, 3, 4]
    assert sorted(several["local"]["clients"]) == [0, 1, 2, 3, 4]
    for client, tensors in one["personal"].items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(several["personal"][client][name], tensor, rtol=0, atol=2e-6)
    for run in ("scaffold", "ditto"):
        one, several = (found["clients"]["algorithm"] for found in one_and_several(runs, run))
        assert several["clients"].keys() == one["clients"].keys()
        for client, variates in one["clients"].items():
            for name, variate in variates.items():
                torch.testing.assert_close(several["clients"][client][name], variate, rtol=0, atol=2e-6)
    one, several = (found["clients"]["compression"]["clients"] for found in one_and_several(runs, "sparse"))
    assert several.keys() == one.keys()
    for client, kept in one.items():
        for name, error in kept["errors"].items():
            torch.testing.assert_close(several[client]["errors"][name], error, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam", "personal", "fails", "by size", *NETWORKS])
def test_a_round_is_one_sum_over_processes_and_its_turns_wait_for_nobody(runs, name):
    one, several = one_and_several(runs, name)
    assert (one["sums"], several["sums"]) == (0, rounds_of(name))
    assert one["broadcasts"] == several["broadcasts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_clients_are_dealt_by_their_examples_and_what_is_kept_of_them_is_on_one_process(runs, devices):
    dealt = share_out(SIZES, devices)
    trained, *_ = zip(*read(runs, devices, "sgd")["held"])
    assert [sorted(clients) for clients in trained] == dealt
    assert read(runs, devices, "personal")["held"] == [(clients, clients, clients) for clients in dealt]


@pytest.mark.slow
def test_a_client_that_fails_on_another_rank_is_named_on_the_first(runs):
    found = read(runs, 3, "fails")["left_out"]
    assert found == [{"round": 1, "client": 1, "name": "b", "reason": "RuntimeError: this client's turn fails"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "names"), [(3, 1, KEPT), (1, 2, KEPT), (2, 3, ("continuing", "adam-average"))]
)
def test_a_checkpoint_goes_on_on_another_number_of_processes(script, runs, before, after, names, tmp_path):
    end(script.start(after, tmp_path, runs[before], "round=00000.ckpt", *names, ranks=after))
    for name in names:
        straight = read(runs, 1, name)["weights"]
        resumed = torch.load(tmp_path / f"{name}.pt", weights_only=True)["weights"]
        for key, value in straight.items():
            torch.testing.assert_close(resumed[key], value, rtol=0, atol=5e-6)


def dies(process):
    """Waits for processes one of which is killed; the others must say so and end too."""
    said, _ = process.communicate(timeout=300)  # until the last one has closed its end
    assert process.returncode != 0
    assert "LostRankError: another process of this job has ended" in said, said[-3000:]
    assert "resumes from the last checkpoint, on any number of processes" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "sent", "by"), [(0, "SIGKILL", "Lightning"), (1, "SIGKILL", "torchrun"), (1, "SIGTERM", "Lightning")]
)
def test_a_process_that_dies_ends_the_job_and_a_restart_with_fewer_goes_on(script, runs, rank, sent, by, tmp_path):
    """Whether Lightning has started the other process, which is its child then, or each was started as by torchrun."""
    dies(script.start("dies", tmp_path, rank, sent, ranks=2, launches=by == "Lightning"))
    end(script.start(1, tmp_path / "alone", tmp_path, "last.ckpt", "personal"))
    straight = read(runs, 1, "personal")["weights"]
    resumed = torch.load(tmp_path / "alone" / "personal.pt", weights_only=True)["weights"]
    for key, value in straight.items():
        torch.testing.assert_close(resumed[key], value, rtol=0, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_in_an_evaluation_changes_nothing_of_what_a_restart_ends_with(
    script, scored, rank, tmp_path
):
    dies(script.start("scored", tmp_path, rank, ranks=2))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == ROUNDS - 2
    end(script.start("scored", tmp_path, ranks=2))
    straight, resumed = (torch.load(folder / "last.ckpt", weights_only=True) for folder in (scored, tmp_path))
    assert straight["epoch"] == resumed["epoch"] == ROUNDS - 1
    for key, value in straight["state_dict"].items():
        assert torch.equal(resumed["state_dict"][key], value), key
    assert scores(tmp_path) == scores(scored)


def scores(folder):
    found = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("time", "seconds")} for record in found]


@pytest.mark.slow
def test_two_nodes_train_the_model_of_one_process(script, runs, tmp_path):
    where = meeting()
    nodes = [script.start("node", tmp_path, NODE_RANK=str(rank), **where) for rank in range(2)]
    for node in nodes:
        end(node)
    straight = read(runs, 1, "adam-average")["weights"]
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, value in straight.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=2e-6)
