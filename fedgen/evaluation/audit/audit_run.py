"""Membership inference attacks on a run's checkpoints, and a picture of what is nearest to training images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule

from fedgen.clients import FederatedDataModule
from fedgen.evaluation.audit.membership import MembershipAudit, membership_inference
from fedgen.evaluation.audit.nearest_images import NearestImages, nearest_images
from fedgen.evaluation.personal.own_models import Personal
from fedgen.evaluation.runs.checkpoints import load_weights, personal_tensors
from fedgen.evaluation.runs.run_files import MEMBERSHIP, NEAREST
from fedgen.evaluation.runs.run_folder import Run
from fedgen.images import save_png
from fedgen.io.files import write_json

VERSION = 1


def audit_run(
    run: Run | str | Path,
    module: LightningModule,
    data: FederatedDataModule,
    rounds: Sequence[int] | None = None,
    **options: Any,
) -> list[MembershipAudit]:
    """Attacks a run's checkpoints, writes what was found into its folder (`membership.json`) and returns it.

    Where clients keep tensors of their own, each is attacked through its own model.

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the last checkpoint's weights.
        data: the run's clients.
        rounds: which checkpoints; the last one by default.
        options: as for `membership_inference`.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or not those of `rounds`.
        TypeError, ValueError: as for `membership_inference`.
    """
    run = run if isinstance(run, Run) else Run(run)
    found = run.checkpoints_of(rounds, only_last=True)
    audits = []
    for round, path in found.items():
        audit = membership_inference(module, data, personal=_loaded(module, path), **options)
        audits.append(replace(audit, round=round, checkpoint=path.name))
    write_json(run.folder / MEMBERSHIP, {"version": VERSION, "audits": [audit.to_json() for audit in audits]})
    return audits


def draw_nearest(
    run: Run | str | Path,
    module: LightningModule,
    data: FederatedDataModule,
    rounds: Sequence[int] | None = None,
    **options: Any,
) -> NearestImages:
    """Finds the generated images that are nearest to training images, and draws them beside these into the run's folder
    (`nearest.png`).

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the checkpoint's weights.
        data: the run's clients.
        rounds: of the checkpoint, the last of them; the run's last one by default.
        options: as for `nearest_images`.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or not those of `rounds`.
        ValueError: as for `nearest_images`.
    """
    run = run if isinstance(run, Run) else Run(run)
    path = list(run.checkpoints_of(rounds, only_last=True).values())[-1]
    found = nearest_images(module, data, personal=_loaded(module, path), **options)
    save_png(run.folder / NEAREST, found.picture())
    return found


def _loaded(module: LightningModule, path: Path) -> Personal | None:
    """Loads a checkpoint into the module, and returns the clients' own tensors; None where they have none."""
    return personal_tensors(module, load_weights(module, path)) or None
