"""A run that is killed twenty times ends as if it had not been."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.killed_runs import FEWER, FEWER_ROUNDS, KILLS, ROUNDS

ROOT = Path(__file__).parent.parent


def equal(a, b):
    """Nested containers of tensors and plain values, to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folders of both trainings, of one process that imports and looks at recipes once."""
    folders = [tmp_path_factory.mktemp(name) for name in ("synchronous", "asynchronous")]
    whole, fewer = (repr(str(folder)) for folder in folders)
    script = f"from tests.killed_runs import *; main({whole}); main({fewer}, FEWER, FEWER_ROUNDS, ASYNCHRONOUS)"
    command = [sys.executable, "-W", "ignore", "-c", script]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1200
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folders


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
def test_twenty_kills_in_training_evaluation_and_checkpoints_change_nothing(killed):
    kept, places = compare(killed[0], ROUNDS)
    assert kept == ["left_out.jsonl", "scores.jsonl"]
    kinds = {f"{phase} {kind}" for phase in ("evaluation", "checkpoint") for kind in ("step", "call", "write")}
    assert set(places) == {"training step", *kinds}
    assert sum(places.values()) == KILLS
    assert places["training step"] >= KILLS // 3


@pytest.mark.slow
def test_kills_change_nothing_where_clients_are_under_way(killed):
    """Nine kills of a run under FedBuffStrategy, whose checkpoints hold the server's older weights."""
    kept, places = compare(killed[1], FEWER_ROUNDS)
    assert kept == ["left_out.jsonl", "scores.jsonl", "simulated_time.jsonl"]
    assert sum(places.values()) == FEWER
