"""The Gaussian toy in closed form: clients N((-1, 0), I) and N((+1, 0), I), generator N((mean_x, 0), diag(var_x, 1)).

Population values of what arXiv 2310.11714 draws by simulation (section 5.1, Fig. 1; supplement, Figs. 15 and 16), with
equal weights. The pool has mean 0 and covariance diag(2, 1). `fedgen.data.GaussianMixture` draws the clients.
"""

import math

import numpy as np
import torch
from torch import Tensor

NODES = 80  # of the Gauss-Hermite rule; 40 give the same 12 digits


def toy_frechet(var_x: Tensor | float) -> dict[str, Tensor]:
    """FD-avg 1 + (sqrt(v) - 1)^2, FD-all (sqrt(v) - sqrt(2))^2 and FD-ref 4 - 2 sqrt(2), float64 of v's shape.

    avg is least at v = 1, all at v = 2. "ref" is the pool scored as the generator, sum_i w_i FD(pool, P_i): it is no
    minimum of avg.

    Raises:
        ValueError: for a negative variance.
    """
    root = _variance(var_x, least=0.0).sqrt()
    ref = torch.full_like(root, 4 - 2 * math.sqrt(2))
    return {"avg": 1 + (root - 1) ** 2, "all": (root - math.sqrt(2)) ** 2, "ref": ref}


def toy_kernel(var_x: Tensor | float) -> dict[str, Tensor]:
    """KD-all 3/4 (v - 2)^2, KD-avg = KD-all + 31/8 and KD-ref 31/8, for the cubic kernel (x^T y / 2 + 1)^3.

    KD sums 3/D, 3/D^2 and 1/D^3 times the squared differences of first, second and third moments. Generator and pool
    differ in the second alone; client and pool in the first, (3/2) 1, and the third, (16 + 3) / 8: 31/8 in all, the
    same for every generator. Both aggregates are least at v = 2.

    Raises:
        ValueError: for a negative variance.
    """
    variance = _variance(var_x, least=0.0)
    pooled, gap = 0.75 * (variance - 2) ** 2, torch.full_like(variance, 31 / 8)
    return {"avg": pooled + gap, "all": pooled, "ref": gap}


def toy_log_likelihood(var_x: Tensor | float, mean_x: Tensor | float = 0.0) -> dict[str, Tensor]:
    """LL-avg = LL-all = -log(2 pi) - log(v)/2 - (2 + mean_x^2) / (2 v) - 1/2 in nats, and LL-ref, float64.

    The mean log-likelihood of the clients' points; avg and all are one, as it is linear in the data. Greatest at v = 2,
    mean_x = 0: -3.18445. "ref" is the data's own density as the model, -3.17471.

    Raises:
        ValueError: if the variance is not positive: such a model gives the data no density.
    """
    variance = _variance(var_x, least=None)
    second = 2 + torch.as_tensor(mean_x, dtype=torch.float64) ** 2  # E (x - mean_x)^2
    value = -math.log(2 * math.pi) - variance.log() / 2 - second / (2 * variance) - 0.5
    return {"avg": value, "all": value, "ref": torch.full_like(value, _mixture_log_likelihood())}


def _mixture_log_likelihood() -> float:
    """E log p(x, y) under the pool p; by symmetry over the client at +1 alone, with E over x by quadrature."""
    nodes, masses = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(NODES))
    x = nodes + 1
    logs = torch.logaddexp(-((x - 1) ** 2) / 2, -((x + 1) ** 2) / 2) - math.log(2)
    along_x = float((masses / masses.sum()) @ logs) - math.log(2 * math.pi) / 2
    return along_x - math.log(2 * math.pi) / 2 - 0.5


def _variance(var_x: Tensor | float, least: float | None) -> Tensor:
    variance = torch.as_tensor(var_x, dtype=torch.float64)
    if not bool((variance > 0).all() if least is None else (variance >= least).all()):
        bound = "positive" if least is None else f"at least {least:g}"
        raise ValueError(f"var_x must be {bound}, got {float(variance.min()):g}")
    return variance
