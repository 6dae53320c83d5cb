"""Suites run cell by cell: every seed's training in a process of its own, then the cell's entry."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from fedgen.benchmark import entry as forms
from fedgen.benchmark.claims import check, claims_of
from fedgen.benchmark.suite import CACHE, PAIRS, Cell, Suite
from fedgen.embeddings import FeatureCache
from fedgen.evaluation.audit.membership import audit_run, draw_nearest
from fedgen.evaluation.names import LAST
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import NEAREST
from fedgen.experiments.engine.scored_checkpoints import message_bytes
from fedgen.experiments.engine.study import require_place
from fedgen.experiments.engine.trainings import Training, fingerprint
from fedgen.io.files import atomic_write, write_json
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.progress import make_console
from fedgen.reports.contents import Pictures


def run_cells(suite: Suite, cells: Sequence[Cell], output: Path, parallel: int = 1) -> list[forms.Entry]:
    """Trains cells with all seeds and writes their entries; what is done already is not done again."""
    require_place(output)
    console, pool = make_console(), ThreadPoolExecutor(parallel)
    try:
        waiting = []
        for cell in cells:
            done = _known(suite, cell, output)
            runs = [] if done else trainings_of(suite, cell, output)
            waiting.append((cell, done, runs, [pool.submit(run.run) for run in runs]))
        entries = []
        for number, (cell, known, runs, futures) in enumerate(waiting, 1):
            for future in futures:
                future.result()
            entry = known or write_entry(suite, cell, runs, output)
            text = f"{number} of {len(cells)}: {say(entry)}{'' if known is None else ' (kept)'}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            entries.append(entry)
        return entries
    finally:
        pool.shutdown(cancel_futures=True)


def say(entry: forms.Entry) -> str:
    claims = entry.claims
    if claims["number"] is None:
        return f"{entry.name}: no number, as a score is not finite"
    low, high = claims["low"], claims["high"]
    interval = "one seed, no interval" if low is None or high is None else f"{low:.3g} to {high:.3g}"
    return f"{entry.name}: {claims['number']:.3g} times the floor ({interval})"


def trainings_of(suite: Suite, cell: Cell, output: Path) -> list[Training]:
    recipe = cell.recipe()
    start = fingerprint(recipe)[:8]
    path = output / "recipes" / f"{cell.slug}.yaml"
    with atomic_write(path) as file:
        file.write(yaml.safe_dump(recipe, sort_keys=False).encode())
    folder = output / "runs"
    return [
        Training(path, folder / f"{cell.slug}-{start}-seed{seed}", seed, control=cell.control, measured=True)
        for seed in suite.seeds
    ]


def write_entry(suite: Suite, cell: Cell, runs: Sequence[Training], output: Path) -> forms.Entry:
    recipe = cell.recipe()
    records = [forms.measured(Run(run.place).records, cell.budget.rounds - 1) for run in runs]
    costs = [cost_of(run) for run in runs]
    attacks, nearest = zip(*(audit_of(cell, run.place, picture=run is runs[0]) for run in runs))
    stored: list[forms.RunForm] = [
        {"seed": run.seed, "records": [record.to_json() for record in found], "membership": attack, "costs": cost}
        for run, found, attack, cost in zip(runs, records, attacks, costs)
    ]
    pictures, _ = Pictures().samples(runs[0].place)
    own: forms.OwnForm | None = None
    if cell.own is not None:
        own = {"class_path": cell.own.class_path, "slot": cell.own.slot}
        if cell.own.images is not None:
            own["images"] = cast("forms.ImagesForm", asdict(cell.own.images))
    form: forms.EntryForm = {
        "format": forms.FORMAT,
        "suite": suite.name,
        "cell": cell.name,
        "beside": cell.beside,
        "own": own,
        "recipe": recipe,
        "recipe_hash": fingerprint(recipe),
        "seeds": list(suite.seeds),
        "provenance": forms.provenance(),
        "runs": stored,
        "claims": claims_of(cell, records, attacks, costs),
        "samples": pictures[-1].uri if pictures else "",
        "nearest": nearest[0],
    }
    path = output / forms.FOLDER / f"{cell.slug}.json"
    write_json(path, form)
    entry = forms.read_entry(path)
    check(entry)
    return entry


def cost_of(run: Training) -> forms.RunCost:
    path = run.place / LAST
    state = read_checkpoint(path)["callbacks"].get("RunCosts")
    if not isinstance(state, dict):
        raise ValueError(f"{path} has no costs; remove {run.place} to train it again")
    sends = run.control != "centralised"
    return {
        "turns": state["turns"],
        "message_bytes": sum(message_bytes(run).values()) if sends else 0,
        "client_seconds": state["seconds"],
        "peak_memory": state["peak_memory"],
    }


def _known(suite: Suite, cell: Cell, output: Path) -> forms.Entry | None:
    """The entry of a cell that is there already; None where it is of another recipe or other seeds."""
    path = output / forms.FOLDER / f"{cell.slug}.json"
    if not path.exists():
        return None
    entry = forms.read_entry(path)
    if entry.form["recipe_hash"] != fingerprint(cell.recipe()) or entry.form["seeds"] != list(suite.seeds):
        return None
    check(entry)
    return entry


def audit_of(cell: Cell, folder: Path, picture: bool) -> tuple[forms.MembershipForm, str]:
    """Attacks a finished run, and draws its images nearest to training images; both stay in its folder."""
    data, (module, clients) = cell.data_part, rebuild(folder)
    module.to("cuda" if cell.budget.accelerator != "cpu" and torch.cuda.is_available() else "cpu")
    options: dict[str, Any] = {"embedding": data.embeddings[0], "num_images": data.num_images, "seed": clients.seed}
    (audit,) = audit_run(folder, module, clients, **options, pairs=PAIRS)
    shown = [
        {"name": one.name, "pairs": one.pairs, "auc": asdict(one.auc), "advantage": asdict(one.advantage)}
        for one in audit.clients
    ]
    uri = ""
    if picture:
        draw_nearest(folder, module, clients, **options, cache=FeatureCache(CACHE))
        drawn = Pictures().one(folder / NEAREST)
        uri = "" if drawn is None else drawn.uri
    return {"signal": audit.signal, "clients": cast("list[forms.AttackForm]", shown)}, uri
