"""Paired runs of two arms: the mean difference and how sure it is."""

import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats


def paired_difference(control: Sequence[float], treated: Sequence[float]) -> dict[str, Any]:
    """What an arm differs from its control, over pairs (runs of one seed): {"difference", "interval"}.

    "difference" is the mean of treated - control, "interval" [low, high] holds it with 95 percent by Student's t.

    Raises:
        ValueError: for arms of different length, or fewer than two pairs.
    """
    if len(control) != len(treated) or len(control) < 2:
        raise ValueError(f"{len(control)} and {len(treated)} runs: a comparison needs at least 2 pairs")
    differences = [b - a for a, b in zip(control, treated)]
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * spread / len(differences) ** 0.5
    return {"difference": mean, "interval": [mean - half, mean + half]}
