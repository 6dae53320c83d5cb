"""Many clients, one score: avg, all, worst and power means, with the weights that all of them share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgen.io.tensor_files import hash_tensors


def jackknife_variance(leave_one_out: Tensor) -> Tensor:
    """Variance of an estimate from its n values with one image left out, over the last dimension; 0 for n < 2."""
    count = leave_one_out.shape[-1]
    if count < 2:
        return leave_one_out.new_zeros(leave_one_out.shape[:-1])
    return leave_one_out.var(dim=-1, correction=0) * (count - 1)


def mean_variance(influence: Tensor, shares: Tensor | None = None, count: float | None = None) -> Tensor:
    """Variance of the weighted mean of an influence [..., p] over images; 0 where a single image shows no spread."""
    number = influence.shape[-1]
    if number < 2:
        return influence.new_zeros(influence.shape[:-1])
    if shares is None:
        return influence.var(dim=-1) / (count or number)
    centred = influence - (influence * shares).sum(-1, keepdim=True)
    return (shares * centred).square().sum(-1) / (1 - shares.square().sum()).clamp(min=torch.finfo(shares.dtype).eps)


Weights = str | Sequence[float] | Tensor
RealInfluences = dict[str, list[tuple[Tensor, float]]]
"""By aggregate, of each client: influences of its images [p] on the score, up to a constant and a factor, and the
variance that it adds."""
P = ParamSpec("P")
Reference = TypeVar("Reference")


@dataclass(frozen=True, eq=False)
class OverClients:
    """The share of each client in avg and all, where the clients are themselves a sample of a population of clients.

    A client comes with all its images, so the unit that varies is the client: its weight times the mean of the score's
    influence over its images. The generated set is the same for all clients, so its own spread is not included.

    Measured on Gaussians, 20 clients of 20 to 60 images drawn anew 150 times, as the spread of the values over the
    errors: 0.90 to 1.08 for FID, KID, sliced distances and log-densities. Where the generated set is about the
    population itself, those of all are up to 1.5 times too large (a first-order influence vanishes there), and those of
    precision-all, density-all and coverage-all up to 1.9 times. With few clients take Student's quantile of K - 1
    degrees: of 5 clients, value +- 1.96 errors holds the expectation in 70 to 86 percent of the draws.
    """

    per_client: Tensor
    of_pool: Tensor
    weights: Tensor
    pool_weights: Tensor | None = None

    def errors(self) -> dict[str, float]:
        """Standard errors {"avg", "all"} over clients, each with its images; empty where fewer than two count."""
        shares = {"avg": self.weights, "all": self.weights if self.pool_weights is None else self.pool_weights}
        if min(int((share > 0).sum()) for share in shares.values()) < 2:
            return {}
        variances = {"avg": _variance(self.per_client, shares["avg"]), "all": _variance(self.of_pool, shares["all"])}
        return {key: float(variance) ** 0.5 for key, variance in variances.items()}

    def times(self, factor: float) -> "OverClients":
        return replace(self, per_client=self.per_client * factor, of_pool=self.of_pool * factor)

    def minus(self, other: "OverClients") -> "OverClients":
        """The same of the difference of two scores, whose clients are paired in their order and equally weighted."""
        return replace(self, per_client=self.per_client - other.per_client, of_pool=self.of_pool - other.of_pool)


KEPT = 128  # influences of a client
MOST_KEPT = 2**14  # of all clients


def kept_influences(parts: Sequence[tuple[Tensor, float]], error: float) -> NDArray[np.float32]:
    """The influences of some images of every client, evenly spaced: those of two checkpoints, multiplied and summed,
    are the covariance that the clients' images give their scores.

    Args:
        parts: one aggregate's `FederatedScore.real_influences`.
        error: the score's standard error over real images, which is the length of the result.
    """
    most, rows = max(2, min(KEPT, MOST_KEPT // len(parts))), []
    for influences, variance in parts:
        some = influences[:: max(1, -(-len(influences) // most))].double()
        some = some - some.sum() / max(1, len(some))
        rows.append(some * (variance / some.square().sum().clamp(min=torch.finfo(some.dtype).tiny)).sqrt())
    found = torch.cat(rows)
    return (found * (error / found.norm().clamp(min=torch.finfo(found.dtype).tiny))).float().cpu().numpy()


def client_means(values: Tensor, counts: list[int]) -> Tensor:
    """Means of values [n] over each client's images, float64 [K]; images of client 0 come first."""
    return torch.stack([part.double().mean() for part in values.split(counts)])


def _variance(influence: Tensor, shares: Tensor) -> Tensor:
    """Infinite where a client's influence is, as that of a log-density of zero."""
    counted = shares > 0
    if not torch.isfinite(influence[counted]).all():
        return torch.tensor(torch.inf, dtype=torch.float64)
    return mean_variance(influence[counted], shares[counted])


@dataclass(frozen=True, eq=False)
class FederatedScore:
    """One score of one generated set against every client and against their pool.

    Args:
        name: what is measured, as "fid", "kid" or "recall".
        per_client: float64 [K], the score against each client; [0] where single clients' scores are hidden, and then
            "worst" is not among the values.
        values: "avg" (weighted mean of per_client), "all" (against the pooled clients), "worst" (the largest,
            or the smallest where higher is better).
        errors: standard errors of `values`, same keys; empty if they were not asked for. Generated and real images both
            vary: the root of the sum of squares of the two in `error_parts`.
        terms: for fid {"mean": {"avg", "all"}, "covariance": {"avg", "all"}}, which add up to the values; else empty.
        error_parts: {"generated": {...}, "real": {...}}, standard errors with the other side's images held fixed. Two
            checkpoints scored against the same clients share the second, so their difference has mostly the first.
        client_errors: float64 [K], standard errors of `per_client`; None if they were not asked for.
        higher_is_better: whether a better generated set scores higher.
        over_clients: what each client adds to "avg" and "all"; None if errors were not asked for.
        client_error_parts: {"generated": [K], "real": [K]}, the parts of `client_errors` as in `error_parts`.
        notes: what a reader of this value must know.
        real_influences: how the clients' images move "avg" and "all", by which checkpoints are compared that were
            scored against the same ones; empty if errors were not asked for, or the score has none.

    Examples:
        >>> import torch
        >>> from fedgen.scores import FrechetReference
        >>> clients = [torch.tensor([[-2.0], [0.0]]), torch.tensor([[0.0], [2.0]])]
        >>> score = FrechetReference.from_features(clients).score(torch.tensor([[0.0], [2.0]]), errors=False)
        >>> score.name, score.per_client.round(decimals=6)
        ('fid', tensor([4., 0.], dtype=torch.float64))
    """

    name: str
    per_client: Tensor
    values: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)
    terms: dict[str, dict[str, float]] = field(default_factory=dict)
    error_parts: dict[str, dict[str, float]] = field(default_factory=dict)
    client_errors: Tensor | None = None
    higher_is_better: bool = False
    over_clients: OverClients | None = None
    client_error_parts: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    real_influences: RealInfluences = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        values = ", ".join(f"{key} {value:.4g}" for key, value in self.values.items())
        return f"FederatedScore({self.name} over {_counted(len(self.per_client), 'client')}: {values})"

    @property
    def errors_over_clients(self) -> dict[str, float]:
        """Standard errors of "avg" and "all" where the clients stand for others that might have been there.

        Each comes with its images: they say how far the values hold beyond these clients. With more than one client;
        not part of `errors`, which are for these clients. The one generated set's own part is not in them.
        """
        return self.over_clients.errors() if self.over_clients else {}


class OfClients:
    """The base of what is kept of clients for a score.

    Attributes:
        weights: float64 [K], summing to 1, of the clients in avg and, unless the class says otherwise, in all.
        counts: images of each client.
    """

    weights: Tensor
    counts: Any  # whole numbers, unless the class takes pooled summaries

    def __repr__(self) -> str:
        clients, examples = _counted(len(self.counts), "client"), _counted(round(sum(self.counts)), "example")
        return f"{type(self).__name__}({clients}, {examples})"


class OfFeatures(OfClients):
    """The base of those made of the clients' features."""

    @classmethod
    def from_features(cls: Callable[P, Reference], *args: P.args, **kwargs: P.kwargs) -> Reference:
        """Make it of the clients' features, as the class itself does."""
        return cls(*args, **kwargs)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def resolve_weights(weights: Weights, counts: Sequence[float]) -> Tensor:
    """Client weights float64 [K] that sum to 1.

    Args:
        weights: "examples" (n_i / n), "uniform" (1 / K), or K non-negative numbers, normalised here.
        counts: images of each client.

    Raises:
        ValueError: for another word, another length, or numbers negative, not finite or all zero.

    Examples:
        >>> from fedgen.scores import resolve_weights
        >>> resolve_weights("examples", [30, 10]), resolve_weights("uniform", [30, 10])
        (tensor([0.7500, 0.2500], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    if isinstance(weights, str):
        if weights not in ("examples", "uniform"):
            raise ValueError(f"weights must be 'examples', 'uniform' or numbers, got {weights!r}")
        values = torch.tensor([n if weights == "examples" else 1.0 for n in counts], dtype=torch.float64)
    else:
        values = torch.as_tensor(weights, dtype=torch.float64).cpu()
        if values.shape != (len(counts),):
            raise ValueError(f"weights need one number a client, got {tuple(values.shape)} for {len(counts)} clients")
        if not (torch.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise ValueError(f"weights must be finite, not negative and not all zero, got {values.tolist()}")
    return values / values.sum()


def name_weights(weights: Weights) -> str:
    """The name of clients' weights in records: "examples", "uniform", or "given" with a hash of the numbers."""
    if isinstance(weights, str):
        return weights
    shares = resolve_weights(weights, weights).tolist()  # type: ignore[arg-type]
    return f"given {hash_tensors((), ' '.join(f'{share:.9g}' for share in shares))[:8]}"


def aggregate(per_client: Tensor, weights: Tensor, how: str | float = "avg", higher_is_better: bool = False) -> float:
    """One number from the clients' scores.

    Args:
        per_client: [K].
        weights: [K], summing to 1; clients of weight 0 do not count, not even as the worst.
        how: "avg", "worst" (the largest), or the power p of (sum_i w_i s_i^p)^(1/p): 1 is avg, infinity is worst; p > 1
            leans towards the clients that are served badly.
        higher_is_better: if so, "worst" is the smallest and powers lean the other way: 1 is avg, 0 the geometric mean,
            -1 the harmonic one, minus infinity the worst.

    Raises:
        ValueError: for another word, p < 1 (p > 1 where higher is better), or negative scores under a power other than
            1 (an unbiased KID may be one).

    Examples:
        >>> import torch
        >>> from fedgen.scores import aggregate
        >>> scores, weights = torch.tensor([1.0, 3.0]), torch.tensor([0.75, 0.25])
        >>> aggregate(scores, weights, "avg"), aggregate(scores, weights, "worst")
        (1.5, 3.0)
    """
    scores = per_client.double()[weights > 0]
    shares = weights.double()[weights > 0]
    sign = -1.0 if higher_is_better else 1.0
    power = {"avg": 1.0, "worst": sign * float("inf")}.get(how) if isinstance(how, str) else float(how)
    if power is None or not sign * power >= sign:
        bound = "most" if higher_is_better else "least"
        raise ValueError(f"how must be 'avg', 'worst' or a power of at {bound} 1, got {how!r}")
    if power == 1:
        return float(shares @ scores)
    if abs(power) == float("inf"):
        return float(scores.max() if power > 0 else scores.min())
    if (scores < 0).any():
        raise ValueError(f"power means need scores of at least 0, got {float(scores.min()):g}; use 'avg' or 'worst'")
    if power <= 0 and (scores == 0).any():
        return 0.0
    if power == 0:
        return float((shares @ scores.log()).exp())
    extreme = scores.max() if power > 0 else scores.min()
    scale = extreme.clamp(min=torch.finfo(torch.float64).tiny)  # so that no power overflows
    return float(scale * (shares @ (scores / scale) ** power) ** (1 / power))


def without_pool(name: str, per_client: Tensor, weights: Tensor, higher_is_better: bool = False) -> FederatedScore:
    """The FederatedScore of scores [K] that the clients' own models got."""
    values = {how: aggregate(per_client, weights, how, higher_is_better) for how in ("avg", "worst")}
    over_clients = OverClients(per_client, per_client, weights)
    return FederatedScore(name, per_client, values, higher_is_better=higher_is_better, over_clients=over_clients)


def combine(
    name: str,
    per_client: Tensor,
    pooled: float,
    weights: Tensor,
    terms: dict[str, dict[str, float]] | None = None,
    error_parts: dict[str, dict[str, float]] | None = None,
    client_error_parts: dict[str, Tensor] | None = None,
    higher_is_better: bool = False,
    over_clients: OverClients | None = None,
) -> FederatedScore:
    """The FederatedScore of per-client scores [K] and the score against the pool; errors add in squares over parts."""
    worst = aggregate(per_client, weights, "worst", higher_is_better)
    values = {"avg": aggregate(per_client, weights), "all": pooled, "worst": worst}
    parts = error_parts or {}
    errors = {key: sum(part[key] ** 2 for part in parts.values()) ** 0.5 for key in values} if parts else {}
    own = client_error_parts or {}
    each = torch.stack([part.square() for part in own.values()]).sum(0).sqrt() if own else None
    found = FederatedScore(name, per_client, values, errors, terms or {}, parts, each, higher_is_better)
    return replace(found, over_clients=over_clients, client_error_parts=own)


PAIRS = 2**22  # of clients and generated images whose numbers are held at once: 34 MB of float64


def worst_place(per_client: Tensor, weights: Tensor, higher_is_better: bool) -> int:
    """The place of the client with the worst of scores [K], among those that count."""
    badness = -per_client if higher_is_better else per_client
    return int(badness.masked_fill(weights == 0, -torch.inf).argmax())


def mean_score(
    name: str, values: Sequence[Tensor], weights: Tensor, errors: bool = True, higher_is_better: bool = False
) -> FederatedScore:
    per_client = torch.stack([part.mean() for part in values])
    pooled = aggregate(per_client, weights)  # the same to the last digit, so that no rounding ranks in two ways
    score = combine(name, per_client, pooled, weights, higher_is_better=higher_is_better)
    if not errors:
        return score
    spread = torch.stack([mean_variance(part) for part in values])
    worst = worst_place(per_client, weights, higher_is_better)
    average = float((weights.square() @ spread).sqrt())
    beyond = OverClients(per_client, per_client, weights)
    # no parts: whatever varies with the generated images is not known, so these stand for both sides
    found = {"avg": average, "all": average, "worst": float(spread[worst].sqrt())}
    return replace(score, errors=found, client_errors=spread.sqrt(), over_clients=beyond)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The values of torch.cat(parts), [n, D]: a view where the parts are consecutive rows of one tensor (a split's)."""
    if any(not _follows(before, after) for before, after in pairwise(parts)):
        return torch.cat(list(parts))
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())


def _follows(before: Tensor, after: Tensor) -> bool:
    forms = [(t.shape[1:], t.dtype, t.device, t.stride(), t.untyped_storage().data_ptr()) for t in (before, after)]
    end = before.storage_offset() + len(before) * before.stride(0)
    return forms[0] == forms[1] and bool(after.storage_offset() == end)


def client_blocks(counts: Sequence[int], generated: int) -> Iterator[tuple[slice, slice]]:
    """Places of clients, and of their images, by blocks of at most `PAIRS` pairs with generated images, or a client."""
    ends, step = [0, *accumulate(counts)], max(1, PAIRS // generated)
    for start in range(0, len(counts), step):
        stop = min(start + step, len(counts))
        yield slice(start, stop), slice(ends[start], ends[stop])


class SharedVariances:
    """Variances over what all clients share, as generated images are, from rows of one block of clients at a time."""

    def __init__(self, weights: Tensor, variance: Callable[[Tensor], Tensor] = mean_variance) -> None:
        self.weights, self._variance = weights, variance
        self.of_clients = torch.zeros_like(weights)
        self._average: Tensor | float = 0.0

    def add(self, clients: slice, rows: Tensor) -> None:
        """Take in the rows [b, m] of some clients; each client's once."""
        self.of_clients[clients] = self._variance(rows)
        self._average = self._average + self.weights[clients] @ rows

    def errors(self, worst: int, pool: Tensor | None = None) -> dict[str, float]:
        """Standard errors of avg, all and worst, with the pool's row [m]; None where it is the clients' mean."""
        assert isinstance(self._average, Tensor)
        average = float(self._variance(self._average))
        of_pool = average if pool is None else float(self._variance(pool))
        variances = {"avg": average, "all": of_pool, "worst": float(self.of_clients[worst])}
        return {key: variance**0.5 for key, variance in variances.items()}


def with_errors(
    score: FederatedScore,
    shared: SharedVariances,
    pool: Tensor | None,
    real: tuple[float | Tensor, float | Tensor, Tensor],
    over_clients: OverClients,
) -> FederatedScore:
    """A score with errors over generated images and, by the variances of avg, all and clients [K], over real ones."""
    weights, own = shared.weights, real[2]
    worst = worst_place(score.per_client, weights, score.higher_is_better)
    variances = {"avg": real[0], "all": real[1], "worst": own[worst]}
    parts = {
        "generated": shared.errors(worst, pool),
        "real": {key: float(value) ** 0.5 for key, value in variances.items()},
    }
    of_clients = {"generated": shared.of_clients.sqrt(), "real": own.sqrt()}
    values = score.name, score.per_client, score.values["all"], weights
    return combine(*values, None, parts, of_clients, score.higher_is_better, over_clients)


def with_influences(
    score: FederatedScore, shared: SharedVariances, generated: Tensor, real: Sequence[Tensor], pool: Sequence[Tensor]
) -> FederatedScore:
    """A score with its errors, from influences of generated [m] and real images, each up to a constant.

    `generated` and `pool` are influences on the pool's score, `real` those of clients' images on the client's own.
    """
    own, of_pool = (torch.stack([mean_variance(part) for part in parts]) for parts in (real, pool))
    squares = shared.weights.square()
    beyond = OverClients(score.per_client, torch.stack([part.mean() for part in pool]), shared.weights)
    found = with_errors(score, shared, generated, (squares @ own, squares @ of_pool, own), beyond)
    sides = {"avg": (real, own), "all": (pool, of_pool)}
    kept = {how: list(zip(parts, (squares * variances).tolist())) for how, (parts, variances) in sides.items()}
    return replace(found, real_influences=kept)
