"""Run folders written by hand: records of a few clients over a few rounds, logs, samples, a partition."""

import json
from pathlib import Path

import torch

from fedgen.evaluation.runs.scores_file import append_records
from fedgen.images import save_png
from tests.evaluation.samples import record

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u202e\x00"


def make_records(clients=3, rounds=(0, 1, 2), names=None, scores=("fid", "kid"), **options):
    """Scores, avg (with clients' values) and all, and their floors; avg and all disagree on the last two rounds."""
    names = names or [f"client {k}" for k in range(clients)]
    avg = {round: 30.0 - 5 * place for place, round in enumerate(rounds)}
    all_ = {round: 9.0 - 3 * place for place, round in enumerate(rounds)}
    if len(rounds) > 2:
        avg[rounds[-1]] = avg[rounds[-2]] + 2.5
    found = []
    for score in scores:
        for round in (None, *rounds):
            kind = (
                {"generator": "floor", "num_generated": 50}
                if round is None
                else {"checkpoint": f"round={round:05d}.ckpt"}
            )
            kind |= {
                "standard_error": 0.4,
                "error_parts": {"generated": 0.2, "real": 0.3},
                "num_clients": clients,
                **options,
            }
            value = 2.0 if round is None else avg[round]
            per_client = [value + 0.1 * (k - (clients - 1) / 2) for k in range(clients)]
            own = {"per_client": per_client, "per_client_errors": [0.5] * clients, "client_names": names}
            found.append(record(score, "avg", value, round, **kind, **own))
            found.append(record(score, "all", 1.0 if round is None else all_[round], round, **kind))
    return found


def write_run(folder: Path, clients=3, rounds=(0, 1, 2), names=None, pictures=True, recipe=True, seed=0, **options):
    """A folder as training leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = names or [f"client {k}" for k in range(clients)]
    append_records(folder / "scores.jsonl", make_records(clients, rounds, names, **options))
    if recipe:
        model = "{class_path: a.Model, init_args: {lr: 0.1}}"
        text = f"seed_everything: {seed}\nmodel: {model}\ntrainer: {{max_epochs: 3}}\n"
        (folder / "recipe.yaml").write_text(text)
    kept = [
        {"name": n, "role": "trains", "train": 10 + k, "held_out": 2, "labels": [k, 12]} for k, n in enumerate(names)
    ]
    about = {"versions": {"torch": "2"}, "classes": [names[0], "cat"], "clients": kept, "real": names[:2]}
    (folder / "federation.json").write_text(json.dumps(about))
    entry = {"round": 1, "client": 0, "name": names[0], "reason": "ValueError: too hot"}
    (folder / "left_out.jsonl").write_text(json.dumps(entry) + "\n")
    (folder / "state.txt").write_text("trained, averaged: 217 kB a round: net.weight\n")
    (folder / "logs").mkdir(exist_ok=True)
    lines = [f"{round},{2 * round + 1},{1.5 / (round + 1)},{0.01}" for round in range(40)]
    (folder / "logs" / "metrics.csv").write_text("\n".join(["epoch,step,loss,lr-SGD", *lines]) + "\n")
    if pictures:
        noise = torch.Generator().manual_seed(0)  # as large in a file as pictures are
        for round in rounds:
            grid = torch.randint(0, 40 * (round % 6) + 10, (1, 64, 64), generator=noise, dtype=torch.uint8)
            save_png(folder / "samples" / f"round={round:05d}.png", grid)
        save_png(folder / "real.png", torch.full((1, 8, 8), 250, dtype=torch.uint8))
    return folder
