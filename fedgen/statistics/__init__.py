"""Features to summaries that pool: what crosses the line between a client and a server."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.statistics.fixed_point import FixedPoint, mask
    from fedgen.statistics.gaussian import Gaussian, RunningPool, pool, summarize
    from fedgen.statistics.npz import Provenance, load_npz, save_npz, thin
    from fedgen.statistics.private import (
        Privacy,
        noise_multiplier,
        private_gaussian,
        private_sums,
        project_positive,
        spent_epsilon,
    )
    from fedgen.statistics.projection import Projection
    from fedgen.statistics.sketches import CubicSketch, Estimate, FourierMoments, FourierSketch, KernelMoments
    from fedgen.statistics.statistic_messages import (
        Message,
        MessageError,
        add,
        gaussian_from_message,
        gaussian_to_message,
        gaussian_to_sums,
        message_size,
    )

__all__ = [
    "CubicSketch",
    "Estimate",
    "FixedPoint",
    "FourierMoments",
    "FourierSketch",
    "Gaussian",
    "KernelMoments",
    "Message",
    "MessageError",
    "Privacy",
    "Projection",
    "Provenance",
    "RunningPool",
    "add",
    "gaussian_from_message",
    "gaussian_to_message",
    "gaussian_to_sums",
    "load_npz",
    "mask",
    "message_size",
    "noise_multiplier",
    "pool",
    "private_gaussian",
    "private_sums",
    "project_positive",
    "save_npz",
    "spent_epsilon",
    "summarize",
    "thin",
]

load_on_use(__name__)
