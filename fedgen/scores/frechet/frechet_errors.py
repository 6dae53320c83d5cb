"""Standard errors of Fréchet distances: where influences are evaluated, and the variances that follow.

Images of a low-rank summary are the rows of its root and all of them count. Of a dense one some are kept, evenly
spaced: 512 give a standard error to a few percent. Where only the summary is known, as from a message or a file, normal
draws with its moments stand in for them.

The influence of an image x of P on FD(P, Q) is the closed-form gradient at x,
    h(x) = 2 (mu_P - mu_Q)^T (x - mu_P) + c (x - mu_P)^T (I - T) (x - mu_P) + const,
with T = R^T (R Q R^T)^(1/2 -> -1/2) R the optimal transport map between the two Gaussians and c = n / (n - ddof).
Its variance over n is the infinitesimal jackknife. A bootstrap would not do: duplicates lower the covariance's rank and
its interval misses its own estimate.

The slope of the distance to the pool as its mixture moves towards a client is the influence of that client as a whole:
the mean of the images' influence h over the client's images, which needs no images. With the transport map
T = W W^T of the pool, its scale c, d_i = mu_i - mu_pool and population covariances C_i = R_i^T R_i it is
    2 (mu_pool - mu_G)^T d_i + c (tr C_i + |d_i|^2 - |R_i W|^2 - |d_i W|^2) + const.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.aggregate import RealInfluences, mean_variance
from fedgen.scores.frechet.corrected import ImageCounts
from fedgen.scores.frechet.roots import (
    Roots,
    coordinates,
    eigenvalues,
    factor,
    in_float32,
    of_scales,
    sandwich,
    solved,
    stack,
    stackable,
)
from fedgen.seeds import generator
from fedgen.statistics.gaussian import Gaussian, eigh

CLIENT_IMAGES = 512  # of each client with more images than features, for its own score
POOL_IMAGES = 128  # of each client, for the pool's score
GENERATED_IMAGES = 1024


@dataclass(frozen=True, eq=False)
class Sample:
    """Images of one distribution, each of a client."""

    places: Tensor | None
    shares: Tensor | None
    clients: Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Distributions scored together: small clients, one large client, or the pool; `members` are their places."""

    members: list[int]
    roots: Roots
    samples: list[Sample]


def group_batches(batches: Sequence[Batch]) -> list[Batch]:
    """The same clients with small ones of similar size in one batch; large or singular ones stay alone."""
    # where a sample has places, its coordinates belong to one unpadded root
    sizes = [batch.roots.size if batch.samples[0].places is None else None for batch in batches]
    groups = [[batches[position] for position in positions] for positions in stackable(sizes)]
    return [
        Batch(
            [batch.members[0] for batch in group],
            stack([batch.roots for batch in group]),
            [batch.samples[0] for batch in group],
        )
        for group in groups
    ]


@dataclass(frozen=True, eq=False)
class Spectra:
    """Eigenvalues [k, r], ascending, and coordinates, of which all distances to one batch of distributions are made."""

    values: Tensor
    vectors: Tensor
    rows: tuple[Tensor, Tensor]
    squares: tuple[Tensor, Tensor]
    inverse: Tensor
    largest: Tensor


@dataclass(frozen=True, eq=False)
class Visit:
    """The findings of one batch of distributions."""

    traces: Tensor  # tr sqrt(C_i C) float64 [k]
    generated: list[Tensor]
    real: list[list[tuple[Tensor, float]]]  # of each client in a distribution: influences, and the variance they add
    slopes: Tensor | None = None  # of the pool's distance towards each client [K], where its images are at hand
    map: Tensor | None = None  # W of the pool's transport map, otherwise


def sample_deviations(summary: Gaussian, images: Tensor | None, number: int, root: Roots | None = None) -> Tensor:
    """Deviations from the mean, float64 [p, D], of at most `number` images, or normal draws where none are known."""
    if images is not None:
        return spaced(images.detach(), number).to(summary.mean) - summary.mean
    if summary.deviations is not None:
        return spaced(summary.deviations, number)
    rows = (root or factor(summary, ddof=0)).rows[0]
    draws = torch.randn(number, len(rows), generator=generator(0, "influence"), dtype=torch.float64)
    return draws.to(rows) @ rows


def sample_client(client: int, summary: Gaussian, root: Roots, images: Tensor | None) -> Sample:
    """The images that show how a client's own score varies."""
    if summary.is_low_rank:
        shares = summary.image_shares()
        return Sample(None, shares, torch.full((len(shares),), client))
    places = coordinates(root, sample_deviations(summary, images, CLIENT_IMAGES, root)).float()
    return Sample(places, None, torch.full((len(places),), client))


def sample_pool(pooled: Gaussian, root: Roots, positions: Sequence[Tensor], clients: Tensor) -> Sample:
    """The images that show how the pool's score varies."""
    if pooled.is_low_rank:
        return Sample(None, pooled.image_shares(), clients)
    places = [coordinates(root, part - pooled.mean).float() for part in positions]
    return Sample(torch.cat(places), None, torch.cat([torch.full((len(part),), i) for i, part in enumerate(positions)]))


class InfluenceErrors:
    """Influences of generated and real images on the distances to batches of distributions, gathered batch by batch."""

    def __init__(
        self, summary: Gaussian, features: Tensor | None, ddof: float, counts: Sequence[float], weights: Tensor
    ) -> None:
        self.summary, self.counts, self.weights = summary, counts, weights
        self.covariance = summary.covariance(ddof)
        self.has_scales = of_scales(self.covariance.diagonal())
        self.rank = len(summary.mean) if summary.deviations is None else len(summary.deviations) - 1
        self.scale = summary.count / (summary.count - ddof)
        self.images = sample_deviations(summary, features, GENERATED_IMAGES)
        self.squares = self.images.square().sum(1)
        self._single = in_float32(self.images)
        self.numbers: ImageCounts | None = None  # of images, where the distance is corrected for few
        self.generated: dict[int, Tensor] = {}  # influences of generated images [p] on each distribution's distance
        self.real: dict[int, list[tuple[Tensor, float]]] = {}  # likewise of real ones by client, with their variance
        self.pool: Visit | None = None

    def corrected(self, numbers: ImageCounts) -> "InfluenceErrors":
        """The same for the corrected distances."""
        other = copy(self)
        other.numbers, other.generated, other.real, other.pool = numbers, {}, {}, None
        return other

    def spectra(self, batch: Batch) -> Spectra:
        """Return what the distances to a batch's distributions are made of."""
        values, vectors = eigh(sandwich(batch.roots, self.covariance))
        if self.has_scales:  # those found with vectors are right to 1e-16 of the largest only
            values = eigenvalues(batch.roots, self.covariance)
        ranks, size = batch.roots.ranks.clamp(max=self.rank), values.shape[-1]
        values = values.clamp(min=0) * (torch.arange(size) >= size - ranks.unsqueeze(1)).to(values)
        (points, one), (single, unit) = self._single, in_float32(batch.roots.rows)
        squares = torch.bmm(torch.einsum("pd,krd->kpr", points, single), vectors.float()).square_()
        sizes, tiny = values.sqrt(), torch.finfo(values.dtype).tiny
        largest = sizes.amax(1, keepdim=True).clamp(min=tiny) if size else sizes.new_ones(len(sizes), 1)
        floor = (size * torch.finfo(sizes.dtype).eps) ** 0.5
        inverse = torch.where(sizes > floor * largest, largest / sizes.clamp(min=tiny), 0.0)
        return Spectra(values, vectors, (single, unit), (squares, (one * unit) ** 2), inverse, largest)

    def visit(self, batch: Batch, spectra: Spectra, means: Sequence[Tensor], scales: Sequence[float]) -> Visit:
        """Return the findings of a batch's distributions; it changes nothing here."""
        (single, unit), vectors, sizes = spectra.rows, spectra.vectors, spectra.values.sqrt()
        (squares, square_unit), traces = spectra.squares, sizes.sum(-1)
        inverse, largest, is_plain = spectra.inverse, spectra.largest, self.numbers is None
        if self.numbers is not None:
            traces, slopes = self.numbers.traces(batch.members, spectra.values, slopes=True)
            sizes, inverse = 2 * slopes * spectra.values, 2 * slopes * largest
        transported = torch.bmm(squares, inverse.float().unsqueeze(2)).squeeze(2).to(sizes) * (square_unit / largest)
        # e_j^T (R_i C R_i^T)^(1/2) e_j [k, r]: the transport map i -> C at the images that the rows of R_i are
        at_rows = None if batch.samples[0].places is not None else torch.einsum("kjs,ks->kj", vectors.square(), sizes)
        generated, real = [], []
        for slot, (member, sample) in enumerate(zip(batch.members, batch.samples)):
            shift, scale = means[member] - self.summary.mean, scales[member]
            # the corrected distance has the population's trace, C (n - 1) / n
            kept, own_kept = (1.0, 1.0) if is_plain else (1 / self.scale, 1 / scale)
            away = self.squares * kept - transported[slot]
            generated.append(2 * (self.images @ -shift) + self.scale * away)
            if at_rows is not None:
                rows = batch.roots.rows[slot]
                own = _influence_of_rows(rows, at_rows[slot], sample, shift, scale, own_kept)
            else:  # at coordinates z of images, of a root that is alone
                assert sample.places is not None
                deviations = (sample.places @ single[0]).to(sizes) * unit
                mapped = (sample.places @ vectors[0].to(sample.places)).square().double() @ sizes[0]
                own = 2 * (deviations @ shift) + scale * (deviations.square().sum(1) * own_kept - mapped)
            real.append(self._of_clients(own, sample))
        if batch.members != [len(self.weights)]:
            return Visit(traces, generated, real)
        if sample.shares is not None:
            return Visit(traces, generated, real, slopes=self._slopes_of_images(own, sample.shares, sample.clients))
        some = spectra.values[0] > 0
        columns = vectors[0][:, some] * sizes[0][some].clamp(min=0).sqrt()
        return Visit(traces, generated, real, map=solved(batch.roots, columns))

    def _slopes_of_images(self, influences: Tensor, shares: Tensor, clients: Tensor) -> Tensor:
        """The mean influence of each client's images on the pool's distance, float64 [K]."""
        number = len(self.weights)
        sums, masses = torch.zeros(number, dtype=torch.float64), torch.zeros(number, dtype=torch.float64)
        sums.index_add_(0, clients, (influences * shares).to(sums))
        masses.index_add_(0, clients, shares.to(masses))
        return torch.where(masses > 0, sums / masses, 0.0)

    def gather(self, batches: Sequence[Batch], visits: Sequence[Visit]) -> None:
        for batch, visit in zip(batches, visits):
            self.generated |= dict(zip(batch.members, visit.generated))
            self.real |= dict(zip(batch.members, visit.real))
            if batch.members == [len(self.weights)]:
                self.pool = visit

    def slopes(
        self, map: Tensor, moved: Tensor, means: Sequence[Tensor], traces: Sequence[Tensor], scales: Sequence[float]
    ) -> Tensor:
        """The slopes of the pool's distance towards each client, float64 [K], up to a constant.

        Args:
            map: W [D, q] of the pool.
            moved: |R_i W|^2 float64 [K] of each client.
            means: of the clients, then of the pool; `traces` and `scales` likewise.
            traces: of their covariances.
            scales: n / (n - ddof).
        """
        away = torch.stack(list(means[:-1])) - means[-1]
        kept = 1.0 if self.numbers is None else 1 / scales[-1]
        own = (torch.stack(list(traces[:-1])) * kept - moved) / torch.tensor(scales[:-1], dtype=torch.float64)
        between = away.square().sum(1) * kept - (away @ map).square().sum(1)
        return 2 * (away @ (means[-1] - self.summary.mean)) + scales[-1] * (own + between)

    def rescale(self, factors: Tensor, moved: Tensor) -> None:
        """Turns influences on distances F into those on factors times F, where generated images move the factors too.

        Args:
            factors: of each distribution's distance, float64 [K + 1].
            moved: F times each generated image's influence on the factor [K + 1, p]; real images have none.
        """
        for place, scale in enumerate(factors.tolist()):
            self.generated[place] = self.generated[place] * scale + moved[place].to(self.generated[place])
            self.real[place] = [(part, variance * scale**2) for part, variance in self.real[place]]

    def errors(self, worst: int, pool: int) -> tuple[dict[str, dict[str, float]], dict[str, Tensor], RealInfluences]:
        """Standard errors {"generated", "real"} of avg, all and worst, of each client's own score float64 [K], and the
        real images' influences."""
        places, count = range(len(self.weights)), self.summary.count
        average = sum(self.weights[i] * self.generated[i] for i in places)
        assert isinstance(average, Tensor)
        influences = [*(self.generated[i] for i in places), self.generated[pool], average]
        made = torch.stack([h.var(dim=-1) / count if len(h) > 1 else h.new_zeros(()) for h in influences])
        generated = {"avg": made[-1], "all": made[-2], "worst": made[worst]}
        squares = self.weights.square().tolist()
        of_avg = [(part, squares[i] * variance) for i in places for part, variance in self.real[i]]
        variances = {place: sum(variance for _, variance in parts) for place, parts in self.real.items()}
        real = {"avg": sum(variance for _, variance in of_avg), "all": variances[pool], "worst": variances[worst]}
        parts = {
            "generated": {key: float(variance) ** 0.5 for key, variance in generated.items()},
            "real": {key: variance**0.5 for key, variance in real.items()},
        }
        own = {"generated": made[: len(places)].tolist(), "real": [variances[i] for i in places]}
        of_clients = {side: torch.tensor(values, dtype=torch.float64).sqrt() for side, values in own.items()}
        return parts, of_clients, {"avg": of_avg, "all": self.real[pool]}

    def _of_clients(self, influences: Tensor, sample: Sample) -> list[tuple[Tensor, float]]:
        """Each client's influences and w_i^2 var(mean_i), as its images vary on their own; w = 1 for one client."""
        clients, sizes = sample.clients.unique_consecutive(return_counts=True)
        parts, found = influences.split(sizes.tolist()), []
        shares = [None] * len(sizes) if sample.shares is None else sample.shares.split(sizes.tolist())
        for client, part, share in zip(clients.tolist(), parts, shares):
            weight = float(self.weights[client]) if len(sizes) > 1 else 1.0
            if share is None:
                variance = mean_variance(part, count=self.counts[client])
            else:
                variance = mean_variance(part, share / share.sum())
            found.append((part, weight**2 * float(variance)))
        return found


def _influence_of_rows(
    rows: Tensor, transported: Tensor, sample: Sample, shift: Tensor, scale: float, kept: float
) -> Tensor:
    """h(x) [p] at the images that a root's rows are, with the transport map [r] at each."""
    assert sample.shares is not None
    rows, transported = rows[: len(sample.shares)], transported[: len(sample.shares)]
    along = rows @ shift / (scale * sample.shares).sqrt()  # the j-th row is x_j sqrt(scale * share_j)
    return 2 * along + (rows.square().sum(1) * kept - transported) / sample.shares


def spaced(images: Tensor, number: int) -> Tensor:
    """At most `number` rows, evenly spaced: images are often sorted by class."""
    if len(images) <= number:
        return images
    return images[torch.linspace(0, len(images) - 1, number).round().long()]
