"""Sums of features with differential privacy: clipped images, Gaussian noise, what it spends, and the summary.

What is protected is one image: whoever sees the sums can hardly tell whether it was there. Features are centred on a
public point and clipped to |x| <= R, so one image changes (sum x, sum x x^T) by (x, x x^T), of L2 norm at most
sqrt(R^2 + R^4) with the Frobenius norm for matrices. That norm counts an off-diagonal entry twice, so the noise of
standard deviation sigma in its coordinates is sigma on the diagonal and sigma / sqrt(2) off it: half the variance that
equal noise on the packed triangle would take.

The sums are released once: any number of checkpoints' scores from them costs nothing more. Other images, another
embedding or another layer of the same images are further releases, and `releases` counts them.

Noise lifts the FID, more so with more features: project on public components first (`statistics.projection`), or use
many images. The accounting takes noise for exactly Gaussian: it leaves out that draws are of 52 bits and that noise
which clients share is rounded at each of them, both many orders below the noise.

Noise is given as a multiplier, its standard deviation over the L2 sensitivity. Ways to account for it, all valid:

- "analytic": exact (Balle and Wang 2018, arXiv 1805.06530, theorem 8). Releases compose exactly too: with multipliers
  z_i they are together as private as one of multiplier (sum_i z_i^-2)^-1/2.
- "pld", "rdp": the accountants of Google's dp-accounting, by privacy loss distributions (within 1e-6 of exact) and by
  Renyi divergences (a bound, 8 percent more noise at epsilon = 1, delta = 1e-5). They need the extra `privacy`.
- "classic": sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, appendix A), the textbook's: 30 percent more noise
  at epsilon = 1 and too little at large epsilon, where it is refused.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedgen.extras import need
from fedgen.io.tensor_files import hash_tensors
from fedgen.seeds import generator
from fedgen.statistics.gaussian import CHUNK, Gaussian, check_features, eigh
from fedgen.statistics.statistic_messages import Message, MessageError, gaussian_from_sums, pack

Projecting = Literal["trace", "clamp", "none"]
Accountant = Literal["analytic", "pld", "rdp", "classic"]


def noise_multiplier(epsilon: float, delta: float, releases: int = 1, accountant: Accountant = "analytic") -> float:
    """The noise, over the sensitivity, of each of several releases that are (epsilon, delta)-private together.

    Args:
        epsilon: positive.
        delta: in (0, 1); well below one over the number of images.
        releases: of the same images, each with this noise; "classic" splits epsilon and delta among them.
        accountant: one of the above.

    Raises:
        ValueError: for values out of range, or epsilon too large for "classic".
        ModuleNotFoundError: if the accountant's package is missing, naming the extra that brings it.
    """
    _check(delta, accountant)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    if accountant == "classic":
        return _classic(epsilon / releases, delta / releases)
    if accountant == "analytic":
        return _solve(lambda z: _log_delta(z, epsilon) - math.log(delta)) * releases**0.5
    library = require_accountants()

    def noise(z: float) -> Any:
        return library.SelfComposedDpEvent(library.GaussianDpEvent(z), releases)

    return float(library.calibrate_dp_mechanism(lambda: _fresh(accountant), noise, epsilon, delta))


def spent_epsilon(multipliers: Sequence[float], delta: float, accountant: Accountant = "analytic") -> float:
    """The epsilon that releases of the same images by Gaussian noise have spent together, at this delta.

    Args:
        multipliers: of each release, its noise over its sensitivity.
        delta: in (0, 1).
        accountant: "analytic", "pld" or "rdp".

    Raises:
        ValueError: for no release, a multiplier that is not positive, a delta out of range, or "classic".
        ModuleNotFoundError: as `noise_multiplier`.
    """
    _check(delta, accountant)
    if not multipliers or not all(0 < z < math.inf for z in multipliers):
        raise ValueError(f"each release needs a positive and finite noise multiplier, got {list(multipliers)}")
    if accountant == "classic":
        raise ValueError("accountant='classic' gives noise for an epsilon only; use 'analytic', which is exact")
    if accountant == "analytic":
        together = sum(z**-2 for z in multipliers) ** -0.5
        if _log_delta(together, 0.0) <= math.log(delta):
            return 0.0
        return _solve(lambda epsilon: _log_delta(together, epsilon) - math.log(delta))
    library, spent = require_accountants(), _fresh(accountant)
    spent.compose(library.ComposedDpEvent([library.GaussianDpEvent(z) for z in multipliers]))
    return float(spent.get_epsilon(delta))


def counted_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon that releases of the same images by equal Gaussian noise spend together, by dp-accounting alone."""
    return float(require_accountants().get_epsilon_gaussian(multiplier / releases**0.5, delta))


def federated_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon of federated averaging with noise, by which one client may be replaced by any other."""
    _check(delta, "rdp")
    if releases == 0 or multiplier == 0:
        return math.inf if releases else 0.0
    library, spent = require_accountants(), _fresh("rdp")
    spent.compose(library.GaussianDpEvent(multiplier / 2), releases)  # replacing moves by twice the longest update
    return float(spent.get_epsilon(delta))


def _log_delta(multiplier: float, epsilon: float) -> float:
    """log delta of one release: log(Phi(a - b) - e^epsilon Phi(-a - b)), a = 1 / (2 z) and b = epsilon z."""
    a, b = 0.5 / multiplier, epsilon * multiplier
    first, second = torch.special.log_ndtr(torch.tensor([a - b, -a - b], dtype=torch.float64)).tolist()
    second += epsilon
    return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf


def _solve(falling: Callable[[float], float]) -> float:
    """The positive root of a falling function by bisection, rounded up: never less noise than is needed."""
    low, high = 1.0, 1.0
    while falling(low) < 0:
        low /= 2
    while falling(high) > 0:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def _classic(epsilon: float, delta: float) -> float:
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if multiplier < noise_multiplier(epsilon, delta):
        raise ValueError(f"accountant='classic' gives too little noise at epsilon={epsilon:g}: use 'analytic'")
    return multiplier


def _check(delta: float, accountant: str) -> None:
    if accountant not in ("analytic", "pld", "rdp", "classic"):
        raise ValueError(f"accountant must be 'analytic', 'pld', 'rdp' or 'classic', got {accountant!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")


def require_accountants() -> Any:
    """dp-accounting; ModuleNotFoundError with the remedy where it is missing."""
    owner = "accountant='pld', 'rdp' or that of a deployment's promises (accountant='analytic' needs no extra)"
    return need("dp_accounting", "privacy", owner)


def _fresh(accountant: Accountant) -> Any:
    from dp_accounting import pld, rdp

    return pld.PLDAccountant() if accountant == "pld" else rdp.RdpAccountant()


@dataclass(frozen=True)
class Privacy:
    """The promise of privacy and how it is kept; the same at every client, and public.

    Args:
        epsilon: of the guarantee, positive.
        delta: of the guarantee; below one over the number of images.
        radius: R > 0, the norm that features (minus the centre) are clipped at. From public data: features beyond it
            are pulled in, which biases the score, and the noise grows with R^2.
        neighbours: "add": data sets that differ by one image more or less. "replace": by one image in place of another,
            for which noise is about sqrt(2) times as large.
        count: "noised": the number of images is protected too. "public": it is sent as it is; then either the number
            is no secret, or choose neighbours="replace", which does not change it.
        releases: how often sums of these images are released by this budget.
        accountant: as above.
        sharers: 1: every message has the whole noise and is private by itself. K: each has 1 / K of the variance, so
            that only the sum over K clients is private: for secure aggregation, which shows no message alone. Choose
            K as the clients that certainly take part and tell nobody their noise.

    Raises:
        ValueError: for values out of range, or a noised count that replacing images does not change.
    """

    epsilon: float
    delta: float
    radius: float
    neighbours: Literal["add", "replace"] = "add"
    count: Literal["noised", "public"] = "noised"
    releases: int = 1
    accountant: Accountant = "analytic"
    sharers: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.radius < float("inf"):
            raise ValueError(f"radius must be positive and finite, got {self.radius}")
        if self.neighbours not in ("add", "replace") or self.count not in ("noised", "public"):
            found = f"{self.neighbours!r} and {self.count!r}"
            raise ValueError(f"neighbours must be 'add' or 'replace', count 'noised' or 'public', got {found}")
        if self.neighbours == "replace" and self.count == "noised":
            raise ValueError("neighbours='replace' leaves the count as it is: use count='public'")
        if self.sharers < 1:
            raise ValueError(f"sharers must be at least 1, got {self.sharers}")
        _ = self.sigma  # refuses epsilon, delta, releases and accountant before any long work

    @property
    def sensitivity(self) -> float:
        """The most that one image changes the sums, in L2.

        "add": sqrt(R^2 + R^4), with a noised count sqrt(1 + R^2 + R^4). "replace": the most of
        |x - y|^2 + |x x^T - y y^T|^2 = 2 R^2 - 2 c + 2 R^4 - 2 c^2 with c = <x, y>, which is 2 (R^2 + 1/2)^2 at
        c = -1/2, or 4 R^2 at c = -R^2 for R^2 < 1/2.
        """
        square = self.radius**2
        if self.neighbours == "replace":
            return 2**0.5 * (square + 0.5) if square >= 0.5 else 2 * self.radius
        return (square + square**2 + (self.count == "noised")) ** 0.5

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise on one message, or with sharers on the sum of so many."""
        return self.sensitivity * noise_multiplier(self.epsilon, self.delta, self.releases, self.accountant)


def private_sums(
    features: Tensor,
    privacy: Privacy,
    centre: Tensor | None = None,
    seed: int | None = None,
    client: int = 0,
    **meta: str,
) -> Message:
    """A client's part: the summable "private-sums" message of features [n, D], clipped and with the client's noise.

    Args:
        features: floating.
        privacy: the promise.
        centre: public point [D] that images are centred on before they are clipped, 0 if None. Never a client's mean.
        seed: None takes noise from the system's secure source, for real use. A number makes it repeat, for experiments:
            whoever knows it removes the noise, and two releases of one seed and client differ by the data alone.
        client: its number, which tells its noise from that of others of the same seed.
        meta: remarks, such as the embedding's fingerprint; messages with differing ones do not add.

    Raises:
        ValueError: for unusable features, or a centre of another D.
    """
    check_features(features)
    dim = features.shape[1]
    origin = _origin(centre, dim)
    total = torch.zeros(dim, dtype=torch.float64)
    outer = torch.zeros(dim, dim, dtype=torch.float64)
    for part in features.detach().cpu().split(CHUNK):
        images = clip(part.double() - origin, privacy.radius)
        total += images.sum(0)
        outer.addmm_(images.T, images)
    size = 1 + dim + dim * (dim + 1) // 2
    if seed is None:
        noise = secure_normal(size)
    else:
        noise = torch.randn(size, dtype=torch.float64, generator=generator(seed, "private noise", client))
    noise *= privacy.sigma / privacy.sharers**0.5
    spread = pack(torch.eye(dim, dtype=torch.float64) * (1 - 0.5**0.5) + 0.5**0.5)
    tensors = {
        "count": len(features) + (noise[0] if privacy.count == "noised" else torch.zeros_like(noise[0])),
        "sum": total + noise[1 : 1 + dim],
        "outer": pack(outer) + noise[1 + dim :] * spread,
        "clients": torch.ones((), dtype=torch.float64),
    }
    return Message("private-sums", tensors, {**meta, **_meta(privacy, centre)})


def private_gaussian(
    total: Message, privacy: Privacy, centre: Tensor | None = None, project: Projecting = "trace"
) -> Gaussian:
    """The server's part: the summary in a sum of clients' messages, for `FrechetReference.from_summaries`.

    Args:
        total: what `add` made of them.
        privacy: as the clients had it.
        centre: likewise.
        project: what becomes of the negative eigenvalues that noise makes of small ones, at no cost in privacy.
            "trace": the nearest positive semidefinite matrix of the same trace, since noise leaves the trace right on
            average, though not the FID; "clamp": the nearest one, whose trace is too large; "none": they stay, and
            where they take the FID's covariance term below zero it reads 0, as if the generator were perfect.

    Raises:
        MessageError: for another kind or promise, fewer messages than share the noise, or no two images beyond it.
    """
    if total.kind != "private-sums":
        raise MessageError(f"expected a 'private-sums' message, got {total.kind!r}")
    expected = _meta(privacy, centre)
    if any(total.meta.get(name) != value for name, value in expected.items()):
        raise MessageError(f"the message promises {dict(total.meta)}, expected {expected}")
    clients, count = float(total.tensors["clients"]), float(total.tensors["count"])
    if clients < privacy.sharers - 0.5:
        raise MessageError(f"{clients:g} messages hold less noise than promised: {privacy.sharers} clients share it")
    if count < 2:
        noise = privacy.sigma * (clients / privacy.sharers) ** 0.5
        raise MessageError(f"a count of {count:.3g} (noise {noise:.3g}) leaves no two images; take more, or less noise")
    try:
        found = gaussian_from_sums(count, total.tensors["sum"], total.tensors["outer"])
    except ValueError as error:
        raise MessageError(f"the tensors of a 'private-sums' message disagree: {error}") from error
    found = Gaussian(count, found.mean + _origin(centre, found.dim), scatter=found.scatter)
    return found if project == "none" else project_positive(found, keep_trace=project == "trace")


def project_positive(summary: Gaussian, keep_trace: bool = True) -> Gaussian:
    """The summary with the nearest positive semidefinite scatter matrix in Frobenius norm.

    Args:
        summary: of any count; one without negative eigenvalues is given back as it is.
        keep_trace: whether only matrices of the same trace are considered, if that is positive: then all eigenvalues
            are lowered alike before negative ones are set to zero (a projection on the simplex).
    """
    if summary.scatter is None:
        return summary
    values, vectors = eigh(summary.scatter)
    if values[0] >= 0:
        return summary
    if keep_trace and values.sum() > 0:
        falling = values.flip(0)
        shifts = (falling.cumsum(0) - values.sum()) / torch.arange(1, len(values) + 1)
        values = values - shifts[int((falling > shifts).sum()) - 1]
    rows = vectors * values.clamp(min=0).sqrt()
    return Gaussian(summary.count, summary.mean, scatter=rows @ rows.T)


def clip(features: Tensor, radius: float) -> Tensor:
    """Features [n, D] with those of a norm above the radius pulled in to it."""
    norms = features.norm(dim=1, keepdim=True)
    return features * (radius / norms.clamp(min=radius))


def secure_normal(number: int) -> Tensor:
    """Standard normal numbers [n] from the system's secure random source, by the inverse distribution function."""
    words = np.frombuffer(os.urandom(8 * number), dtype=np.uint64) >> np.uint64(12)  # k + 1/2 is exact for 52 bits
    return torch.special.ndtri(torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52))


def _origin(centre: Tensor | None, dim: int) -> Tensor:
    if centre is None:
        return torch.zeros(dim, dtype=torch.float64)
    if centre.shape != (dim,) or not torch.isfinite(centre).all():
        raise ValueError(f"centre must be {dim} finite numbers, as many as features, got shape {tuple(centre.shape)}")
    return centre.double().cpu()


def promise_of(privacy: Privacy) -> str:
    """The promise as JSON, as "private-sums" messages carry it under "privacy"; `Privacy(**json.loads(...))` again."""
    numbers = {name: float(getattr(privacy, name)) for name in ("epsilon", "delta", "radius")}  # 1 is 1.0
    return json.dumps(asdict(privacy) | numbers, sort_keys=True)


def _meta(privacy: Privacy, centre: Tensor | None) -> dict[str, str]:
    hashed = "0" if centre is None else hash_tensors([("centre", centre.double())])
    return {"privacy": promise_of(privacy), "centre": hashed}
