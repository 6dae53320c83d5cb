"""A deployment that is killed again and again ends as if it had not been, at the server and at the clients."""

import json

import pytest

from tests.flower.killed_deployments import PHASES, ROUNDS, kept, main
from tests.flower.runs import read
from tests.test_kills import equal

KILLS = 8


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
@pytest.mark.filterwarnings("ignore")  # forks of this process warn of clients that are left out
def test_kills_of_server_and_clients_change_nothing(tmp_path):
    """All that checkpoints and clients' states hold, to the bit; scores to the byte; what clients have pinned."""
    main(tmp_path, KILLS)
    summary, whole, broken = (
        json.loads((tmp_path / "summary.json").read_text()),
        tmp_path / "whole",
        tmp_path / "broken",
    )
    assert summary["status"] == [0, *[-9] * KILLS, 0], (tmp_path / "broken.log").read_text()[-3000:]
    assert summary["faults"] == []
    assert {where.split()[0] for where in summary["killed"]} == set(PHASES)
    assert (whole / "scores.jsonl").read_bytes() == (broken / "scores.jsonl").read_bytes()
    states = [read(run) for run in (whole, broken)]
    assert states[0]["epoch"] == ROUNDS - 1
    for part in ("state_dict", "optimizer_states", "fedavg", "loops"):
        assert equal(*(state[part] for state in states)), part
    (states, pins), (states_after, pins_after) = kept(whole), kept(broken)
    assert len(states) >= 4
    assert equal(states, states_after)
    assert pins == pins_after
