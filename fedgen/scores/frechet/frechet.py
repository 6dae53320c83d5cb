"""Fréchet distance between Gaussians, and from one generated set to every client and to their pool in one pass.

FD = |mu_1 - mu_2|^2 + tr C_1 + tr C_2 - 2 tr sqrt(C_1 C_2) (Heusel et al. 2017, arXiv 1706.08500). Computed from the
smaller side of each pair and in float64; equal to torch-fidelity's and torchmetrics' values on the same features.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedgen.ranks import spread
from fedgen.scores.aggregate import FederatedScore, OfClients, OverClients, Weights, combine, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.frechet.corrected import (
    Bias,
    ImageCounts,
    check_bias,
    check_client,
    effective_count,
    few_images,
    marks_of,
    with_alarm,
)
from fedgen.scores.frechet.frechet_errors import (
    POOL_IMAGES,
    Batch,
    InfluenceErrors,
    group_batches,
    sample_client,
    sample_deviations,
    sample_pool,
)
from fedgen.scores.frechet.roots import Roots, factor, paired_eigenvalues, squared_norms, sum_of_roots, top
from fedgen.statistics.gaussian import Gaussian, RunningPool, refuse_size, summarize
from fedgen.statistics.statistic_messages import Message, MessageError

NAMES: dict[Bias, str] = {"plug-in": "fid", "corrected": "fidc"}


def check_ddof(ddof: float) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof!r}")


def frechet_distance(
    a: Gaussian, b: Gaussian, ddof: float = 1, bias: Bias = "plug-in"
) -> tuple[float, dict[str, float]]:
    """The distance and its terms {"mean", "covariance"}, which add up to it.

    Args:
        a: summary of one set of features.
        b: summary of the other.
        ddof: divisor n - ddof of both covariances: 1 as peers print it, 0 for statements about populations.
        bias: "plug-in" as peers print it, too large where images are few; "corrected" for the populations' distance,
            which may be negative about 0: see `fedgen.scores.frechet.corrected` for conditions and source. Images must
            be different ones: their number is all that a summary tells.

    Raises:
        ValueError: if the dimensions differ, a summary of one image meets ddof = 1, or features are beyond 1e70; of the
            corrected distance for ddof = 0, or fewer than r + 2 images in r directions.

    Examples:
        >>> import torch
        >>> from fedgen.scores import frechet_distance
        >>> from fedgen.statistics import summarize
        >>> real, generated = summarize(torch.tensor([[-1.0], [1.0]])), summarize(torch.tensor([[2.0], [4.0]]))
        >>> distance, terms = frechet_distance(real, generated)
        >>> distance
        9.0
    """
    check_bias(bias, ddof)
    _check_dim(a.dim, b.dim)
    refuse_size(_size_of(a), "the first summary is of features of size")
    refuse_size(_size_of(b), "the second summary is of features of size")
    thin, other = (b, a) if b.is_low_rank and not a.is_low_rank else (a, b)
    values, ranks = paired_eigenvalues(factor(thin, ddof), _opposite(other, ddof))
    terms = {"mean": float((a.mean - b.mean).square().sum())}
    if bias == "plug-in":
        trace = float(sum_of_roots(values, ranks)[0])
        terms["covariance"] = max(0.0, float(a.trace(ddof) + b.trace(ddof)) - 2 * trace)
    else:
        numbers = ImageCounts([thin.count], [thin.count], (other.count, other.count), ["a set", "the other set"])
        traces, _ = numbers.traces([0], values * top(values.shape[1], ranks))
        shift, spread = torch.tensor([terms["mean"]], dtype=torch.float64), thin.trace(0).view(1).cpu()
        terms = {name: float(term) for name, term in numbers.terms([0], traces, shift, spread, other.trace(0)).items()}
    return terms["mean"] + terms["covariance"], terms


@dataclass(frozen=True, eq=False)
class Distances:
    """Distances to every client, and to their pool as the last one where there are several."""

    values: Tensor
    terms: dict[str, Tensor]
    influences: InfluenceErrors | None = None
    of_pool: Tensor | None = None
    numbers: ImageCounts | None = None


class FrechetReference(OfClients):
    """The clients' cached side of the distance: means, traces and roots of covariances, of each client and the pool.

    A client of more images than features costs a triangular factor (18.9 MB at D = 2048), another its deviations.
    The distance on a fixed public PCA, where few images bring little bias, is that of projected features or summaries::

        FrechetReference.from_features(map(projection.project, clients)).score(projection.project(generated))
        FrechetReference.from_summaries(map(projection.project_summary, summaries)).score(...)

    Attributes:
        pooled: summary of the pool, as `statistics.pool` makes it.
        ddof: the divisor of every covariance is n - ddof.

    Examples:
        >>> import torch
        >>> from fedgen.scores import FrechetReference
        >>> clients = [torch.tensor([[-2.0], [0.0]]), torch.tensor([[0.0], [2.0]])]  # means -1 and 1, variances 2
        >>> score = FrechetReference.from_features(clients).score(torch.tensor([[-1.0], [1.0]]), errors=False)
        >>> round(score.values["avg"], 4)  # mean 0, variance 2: 1 to each client
        1.0
        >>> round(score.values["all"], 4)  # the pool: mean 0, variance 8/3; (sqrt(8/3) - sqrt(2))^2
        0.0479
    """

    def __init__(
        self, clients: Iterable[Tensor | Gaussian], weights: Weights, ddof: float, biases: Sequence[Bias] = ("plug-in",)
    ) -> None:
        resolve_weights(weights, [1.0] * (1 if isinstance(weights, str) else len(weights)))  # before any long work
        for bias in biases:
            check_bias(bias, ddof)
        self.ddof, self.biases = ddof, biases
        self.counts: list[float] = []
        self._means: list[Tensor] = []  # of each client, then of the pool
        self._traces: list[Tensor] = []
        self._scales: list[float] = []  # n / (n - ddof)
        self._size = 0.0  # of the largest features; looked at when a score is asked for
        running = RunningPool(by_count=isinstance(weights, str) and weights == "examples")
        batches: list[Batch] = []
        positions: list[Tensor] = []
        marks: list[Tensor | None] = []  # of clients whose features are known, if they are asked for
        for number, client in enumerate(clients):
            if isinstance(client, Gaussian):
                summary, features = client, None
            else:
                features = client.detach().cpu()
                summary = summarize(features, f"features of client {number}")
            root = self._factor(number, summary)
            if "corrected" in biases:
                check_client(summary, number)
            batches.append(Batch([number], root, [sample_client(number, summary, root, features)]))
            positions.append(sample_deviations(summary, features, POOL_IMAGES, root) + summary.mean)
            marks.append(None if features is None or "corrected" not in biases else marks_of(features))
            self.counts.append(summary.count)
            running.add(summary, _mass(weights, number, summary.count))
        if not batches:
            raise ValueError("a reference needs at least one client")
        self.weights = resolve_weights(weights, self.counts)
        self.pooled = running.result()
        self._batches = group_batches(batches)
        every = [self._pool_batch(batches, positions), *self._batches] if len(batches) > 1 else self._batches
        self._pool = every[0].members[0]  # its place
        self._different = self._count_different(marks)
        self._longest_first = sorted(every, key=lambda batch: -batch.roots.size * len(batch.members))

    @classmethod
    def from_features(
        cls,
        features: Iterable[Tensor | Gaussian],
        weights: Weights = "examples",
        ddof: float = 1,
        bias: Bias = "plug-in",
    ) -> "FrechetReference":
        """The reference of clients given by features [n_i, D], taken one at a time (a generator will do).

        Args:
            features: floating tensors, one a client; a summary for a client whose features are not at hand.
            weights: "examples" (n_i / n): the pool is the union of the images, and `all` equals the FID on concatenated
                features. "uniform" or K numbers: the pool is the mixture sum_i w_i P_i, whose covariance is the
                population's for ddof = 0 and, for ddof = 1, that times n' / (n' - 1) with the effective number of
                images n' = 1 / sum_i (w_i^2 / n_i); the same as "examples" when all n_i are equal.
            ddof: divisor n - ddof of every covariance, the generator's too.
            bias: "plug-in", or "corrected" for few images: see `frechet_distance`. Of clients' images that occur twice
                the effective number of different ones counts then, where features are given.

        Raises:
            ValueError: for unusable features or weights, or a client with one image under ddof = 1.
        """
        return cls(features, weights, ddof, [bias])

    @classmethod
    def from_summaries(
        cls, summaries: Iterable[Gaussian], weights: Weights = "examples", ddof: float = 1, bias: Bias = "plug-in"
    ) -> "FrechetReference":
        """The reference of summaries as clients send them: the same values; errors assume normal features."""
        return cls(summaries, weights, ddof, [bias])

    def score(self, generated: Tensor | Gaussian, errors: bool = True) -> FederatedScore:
        """FID of generated features [m, D] (or their summary) to every client, avg, all and worst.

        Args:
            generated: features, or a summary: then the errors assume normal features.
            errors: whether to add standard errors, for about three times the time. They are first-order (infinitesimal
                jackknife): generated images vary as one sample, real ones within each client, weights stay, and the
                worst client stays the worst. They leave out the bias of an FID from few images. Measured against the
                spread of repeated draws they are within 20 percent at distances well above the bias; where the bias is
                most of the distance (few images for the features, or equal distributions) up to 1.6 times too large.
                A client of one image adds nothing.

        Raises:
            ValueError: for another D, unusable features, or too few images for a corrected distance.
        """
        return self.combined(NAMES[self.biases[0]], self.measure_all(generated, errors)[0])

    def measure(self, generated: Tensor | Gaussian, errors: bool = True) -> Distances:
        """The distances of `score` one by one, with what its errors are made of; raises as it does."""
        return self.measure_all(generated, errors)[0]

    def measure_all(
        self, generated: Tensor | Gaussian, errors: bool = True, different: float = 1.0, name: str = "the generated set"
    ) -> list[Distances]:
        """The distances of `measure`, for each bias.

        Args:
            generated: as for `score`, likewise errors.
            errors: whether influences are wanted.
            different: the share of its images that counts as different; of a generator's all do.
            name: of the generated set, for messages.
        """
        features = None if isinstance(generated, Gaussian) else generated.detach().cpu()
        summary = self._summary(generated)
        numbers: list[ImageCounts | None] = []
        for bias in self.biases:
            if bias == "plug-in":
                numbers.append(None)
                continue
            unlike = summary.count if features is None else effective_count(marks_of(features))
            numbers.append(self._numbers((summary.count, summary.count * different), name, unlike))
        influences: list[InfluenceErrors] = []
        if errors:
            made = InfluenceErrors(summary, features, self.ddof, self.counts, self.weights)
            influences = [made if one is None else made.corrected(one) for one in numbers]
        found = self._distances(self._longest_first, summary, influences, numbers)
        if not errors:
            return [Distances(*one, numbers=own) for one, own in zip(found, numbers)]
        return [Distances(*one, own, self._of_pool(own), own.numbers) for one, own in zip(found, influences)]

    def combined(self, name: str, found: Distances) -> FederatedScore:
        """The score of distances, as they were measured or multiplied by factors."""
        clients, pool = len(self.counts), self._pool
        per_client = found.values[:clients]
        named = {}
        for key, term in found.terms.items():
            named[key] = {"avg": float(self.weights @ term[:clients]), "all": float(term[pool])}
        worst = int(per_client.masked_fill(self.weights == 0, -torch.inf).argmax())
        parts, own, influences = found.influences.errors(worst, pool) if found.influences else (None, None, {})
        over_clients = None if found.of_pool is None else OverClients(per_client, found.of_pool, self.weights)
        pooled = float(found.values[pool])
        score = combine(name, per_client, pooled, self.weights, named, parts, own, over_clients=over_clients)
        score = replace(score, real_influences=influences)
        return score if found.numbers is None else with_alarm(replace(score, notes=found.numbers.notes))

    def per_client(self, generated: Tensor | Gaussian) -> Tensor:
        """FID to each client alone, float64 [K], for those who do not need the pool's."""
        return self._distances(self._batches, self._summary(generated), [], [None])[0][0][: len(self.counts)]

    def _summary(self, generated: Tensor | Gaussian) -> Gaussian:
        summary = generated if isinstance(generated, Gaussian) else summarize(generated.cpu(), "generated features")
        _check_dim(len(self._means[0]), len(summary.mean))
        refuse_size(_size_of(summary), "the generated features' summary is of features of size")
        refuse_size(self._size, "the clients' summary is of features of size")
        return summary

    def _distances(
        self,
        batches: list[Batch],
        summary: Gaussian,
        influences: Sequence[InfluenceErrors],
        numbers: Sequence[ImageCounts | None],
    ) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Distances to the batches' members, clients before the pool, and their terms; ranks `together` share them."""
        if influences:
            known = self._means, self._scales
            visits = list(
                spread(
                    lambda batch: [
                        own.visit(batch, spectra, *known)
                        for spectra in [influences[0].spectra(batch)]
                        for own in influences
                    ],
                    batches,
                )
            )
            for own, of_one in zip(influences, zip(*visits)):
                own.gather(batches, of_one)
            found: list[Sequence[Tensor]] = [[visit.traces for visit in one] for one in visits]
        else:
            opposite = _opposite(summary, self.ddof)
            found = list(spread(lambda batch: all_traces(numbers, batch, opposite), batches))
        shifts = torch.stack([(mean - summary.mean).square().sum() for mean in self._means])
        spreads, distances = torch.stack(self._traces), []
        for one, parts in zip(numbers, zip(*found)):
            traces = torch.zeros(len(self._means), dtype=torch.float64)
            for batch, part in zip(batches, parts):
                traces[batch.members] = part.to(traces)
            terms = {"mean": shifts, "covariance": (spreads + summary.trace(self.ddof) - 2 * traces).clamp(min=0)}
            if one is not None:
                population = spreads / torch.tensor(self._scales, dtype=torch.float64)
                terms = one.terms(range(len(traces)), traces, shifts, population, summary.trace(0))
            distances.append((terms["mean"] + terms["covariance"], terms))
        return distances

    def _numbers(self, generated: tuple[float, float], name: str, unlike: float) -> ImageCounts:
        """The numbers of images on both sides, and of different ones."""
        counts = [*self.counts, self.pooled.count]
        names = [*(f"client {number}" for number in range(len(self.counts))), "the clients' pool", name]
        return ImageCounts(counts, self._different, generated, names, unlike)

    def _count_different(self, marks: Sequence[Tensor | None]) -> list[float]:
        """The effective number of different images of each client and of the pool; all where features are unknown."""
        if not (known := [one for one in marks if one is not None]):
            return [*self.counts, self.pooled.count]
        own = [count if one is None else effective_count(one) for count, one in zip(self.counts, marks)]
        shares = [(share / len(one)).expand(len(one)) for share, one in zip(self.weights, marks) if one is not None]
        rest = sum(float(w) ** 2 / n for w, n, one in zip(self.weights, self.counts, marks) if one is None)
        return [*own, 1 / (1 / effective_count(torch.cat(known), torch.cat(shares)) + rest)]

    def _of_pool(self, influences: InfluenceErrors) -> Tensor | None:
        """Slopes of the pool's distance by client [K]; None of a single client."""
        if (pool := influences.pool) is None or (map := pool.map) is None:
            return None if pool is None else pool.slopes
        moved = torch.zeros(len(self.counts), dtype=torch.float64)
        found = spread(lambda batch: squared_norms(batch.roots, map).double(), self._batches)
        for batch, part in zip(self._batches, found):
            moved[batch.members] = part
        return influences.slopes(map, moved, self._means, self._traces, self._scales)

    def _factor(self, number: int, summary: Gaussian) -> Roots:
        try:
            if self._means:
                _check_dim(len(self._means[0]), summary.dim)
            root = factor(summary, self.ddof)
        except ValueError as error:
            raise ValueError(f"client {number}: {error}") from error
        self._remember(summary)
        return root

    def _remember(self, summary: Gaussian) -> None:
        self._means.append(summary.mean)
        self._size = max(_size_of(summary), self._size)
        self._traces.append(summary.trace(self.ddof))
        self._scales.append(summary.count / summary.divisor(self.ddof))

    def _pool_batch(self, batches: list[Batch], positions: list[Tensor]) -> Batch:
        root = factor(self.pooled, self.ddof)
        self._remember(self.pooled)
        pooled = torch.cat([batch.samples[0].clients for batch in batches if self.weights[batch.members[0]] > 0])
        return Batch([len(batches)], root, [sample_pool(self.pooled, root, positions, pooled)])


def all_traces(numbers: Sequence[ImageCounts | None], batch: Batch, opposite: Tensor | Roots) -> list[Tensor]:
    """The traces of sqrt(C_i C) [k] of a batch, for each bias."""
    values, ranks = paired_eigenvalues(batch.roots, opposite)
    counted = values * top(values.shape[1], ranks).to(values)
    return [sum_of_roots(values, ranks) if one is None else one.traces(batch.members, counted)[0] for one in numbers]


def _opposite(summary: Gaussian, ddof: float) -> Tensor | Roots:
    """A summary as the other side of a trace: its thin root, or its covariance."""
    return factor(summary, ddof) if summary.is_low_rank else summary.covariance(ddof)


def _mass(weights: Weights, number: int, count: float) -> float:
    if isinstance(weights, str):
        return count if weights == "examples" else 1.0
    return float(weights[number]) if number < len(weights) else 0.0  # lengths are checked once all clients are seen


def _size_of(summary: Gaussian) -> float:
    """The size of a summary's features: that of the mean, or a feature's root mean square; NaN of none."""
    spread = float(summary.trace(ddof=0)) / len(summary.mean)
    return max(math.sqrt(spread) if spread > 0 else 0.0, float(summary.mean.abs().max()))  # noise can make it negative


def _check_dim(expected: int, given: int) -> None:
    if expected != given:
        raise ValueError(f"{given} features cannot be compared with {expected}; use one embedding for all")


def fid_message(client: Tensor, generated: Gaussian, ddof: float = 1, bias: Bias = "plug-in", **meta: str) -> Message:
    """A client's part of FID-avg, the summable "fid" message of n_i and n_i FID_i, which give no FID-all."""
    value, _ = frechet_distance(summarize(client.cpu()), generated, ddof, bias)
    tensors = {"count": float(len(client)), "score": len(client) * value}
    made = {"ddof": f"{ddof:g}", "generated": f"{generated.count:g}"} | ({} if bias == "plug-in" else {"bias": bias})
    return Message("fid", {n: torch.tensor(v, dtype=torch.float64) for n, v in tensors.items()}, {**meta, **made})


def fid_from_messages(total: Message) -> float:
    """The server's part: FID-avg, clients weighing n_i / n, from what `statistics.add` made of their messages."""
    if total.kind != "fid":
        raise MessageError(f"expected a 'fid' message, got {total.kind!r}")
    if not (count := float(total.tensors["count"])) >= 1:
        raise MessageError(f"a 'fid' message must count at least one image, got {count:g}")
    return float(total.tensors["score"]) / count


@dataclass(frozen=True)
class FrechetScore(ScoreDefinition):
    """Fréchet distance between Gaussians of features; a summary of either side will do.

    Args:
        ddof: 1 for covariances with divisor n - 1, 0 for n.
    """

    name: ClassVar[str] = "fid"
    needs: ClassVar[Needs] = "summaries"
    shares_out: ClassVar[bool] = True

    ddof: Literal[0, 1] = 1

    @property
    def bias(self) -> Bias:
        """Whether it is corrected for few images."""
        return "plug-in"

    def __post_init__(self) -> None:
        check_ddof(self.ddof)

    def prepare(self, clients: ClientSide) -> FrechetReference:
        biases = [bias for bias, name in NAMES.items() if name in clients.asked] or [self.bias]
        return FrechetReference(clients.parts, clients.weights, self.ddof, biases)

    def compare(
        self, prepared: FrechetReference, generated: GeneratedSet, errors: bool
    ) -> FederatedScore | dict[str, FederatedScore]:
        names = [NAMES[bias] for bias in prepared.biases]
        scores = [*map(prepared.combined, names, prepared.measure_all(generated.features, errors))]
        return scores[0] if len(scores) == 1 else {score.name: score for score in scores}

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        return few_images(name, dim, generated, clients)


@dataclass(frozen=True)
class CorrectedFrechetScore(FrechetScore):
    """Fréchet distance without the bias of few images (Tiomoko and Couillet 2019, arXiv 1903.03447), for clients, avg
    and all: see `fedgen.scores.frechet.corrected`. It may be negative about 0, and needs r + 2 images in r directions.

    Args:
        ddof: 1, the divisor of covariances being n - 1.
    """

    name: ClassVar[str] = "fidc"
    family: ClassVar[str] = "fid"

    @property
    def bias(self) -> Bias:
        return "corrected"

    def __post_init__(self) -> None:
        check_bias(self.bias, self.ddof)

    @property
    def has_powers(self) -> bool:
        return False

    def least_images(self, dim: int) -> int:
        return dim + 2

    def remark(self, name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
        return ""
