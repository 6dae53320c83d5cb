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

`FedAvgStrategy` trains these modules unchanged. The result is compared with federated averaging computed from
ordinary Lightning fits (`tests/foreign/reference.py`): in every round a plain `lightning.Trainer` fits a copy of the
server's module on each client's batches, with the same random state. Floating tensors then take the example-weighted
mean, counters and flags the largest value, and declared state follows its rule. The whole `state_dict` is compared,
and Python state where a case names it.

Each case has three clients of 12, 20 and 7 examples, two or three rounds of three to five iterations, tiny networks
and one CPU. Packages are used as published; other modules are rewritten from their source, with its hooks and state
names.

"Deviation" is the largest over the final state, in float32 (about 1e-7 is rounding; integers and flags are equal).
`python -m tests.foreign.table` writes this page; `pip install ".[foreign]"` installs the packages. See
[optimizers and schedules](optimizers.md).
"""


def deviation_of(case: Case) -> float | str:
    """The case's largest deviation, or the name of what it raises."""
    try:
        return max(compare(case).values())
    except Exception as error:  # one line of the table, whatever it is
        return type(error).__name__


def row(case: Case, deviation: float | str) -> str:
    """A line of the table."""
    rules = ", ".join(f"`{pattern}`: {rule}" for pattern, rule in case.rules.items())
    state = f"{case.state}; declared {rules}" if rules else case.state
    shown = deviation if isinstance(deviation, str) else f"{deviation:.0e}"
    return f"| {case.name} | {case.source} | {state} | {shown} |"


def main() -> int:
    """Writes the page; 1 if a case deviates."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    lines, wrong = [HEAD], 0
    for title, cases in GROUPS.items():
        lines += [
            f"## {title}",
            "| Module | Source | Other state | Deviation |",
            "|---" * 4 + "|",
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
