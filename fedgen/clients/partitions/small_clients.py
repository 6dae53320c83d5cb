"""No client below a least number of examples: small ones are given the nearest that others can spare."""

import numpy as np


def fill_small(
    owner: np.ndarray, labels: np.ndarray, points: np.ndarray, centres: np.ndarray, least: int
) -> np.ndarray:
    """The owners, int64 [N], after every client with fewer than `least` examples was filled up to `least`.

    A small client takes, one by one, the examples whose squared distance to its own centre of their label exceeds that
    to their owner's centre by the least, from clients that keep `least` themselves; the smallest client is served
    first. The number of clients stays: those who give names, cohorts and weights count on it.
    """
    owner = owner.copy()
    clients = centres.shape[1]
    sizes = np.bincount(owner, minlength=clients)
    for small in np.argsort(sizes, kind="stable")[: int((sizes < least).sum())]:
        kept = ((points - centres[labels, owner]) ** 2).sum(axis=1)
        cost = ((points - centres[labels, small]) ** 2).sum(axis=1) - kept
        for example in np.argsort(cost, kind="stable"):
            if sizes[small] >= least:
                break
            giver = owner[example]
            if giver != small and sizes[giver] > least:
                owner[example] = small
                sizes[giver] -= 1
                sizes[small] += 1
    return owner
