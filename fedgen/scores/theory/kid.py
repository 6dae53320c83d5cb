"""The exact decomposition of KID-avg: KID-all plus a constant that real images alone decide.

With A_i, B, C_i the mean kernels within client i, within the generated images and between them, KD_i = A_i + B - 2 C_i,
and sum_i w_i C_i is the pool's cross mean exactly. So avg - all = sum_i w_i A_i - A_pool for every generator, at any
number of images, for U- and for V-statistics; each has a constant of its own. For V-statistics, as for populations, it
is sum_i w_i KD(P_pool, P_i), the theorem of arXiv 2310.11714. For U-statistics it is not: pool and clients share
images, and an unbiased estimate wants independent ones (0.6130 against 0.6017 with clients of 37 to 543 images).

It breaks with other weights for the pool than for the mean, with random subsets, and with other generated images for
each client.
"""

from dataclasses import dataclass

from torch import Tensor

from fedgen.scores.kernel.mmd import KernelReference


@dataclass(frozen=True)
class KIDDecomposition:
    """KID-avg taken apart.

    Args:
        avg: sum_i w_i KD(P_i, G).
        pooled: KD(P_pool, G), the `all` score.
        constant: sum_i w_i A_i - A_pool, from real images alone (`KernelReference.gap`).
        to_pool: sum_i w_i KD(P_pool, P_i): the constant for V-statistics, close to it for U-statistics.
        residual: avg - pooled - constant, 0 to rounding.
    """

    avg: float
    pooled: float
    constant: float
    to_pool: float
    residual: float


def kid_decomposition(reference: KernelReference, generated: Tensor) -> KIDDecomposition:
    """KID-avg of generated features [m, D] as KID-all and the constant; costs a score for the clients once more.

    Args:
        reference: the clients; its kernel, estimator and weights are used throughout.
        generated: floating features.

    Raises:
        ValueError: as `KernelReference.score`.
    """
    values = reference.score(generated, errors=False).values
    clients = reference.features.split(reference.counts)
    distances = [reference.score(client, errors=False).values["all"] for client in clients]
    to_pool = sum(float(w) * distance for w, distance in zip(reference.weights, distances))
    residual = values["avg"] - values["all"] - reference.gap
    return KIDDecomposition(values["avg"], values["all"], reference.gap, to_pool, residual)
