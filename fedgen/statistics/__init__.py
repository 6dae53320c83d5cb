"""Features to summaries that pool: what crosses the line between a client and a server."""

from fedgen.statistics.gaussian import Gaussian, RunningPool, pool, summarize
from fedgen.statistics.low_rank import thin
from fedgen.statistics.messages import (
    Message,
    MessageError,
    add,
    gaussian_from_message,
    gaussian_to_message,
    gaussian_to_sums,
)
from fedgen.statistics.npz import Provenance, load_npz, save_npz
from fedgen.statistics.projection import Projection

__all__ = [
    "Gaussian",
    "Message",
    "MessageError",
    "Projection",
    "Provenance",
    "RunningPool",
    "add",
    "gaussian_from_message",
    "gaussian_to_message",
    "gaussian_to_sums",
    "load_npz",
    "pool",
    "save_npz",
    "summarize",
    "thin",
]
