"""FID-avg of clients that share neither images nor statistics: each scores a public generated set, and scores add up.

FID-all does not follow from it, as KID-all does from KID-avg; it comes from summed moments (`statistics.messages`).
"""

import torch
from torch import Tensor

from fedgen.scores.frechet.frechet import frechet_distance
from fedgen.statistics.gaussian import Gaussian, summarize
from fedgen.statistics.statistic_messages import Message, MessageError


def fid_message(client: Tensor, generated: Gaussian, ddof: float = 1, **meta: str) -> Message:
    """A client's part: the summable "fid" message of n_i and n_i FID_i.

    Args:
        client: features [n_i, D] of its images.
        generated: summary of the generated images, the same at every client.
        ddof: divisor n - ddof of both covariances.
        meta: remarks, such as the embedding's fingerprint; messages with differing ones do not add.

    Raises:
        ValueError: for unusable features, another D, or one image under ddof = 1.
    """
    value, _ = frechet_distance(summarize(client.cpu()), generated, ddof)
    tensors = {"count": float(len(client)), "score": len(client) * value}
    made = {"ddof": f"{ddof:g}", "generated": f"{generated.count:g}"}
    return Message("fid", {n: torch.tensor(v, dtype=torch.float64) for n, v in tensors.items()}, {**meta, **made})


def fid_from_messages(total: Message) -> float:
    """The server's part: FID-avg, clients weighing n_i / n, from what `statistics.add` made of their messages.

    Raises:
        MessageError: for another kind of message, or of no image.
    """
    if total.kind != "fid":
        raise MessageError(f"expected a 'fid' message, got {total.kind!r}")
    if not (count := float(total.tensors["count"])) >= 1:
        raise MessageError(f"a 'fid' message must count at least one image, got {count:g}")
    return float(total.tensors["score"]) / count
