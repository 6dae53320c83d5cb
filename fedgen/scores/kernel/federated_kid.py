"""KID-avg and KID-all of clients that share no image, from what adds up over them.

KID-avg takes one number a client, n_i KID_i. With the mean kernels A_i within the clients, avg - all is the constant
sum_i (n_i / n) A_i - A_pool, the same for every generator. A second number a client gives its first part; the summable
sketch of `statistics.sketches` (cubic or RBF kernel) the second. So KID-all is KID-avg minus an estimated constant,
with the same error for every checkpoint: none in their ranking.

One number of each checkpoint leaves a client, and no bound on what those say together: unlike the sums of
`statistics.private`, released once, they are not differentially private.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, RBFKernel
from fedgen.scores.kernel.mmd import KernelReference
from fedgen.statistics.sketches import FourierMoments, KernelMoments
from fedgen.statistics.statistic_messages import Message, MessageError


@dataclass(frozen=True)
class SummedKID:
    """KID of one generated set from summed messages; clients weigh n_i / n.

    Args:
        avg: exact, the mean over images of their client's KID.
        all: avg - constant.
        constant: of the federation, from real images alone; estimated.
        error: standard error of `all` and `constant` from the sketch; images are held fixed.

    Examples:
        >>> from fedgen.scores import SummedKID
        >>> SummedKID(avg=3.0, all=2.0, constant=1.0, error=0.0)
        SummedKID(avg=3.0, all=2.0, constant=1.0, error=0.0)
    """

    avg: float
    all: float
    constant: float
    error: float


def kid_message(client: KernelReference, generated: Tensor, **meta: str) -> Message:
    """A client's part: the summable "kid" message of n_i, n_i KID_i and n_i A_i, exact.

    Args:
        client: `KernelReference.from_features([features])` of the client alone; it serves every checkpoint.
        generated: features [m, D], the same set at every client.
        meta: remarks, such as the embedding's fingerprint and the checkpoint; messages with differing ones do not add.

    Raises:
        ValueError: for a reference of several clients, a kernel that has no sketch, or unusable features.

    Examples:
        >>> import torch
        >>> from fedgen.scores import KernelReference, kid_message
        >>> client = KernelReference.from_features([torch.tensor([[0.0], [1.0]])])
        >>> kid_message(client, torch.tensor([[0.0], [2.0]])).kind
        'kid'
    """
    if len(client.counts) != 1:
        raise ValueError(f"a client's message is about its own images, got a reference of {len(client.counts)} clients")
    dim = client.features.shape[1]
    made = {"kernel": kernel_label(client.kernel, dim), "dim": str(dim), "estimator": client.estimator}
    made["generated"] = str(len(generated))
    score = client.score(generated, errors=False).values["all"]
    values = {"count": 1.0, "score": score, "within": float(client.within[0])}
    tensors = {name: torch.tensor(client.counts[0] * v, dtype=torch.float64) for name, v in values.items()}
    return Message("kid", tensors, {**meta, **made})


def kid_from_messages(total: Message, pool: KernelMoments | FourierMoments) -> SummedKID:
    """The server's part: both aggregates from the sum of the clients' messages about one generated set.

    Args:
        total: what `statistics.add` made of the clients' "kid" messages.
        pool: what the sketch read from the sum of the clients' sketches.

    Raises:
        MessageError: for another kind of message, or messages and sketch of different images or kernels.

    Examples:
        >>> import torch
        >>> from fedgen.scores import KernelReference, RBFKernel, kid_from_messages, kid_message
        >>> from fedgen.statistics import FourierSketch, add
        >>> clients, sketch = [torch.zeros(2, 1), torch.ones(2, 1)], FourierSketch(1, sigma=1.0)
        >>> moments = sketch.read(add(*map(sketch.message, clients)))
        >>> references = [KernelReference.from_features([features], RBFKernel(1.0)) for features in clients]
        >>> found = kid_from_messages(add(*(kid_message(one, torch.zeros(3, 1)) for one in references)), moments)
        >>> exact = KernelReference.from_features(clients, RBFKernel(1.0)).score(torch.zeros(3, 1)).values
        >>> abs(found.avg - exact["avg"]) < 1e-9, abs(found.all - exact["all"]) < 0.05
        (True, True)
    """
    if total.kind != "kid":
        raise MessageError(f"expected a 'kid' message, got {total.kind!r}")
    count, score, within = (float(total.tensors[name]) for name in ("count", "score", "within"))
    if count < 1 or abs(count - pool.count) > 0.5:
        raise MessageError(f"the messages are of {count:g} images, the sketch of {pool.count:g}; add the same clients'")
    found, wanted = (total.meta.get("kernel"), total.meta.get("dim")), (pool.kernel, pool.made["dim"])
    if found != wanted:
        raise MessageError(f"the messages are of (kernel, features) = {found}, the sketch of {wanted}")
    estimator = total.meta.get("estimator")
    if estimator not in ("u", "v"):
        raise MessageError(f"a 'kid' message names its estimator 'u' or 'v', got {estimator!r}")
    mean = pool.within("u" if estimator == "u" else "v")
    constant = within / count - mean.value
    return SummedKID(score / count, score / count - constant, constant, mean.error)


def kernel_label(kernel: Kernel, dim: int) -> str:
    """The name that a kernel's messages and sketches have in common."""
    if isinstance(kernel, RBFKernel):
        return f"rbf {float(kernel.sigma or dim**0.5)!r}"
    if kernel == PolynomialKernel() or kernel == PolynomialKernel(gamma=1 / dim):
        return "cubic"
    raise ValueError(f"no sketch for {kernel}: use PolynomialKernel() (KID's) or RBFKernel(sigma)")
