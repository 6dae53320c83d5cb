"""Writes docs/foreign-modules.md: `python -m tests.foreign.table`, a minute on one core.

Every case of this folder is trained both ways, and the page says how far apart the two are. The command ends with 1 if
one of them is further apart than it may be, or raises.
"""

import logging
import sys
import warnings
from pathlib import Path

import torch

from tests.foreign import (
    adversarial,
    contrastive,
    diffusion,
    ema_and_teachers,
    flows,
    language_and_segmentation,
    optimisation,
    quantised,
)
from tests.foreign.cases import Case, compare

GROUPS = {
    "Diffusion, score and consistency models": diffusion.CASES,
    "Codebooks": quantised.CASES,
    "Adversarial networks": adversarial.CASES,
    "Flows": flows.CASES,
    "Moving averages and teachers": ema_and_teachers.CASES,
    "Self-supervised": contrastive.CASES,
    "Language and segmentation": language_and_segmentation.CASES,
    "Ways to optimise": optimisation.CASES,
}
PAGE = Path(__file__).parents[2] / "docs" / "foreign-modules.md"
HEAD = """# Modules by others

Each of these modules is trained by `FedAvgStrategy` as it is, and compared with the definition of federated averaging
computed from ordinary Lightning fits: for every round and client a plain `lightning.Trainer` fits a copy of the
server's whole module on the client's batches of that round, with the same random state; then floating tensors take the
clients' mean weighted by examples, counters and flags the largest over clients, and what is declared goes by its rule
(`tests/foreign/reference.py`). The whole `state_dict` is compared, and Python state
where a case names it. Three clients of 12, 20 and 7 examples, two or three rounds of three to five iterations, tiny
nets, one CPU. A source that is a package is used as published; other modules are written anew after the paper or the
repository named, with its hooks and names of state.

Every optimizer of torch, timm, pytorch_optimizer and schedulefree, and every schedule of torch, has a line in
[optimizers and schedules](optimizers.md).

Largest deviation: of any number of the final state, in float32 (about 1e-7 is rounding; integers and flags are equal).
This page is written by `python -m tests.foreign.table`; `pip install ".[foreign]"` installs the packages.
"""


def deviation_of(case: Case) -> float | str:
    """The case's largest deviation, or the name of what it raises."""
    try:
        return max(compare(case).values())
    except Exception as error:  # one line of the table, whatever it is
        return type(error).__name__


def row(case: Case, deviation: float | str) -> str:
    """A line of the table."""
    rules = ", ".join(f"`{pattern}`: {rule}" for pattern, rule in case.rules.items()) or "-"
    shown = deviation if isinstance(deviation, str) else f"{deviation:.0e}"
    return f"| {case.name} | {case.source} | {case.state} | {rules} | {shown} |"


def main() -> int:
    """Writes the page; 1 if a case deviates."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    lines, wrong = [HEAD], 0
    for title, cases in GROUPS.items():
        lines += [
            f"## {title}",
            "| Module | Source | State beside weights | Declared | Largest deviation |",
            "|---" * 5 + "|",
        ]
        for case in cases:
            deviation = deviation_of(case)
            wrong += isinstance(deviation, str) or deviation > case.tolerance
            lines.append(row(case, deviation))
            print(lines[-1], flush=True)
        lines.append("")
    PAGE.write_text("\n".join(lines))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
