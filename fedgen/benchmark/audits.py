"""Audits of a finished run for its entry: membership inference on every client, and images nearest to training ones."""

from pathlib import Path
from typing import Any

import torch

from fedgen.benchmark.entry import AttackForm, IntervalForm, MembershipForm
from fedgen.benchmark.suite import CACHE, PAIRS, Cell
from fedgen.embeddings import FeatureCache
from fedgen.evaluation.audit.audit_run import audit_run, draw_nearest
from fedgen.evaluation.audit.estimates import IntervalEstimate
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.evaluation.runs.run_files import NEAREST
from fedgen.reports.pictures import Pictures


def audit_of(cell: Cell, folder: Path, picture: bool) -> tuple[MembershipForm, str]:
    """Attacks a finished run, and draws its images that are nearest to training images where a picture is wanted.

    Both also stay in the run's folder, `membership.json` and `nearest.png`.

    Args:
        cell: that was trained.
        folder: of the run.
        picture: whether to draw them, too.

    Returns:
        The attack on every client, and the picture as a data URI; "" if none is wanted.

    Raises:
        FileNotFoundError: if the run has no checkpoint.
        ValueError: if no client has images enough for an attack.
    """
    data, (module, clients) = cell.data_part, rebuild(folder)
    module.to("cuda" if cell.budget.accelerator != "cpu" and torch.cuda.is_available() else "cpu")
    options: dict[str, Any] = {"embedding": data.embeddings[0], "num_images": data.num_images, "seed": clients.seed}
    (audit,) = audit_run(folder, module, clients, **options, pairs=PAIRS)
    attacks: list[AttackForm] = [
        {"name": one.name, "pairs": one.pairs, "auc": _form(one.auc), "advantage": _form(one.advantage)}
        for one in audit.clients
    ]
    uri = ""
    if picture:
        draw_nearest(folder, module, clients, **options, cache=FeatureCache(CACHE))
        drawn = Pictures().one(folder / NEAREST, NEAREST)
        uri = "" if drawn is None else drawn.uri
    return {"signal": audit.signal, "clients": attacks}, uri


def _form(estimate: IntervalEstimate) -> IntervalForm:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
