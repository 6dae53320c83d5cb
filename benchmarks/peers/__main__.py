"""Rounds of the kit beside a bare loop, pfl-research and Flower's simulation: the same work, one thread a process.

    python -m benchmarks.peers [--workloads small-20 small-1 large-1] [--repeats 1]
    python -m benchmarks.peers --sides bare ours --processes 1 --device cuda

Every side trains in processes of its own, with the same arithmetic: their final weights are compared. The sides take
turns, a round each, so that a busy machine is busy for all of them, and a ratio is the median of the rounds' ratios.
With `--device cuda` a process has a GPU of its own, but for Flower's actors, which share the first; there the other
sides keep all images on it, and the kit moves each batch.
Every side runs as it comes; with `--alike` all keep freed memory, which the kit does by itself.
Flower's server and Ray are never idle, so Flower has a time to itself, after the others. The first round is not timed.
What further weights cost a client's turn is a figure of its own: a round of the large model less one of the small.
The peers are installed on first use into benchmarks/peers/.venv (400 MB, of which Ray is most) from the requirements
files there, and use the kit's PyTorch. pfl-research wants Python 3.11 or 3.12. Ten minutes.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from benchmarks.peers.turns import ALIKE, ALONE, MODULES, ON_GPUS, Side, take_turns
from benchmarks.peers.workload import WORKLOADS
from benchmarks.report import report

AGREE = {"cpu": 2e-6, "cuda": 2e-5}  # of any final weight, which are below 0.2 and move by 1e-3 and more
TITLES = {"bare": "a bare loop", "ours": "ours", "pfl": "pfl-research", "flower": "Flower's simulation"}
# (workload, side, other side): at most so much of the other's time
LIMITS = {
    ("small-20", Side("ours", 1), Side("pfl", 1)): 1.05,
    ("small-1", Side("ours", 1), Side("pfl", 1)): 1.05,
    # a bare loop takes 0.62 of pfl's time: it copies weights in and adds them up, and looks at nothing
    ("large-1", Side("ours", 1), Side("pfl", 1)): 0.85,
    # Flower's round of one step is mostly waits of a tenth of a second, of which a bare loop takes 0.34 to 0.48 by the
    # machine: the loop is the measure, and Flower's share is printed
    ("small-20", Side("ours", 1), Side("bare", 1)): 1.04,
    ("small-1", Side("ours", 1), Side("bare", 1)): 1.1,
    ("large-1", Side("ours", 1), Side("flower", 1)): 1 / 3,
    ("small-20", Side("ours", 2), Side("pfl", 2)): 1.05,
    ("small-1", Side("ours", 2), Side("pfl", 2)): 1.05,
    ("large-1", Side("ours", 2), Side("pfl", 2)): 0.85,
    ("small-20", Side("ours", 2), Side("bare", 2)): 1.1,
    ("small-1", Side("ours", 2), Side("bare", 2)): 1.2,
    ("large-1", Side("ours", 2), Side("flower", 2)): 1 / 3,
    ("small-20", Side("ours", 2), Side("bare", 1)): 1 / 1.7,
}

WEIGHTS_LIMIT = 0.75  # what further weights cost the kit, of what they cost pfl: half, and the noise of two differences


def measure(
    sides: Sequence[Side], workload: str, repeats: int, variables: Mapping[str, str]
) -> tuple[list[list[float]], list[list[Tensor]]]:
    """Each side's rounds in seconds, and its last final weights."""
    quiet, busy = [s for s in sides if s.name != "flower"], [s for s in sides if s.name == "flower"]
    seconds: dict[Side, list[float]] = {side: [] for side in sides}
    weights: dict[Side, list[Tensor]] = {}
    for _ in range(repeats):
        for group in (quiet, *([side] for side in busy)):
            for side, (found, final) in zip(group, take_turns(group, workload, variables)):
                seconds[side] += found
                weights[side] = final
    return [seconds[side] for side in sides], [weights[side] for side in sides]


def comparisons(sides: Sequence[Side]) -> Iterator[tuple[int, int]]:
    """What is set against what: ours against all on as many processes, two processes against one bare loop."""
    for i, side in enumerate(sides):
        for j, other in enumerate(sides):
            of_ours = side.name == "ours" != other.name and side.processes == other.processes
            of_more = side.name in ("ours", "bare") and other == Side("bare", 1) and side.processes > 1
            if of_ours or of_more:
                yield i, j


def compare(
    sides: Sequence[Side], workload: str, repeats: int, alike: bool = False, device: str = "cpu"
) -> tuple[bool, list[float]]:
    """Reports seconds, ratios and whether all computed the same.

    Returns:
        Whether all is within the limits, and each side's median seconds of a round.
    """
    variables = {**(ALIKE if alike else ALONE), **(ON_GPUS if device == "cuda" else {})}
    seconds, weights = measure(sides, workload, repeats, variables)
    work, within = f"round of {WORKLOADS[workload].title}", True
    titles = [f"{TITLES[side.name]}, {side.processes} process{'es' * (side.processes > 1)}" for side in sides]
    for title, found in zip(titles, seconds):
        report(f"{work}: {title}, median of {len(found)}", statistics.median(found), "s")
        report(f"{work}: {title}, best", min(found), "s")
    for i, j in comparisons(sides):
        ratio = statistics.median(a / b for a, b in zip(seconds[i], seconds[j]))
        limit = LIMITS.get((workload, sides[i], sides[j])) if device == "cpu" else None  # none is known of GPUs
        within &= report(f"{work}: {titles[i]} over {titles[j]}", ratio, "ratio", limit)
    off = max(float((a - b).abs().max()) for found in weights for a, b in zip(found, weights[0], strict=True))
    within &= report(f"{work}: largest difference between sides' final weights", off, "1", AGREE[device])
    return within, [statistics.median(found) for found in seconds]


def compare_weights(sides: Sequence[Side], small: Sequence[float], large: Sequence[float]) -> bool:
    """Reports what weights that are only exchanged cost: seconds of the large model's round less the small one's.

    Returns:
        Whether the kit's part of pfl-research's is within its limit.
    """
    within, size = True, f"{WORKLOADS['large-1'].extra / 1e6:.1f}M further parameters"
    for i, j in comparisons(sides):
        if sides[i].processes == sides[j].processes:
            ratio, (ours, other) = (large[i] - small[i]) / (large[j] - small[j]), (sides[i], sides[j])
            limit = WEIGHTS_LIMIT if (ours, other) == (Side("ours", 1), Side("pfl", 1)) else None
            title = f"{size} a round: ours over {TITLES[other.name]}, {ours.processes} process(es) each"
            within &= report(title, ratio, "ratio", limit)
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--sides", nargs="+", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2], choices=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--alike", action="store_true", help="all sides keep freed memory, which only the kit does itself"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    asked = parser.parse_args()
    sides = [Side(name, processes) for processes in asked.processes for name in asked.sides]
    found = {
        workload: compare(sides, workload, asked.repeats, asked.alike, asked.device) for workload in asked.workloads
    }
    within = [good for good, _ in found.values()]
    if {"small-1", "large-1"} <= found.keys():
        within.append(compare_weights(sides, found["small-1"][1], found["large-1"][1]))
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
