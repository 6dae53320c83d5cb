"""A run that is killed twenty times ends as if it had not been."""

import json
from collections import Counter

import pytest
import torch

from tests.killed_runs import FEWER, FEWER_ROUNDS, KILLS, ROUNDS
from tests.launched import Imported, end

SCRIPT = "tests.killed_runs"


def equal(a, b):
    """Nested containers of tensors and plain values, to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def compare(folder, rounds):
    """The summary of a run that was killed and one that was not, which are compared.

    Final weights and all that checkpoints hold, to the bit; scores, times and clients left out, to the byte.
    """
    summary = json.loads((folder / "summary.json").read_text())
    killed = [-9] * (len(summary["status"]) - 2)
    assert summary["status"] == [0, *killed, 0], (folder / "broken.log").read_text()[-3000:]
    assert summary["faults"] == []
    whole, broken = folder / "whole", folder / "broken"
    kept = sorted(path.name for path in whole.glob("*.jsonl"))
    assert kept == sorted(path.name for path in broken.glob("*.jsonl"))
    for name in kept:
        assert (whole / name).read_bytes() == (broken / name).read_bytes()
    names = sorted(path.name for path in whole.glob("*.ckpt"))
    assert len(names) == rounds + 1
    assert names == sorted(path.name for path in broken.glob("*.ckpt"))
    for name in names:
        a, b = (torch.load(run / name, weights_only=True) for run in (whole, broken))
        for part in ("state_dict", "optimizer_states", "fedavg", "loops"):
            assert equal(a[part], b[part]), (name, part)
    assert sorted(path.name for path in broken.rglob("*") if path.name.startswith(".")) == []
    return kept, Counter(where.split(":")[0] for where in summary["killed"])


@pytest.mark.slow
def test_twenty_kills_in_training_evaluation_and_checkpoints_change_nothing(tmp_path):
    end(Imported(SCRIPT).start(tmp_path))
    kept, places = compare(tmp_path, ROUNDS)
    assert kept == ["left_out.jsonl", "scores.jsonl"]
    kinds = {f"{phase} {kind}" for phase in ("evaluation", "checkpoint") for kind in ("step", "call", "write")}
    assert set(places) == {"training step", *kinds}
    assert sum(places.values()) == KILLS
    assert places["training step"] >= KILLS // 3


@pytest.mark.slow
def test_kills_change_nothing_where_clients_are_under_way(tmp_path):
    """Nine kills of a run under FedBuffStrategy, whose checkpoints hold the server's older weights."""
    end(Imported(SCRIPT).start(tmp_path, "asynchronous"))
    kept, places = compare(tmp_path, FEWER_ROUNDS)
    assert kept == ["left_out.jsonl", "scores.jsonl", "simulated_time.jsonl"]
    assert sum(places.values()) == FEWER
