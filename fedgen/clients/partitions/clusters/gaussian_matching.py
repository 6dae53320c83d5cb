"""Matchings of one label's clusters to another's: Kullback-Leibler divergences and the cheapest matching.

Yuan et al. 2022, App. D: clusters are matched label by label, the matched one's as the divergence's first argument.
"""

import numpy as np

from fedgen.clients.partitions.clusters.label_clusters import Clusters


def match_clusters(first: Clusters, second: Clusters) -> np.ndarray:
    """For each cluster of `first` its partner in `second`: a permutation [C] of least total KL(first || second)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and used by one partition

    return linear_sum_assignment(divergences(first, second))[1]


def divergences(first: Clusters, second: Clusters) -> np.ndarray:
    """KL(N(m_i, S_i) || N(n_j, T_j)) for all clusters i of `first` and j of `second`, in nats: float64 [C, C].

    1/2 [tr(T_j^-1 S_i) + (n_j - m_i)^T T_j^-1 (n_j - m_i) - d + ln|T_j| - ln|S_i|]. The trace and the quadratic in m_i
    are tr(T_j^-1 (S_i + m_i m_i^T)): one product of matrices [C, d^2] and [d^2, C]. Both sides have full covariances,
    or both diagonal ones.
    """
    origin = second.means.mean(axis=0)  # moving both sides changes nothing but rounding, which it keeps small
    m, n = first.means - origin, second.means - origin
    if first.covariances.ndim == 2:
        moments = first.covariances + m**2
        precisions = 1 / second.covariances
        pulls = precisions * n
        logs = [np.log(side.covariances).sum(axis=1) for side in (first, second)]
    else:
        moments = (first.covariances + m[:, :, None] * m[:, None, :]).reshape(len(m), -1)
        inverses = np.linalg.inv(second.covariances)
        pulls = (inverses @ n[:, :, None])[:, :, 0]
        precisions = inverses.reshape(len(n), -1)
        logs = [np.linalg.slogdet(side.covariances)[1] for side in (first, second)]
    squares = moments @ precisions.T - 2 * m @ pulls.T + (n * pulls).sum(axis=1)
    return 0.5 * (squares - m.shape[1] + logs[1] - logs[0][:, None])
