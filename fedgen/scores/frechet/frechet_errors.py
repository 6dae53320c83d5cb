"""Standard errors of Fréchet distances: where influences are evaluated, and the variances that follow.

Images of a low-rank summary are the rows of its root and all of them count. Of a dense one some are kept, evenly
spaced: 512 give a standard error to a few percent. Where only the summary is known, as from a message or a file, normal
draws with its moments stand in for them.

The slope of the distance to the pool as its mixture moves towards a client is the influence of that client as a whole:
the mean of the images' influence h over the client's images, which needs no images. With the transport map
T = W W^T of the pool, its scale c, d_i = mu_i - mu_pool and population covariances C_i = R_i^T R_i it is
    2 (mu_pool - mu_G)^T d_i + c (tr C_i + |d_i|^2 - |R_i W|^2 - |d_i W|^2) + const.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.frechet.roots import Roots, coordinates, factor, in_float32, solved, squared_norms
from fedgen.scores.uncertainty import Spectrum, influence, mean_variance, spectrum
from fedgen.seeds import generator
from fedgen.statistics.gaussian import Gaussian


class PoolSlopes:
    """Slopes of the pool's distance towards K clients; of a map W it has still to be told the clients."""

    def __init__(self, number: int, found: Tensor | None = None, map: Tensor | None = None) -> None:
        self._transported = torch.zeros(number, dtype=torch.float64)
        self._found, self._map = found, map

    @classmethod
    def from_images(cls, number: int, influences: Tensor, shares: Tensor, clients: Tensor) -> "PoolSlopes":
        """Those that the influences [p] of all the pool's images give, with their shares and their clients."""
        sums, masses = torch.zeros(number, dtype=torch.float64), torch.zeros(number, dtype=torch.float64)
        sums.index_add_(0, clients, (influences * shares).to(sums))
        masses.index_add_(0, clients, shares.to(masses))
        return cls(number, found=torch.where(masses > 0, sums / masses, 0.0))

    @classmethod
    def from_map(cls, number: int, roots: Roots, seen: Spectrum) -> "PoolSlopes":
        """Those of the pool's transport map, from its root and spectrum."""
        rank = int(seen.ranks[0])
        vectors, sizes = seen.vectors[0][:, -rank:], seen.roots()[0][-rank:]
        return cls(number, map=solved(roots, vectors * sizes.sqrt()))

    def transported(self, roots: Roots) -> Tensor | None:
        """|R_i W|^2 float64 [k] of some clients by their covariances' roots; None where no map is needed."""
        return None if self._map is None else squared_norms(roots, self._map).double()

    def note(self, members: list[int], transported: Tensor | None) -> None:
        """Keeps what `transported` gave for clients."""
        if transported is not None:
            self._transported[members] = transported

    def result(
        self, means: Sequence[Tensor], generated: Tensor, traces: Sequence[Tensor], scales: Sequence[float]
    ) -> Tensor:
        """The slopes, float64 [K], up to a constant."""
        if self._found is not None:
            return self._found
        assert self._map is not None
        away = torch.stack(list(means[:-1])) - means[-1]
        own = (torch.stack(list(traces[:-1])) - self._transported) / torch.tensor(scales[:-1], dtype=torch.float64)
        between = away.square().sum(1) - (away @ self._map).square().sum(1)
        return 2 * (away @ (means[-1] - generated)) + scales[-1] * (own + between)


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


@dataclass(frozen=True, eq=False)
class Visit:
    """The findings of one batch of distributions."""

    traces: Tensor
    generated: list[Tensor]
    real: list[float]
    pool: PoolSlopes | None = None


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
        self.rank = summary.dim if summary.deviations is None else len(summary.deviations) - 1
        self.scale = summary.count / summary.divisor(ddof)
        self.images = sample_deviations(summary, features, GENERATED_IMAGES)
        self.squares = self.images.square().sum(1)
        self.generated: dict[int, Tensor] = {}  # influences of generated images [p] on each distribution's distance
        self.real: dict[int, float] = {}  # variance from real images
        self.slopes: PoolSlopes | None = None

    def visit(self, batch: Batch, means: Sequence[Tensor], scales: Sequence[float]) -> Visit:
        """Return what a batch's distributions say; it changes nothing here."""
        seen = spectrum(batch.roots, self.covariance, self.rank)
        rows = batch.roots.rows
        transported, at_images = seen.at_others(rows, self.images), None
        generated, real = [], []
        for slot, (member, sample) in enumerate(zip(batch.members, batch.samples)):
            shift = means[member] - self.summary.mean
            generated.append(influence(self.squares, self.images @ -shift, transported[slot], self.scale))
            if sample.places is None:
                at_images = seen.at_images() if at_images is None else at_images  # of the whole batch
                own = _influence_of_rows(rows[slot], at_images[slot], sample, shift, scales[member])
            else:
                own = _influence_at_places(rows[slot], seen, sample.places, shift, scales[member])
            real.append(self._real_variance(own, sample))
        pool = self._slopes(batch, seen, own) if batch.members == [len(self.weights)] else None
        return Visit(seen.traces(), generated, real, pool)

    def _slopes(self, batch: Batch, seen: Spectrum, own: Tensor) -> PoolSlopes:
        sample = batch.samples[0]
        if sample.shares is None:
            return PoolSlopes.from_map(len(self.weights), batch.roots, seen)
        return PoolSlopes.from_images(len(self.weights), own, sample.shares, sample.clients)

    def note(self, batch: Batch, visit: Visit) -> None:
        """Keeps what a visit of the batch has found."""
        self.generated |= dict(zip(batch.members, visit.generated))
        self.real |= dict(zip(batch.members, visit.real))
        self.slopes = visit.pool or self.slopes

    def rescale(self, factors: Tensor, moved: Tensor) -> None:
        """Turns influences on distances F into those on factors times F, where generated images move the factors too.

        Args:
            factors: of each distribution's distance, float64 [K + 1].
            moved: F times each generated image's influence on the factor [K + 1, p]; real images have none.
        """
        for place, scale in enumerate(factors.tolist()):
            self.generated[place] = self.generated[place] * scale + moved[place].to(self.generated[place])
            self.real[place] *= scale**2

    def parts(self, worst: int, pool: int) -> dict[str, dict[str, float]]:
        """Standard errors {"generated": ..., "real": ...} of avg, all and worst."""
        number = len(self.weights)
        average = sum(self.weights[i] * self.generated[i] for i in range(number))
        assert isinstance(average, Tensor)
        generated = {"avg": average, "all": self.generated[pool], "worst": self.generated[worst]}
        real = {
            "avg": sum(float(self.weights[i]) ** 2 * self.real[i] for i in range(number)),
            "all": self.real[pool],
            "worst": self.real[worst],
        }
        return {
            "generated": {key: self._generated_variance(h) ** 0.5 for key, h in generated.items()},
            "real": {key: variance**0.5 for key, variance in real.items()},
        }

    def of_clients(self) -> dict[str, Tensor]:
        """Standard errors of each client's own score {"generated": float64 [K], "real": [K]}."""
        places = range(len(self.weights))
        variances = {"generated": [self._generated_variance(self.generated[i]) for i in places]}
        variances["real"] = [self.real[i] for i in places]
        return {side: torch.tensor(values, dtype=torch.float64).sqrt() for side, values in variances.items()}

    def _generated_variance(self, influences: Tensor) -> float:
        return float(mean_variance(influences, count=self.summary.count))

    def _real_variance(self, influences: Tensor, sample: Sample) -> float:
        """Variance when each client's images vary on their own: sum_i w_i^2 var(mean_i), w = 1 for one client."""
        clients = sample.clients.unique().tolist()
        total = 0.0
        for client in clients:
            mine = sample.clients == client
            weight = float(self.weights[client]) if len(clients) > 1 else 1.0
            if sample.shares is None:
                variance = mean_variance(influences[mine], count=self.counts[client])
            else:
                variance = mean_variance(influences[mine], sample.shares[mine] / sample.shares[mine].sum())
            total += weight**2 * float(variance)
        return total


def _influence_at_places(rows: Tensor, seen: Spectrum, places: Tensor, shift: Tensor, scale: float) -> Tensor:
    """h(x) [p] at coordinates of images: `shift` is the mean minus the generator's, `scale` n / (n - ddof)."""
    single, unit = in_float32(rows)
    deviations = (places @ single).to(rows) * unit
    return influence(deviations.square().sum(1), deviations @ shift, seen.at_coordinates(places), scale)


def _influence_of_rows(rows: Tensor, transported: Tensor, sample: Sample, shift: Tensor, scale: float) -> Tensor:
    """h(x) [p] at the images that a root's rows are, with e_j^T (R C R^T)^(1/2) e_j [r] of its rows."""
    assert sample.shares is not None
    rows, transported = rows[: len(sample.shares)], transported[: len(sample.shares)]
    along = rows @ shift / (scale * sample.shares).sqrt()  # the j-th row is x_j sqrt(scale * share_j)
    return 2 * along + (rows.square().sum(1) - transported) / sample.shares


def spaced(images: Tensor, number: int) -> Tensor:
    """At most `number` rows, evenly spaced: images are often sorted by class."""
    if len(images) <= number:
        return images
    return images[torch.linspace(0, len(images) - 1, number).round().long()]
