"""What modules exchange between processes in a client's turn means the client alone, on any number of processes."""

import pytest
import torch

from fedgen.ranks import SHORT
from tests.federated.collective_runs import TRAINED
from tests.launched import Imported, end

SCRIPT = "tests.federated.collective_runs"
IN_TURNS = {"configure_optimizers", "on_turn_start", "training_step", "on_turn_end"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of the results by number of processes."""
    script, found = Imported(SCRIPT), {}
    for devices in (1, 2, 3):  # one after the other: they are as many processes as this machine has cores, or more
        found[devices] = tmp_path_factory.mktemp(f"{devices}-processes")
        end(script.start("trains", devices, found[devices], ranks=devices))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(("kind", "clients"), TRAINED)
def test_a_module_that_exchanges_in_its_steps_is_that_of_one_process(runs, kind, clients, devices):
    files = [runs[number] / f"{kind.__name__}-{clients}.pt" for number in (1, devices)]
    one, several = (torch.load(file, weights_only=True) for file in files)
    centre = {"DINO": "criterion.center", "Synchronised": "center"}[kind.__name__]
    assert one[centre].abs().max() > 0.01
    assert one[centre].dtype == torch.float64
    for name, value in one.items():
        torch.testing.assert_close(several[name], value, rtol=0, atol=1e-13, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_within_a_turn_there_is_one_process_and_outside_all_of_them(runs, devices):
    for rank in range(devices):
        answers = torch.load(runs[devices] / f"asked-{rank}.pt", weights_only=True)
        assert {hook for hook, _ in answers} == IN_TURNS | {"on_train_start", "on_round_end"}
        for hook, said in answers:
            size, own = (1, 0) if hook in IN_TURNS else (devices, rank)
            assert said["trainer"] == (size, own, own == 0)
            assert said["module"] == own
            assert said["started"] == (size > 1)
            assert said["gathered"] == size * [3.0]
            if devices > 1:
                assert said["group"] == (size, own, 3.0 * size, list(range(size)))
                assert said["words"] == [[length * one for one in range(size)] for length in (10, 3 * SHORT)]
