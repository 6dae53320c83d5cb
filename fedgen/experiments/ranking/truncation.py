"""Generators of rising truncation over clients of little variance, all made by one StyleGAN2.

Section 8 of "On the (Distributed) Evaluation of Generative Models" (arXiv 2310.11714): a truncation tau sets how much a
generator varies; a client's images vary little around a centre of its own.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import Embedding, FeatureCache, load_embedding
from fedgen.embeddings.embed import embed_batches
from fedgen.evaluation.panels import require_device
from fedgen.experiments.engine import rankings
from fedgen.experiments.engine.features import CACHE, PCA, FeatureFederation
from fedgen.experiments.engine.scored_checkpoints import Scorers, title_of
from fedgen.experiments.engine.study import Choice, Numbers, Study, expectation, make_table, panels, rising
from fedgen.images import to_uint8
from fedgen.io.tensor_files import hash_tensors
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile
from fedgen.models.stylegan2.training_steps import draw_noise
from fedgen.reports.figures.aggregate_panels import CONTROL, draw_aggregates, show_rows
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores.rankings import Z
from fedgen.seeds import generator
from fedgen.statistics import Projection

BATCH = 64  # images made and embedded at once
RECIPE = "recipes/stylegan2_fashion_mnist.yaml"  # that trains the kit's own network
MEAN_STYLES = 10_000  # from which the mean is estimated where the network has none


class TruncatedStyles:
    """A network and its images around any centre: of styles centre + truncation * (w - centre), in every layer."""

    def __init__(self, network: StyleGAN2Generator, device: str = "cpu") -> None:
        if network.num_classes is not None:
            raise ValueError(f"the network has {network.num_classes} classes; truncation is of one without labels")
        self.network, self.device = network.to(device).eval(), device
        kept = getattr(network.mapping, "w_avg", None)
        self.mean_estimated = kept is None or not bool(kept.any())
        if kept is None or self.mean_estimated:
            kept = self.styles(self.latents(MEAN_STYLES, generator(0, "mean of styles"))).mean(dim=0)
        self.mean: Tensor = kept

    @torch.no_grad()
    def styles(self, latents: Tensor) -> Tensor:
        """Styles [N, style_dim] of latents [N, latent_dim], not truncated; each is that of all layers."""
        return self.network.styles(latents.to(self.device))[:, 0]

    def centre(self, seed: int, client: int) -> Tensor:
        """A client's centre [style_dim]: the style of a latent of its own."""
        return self.styles(self.latents(1, generator(seed, "centre", client)))[0]

    def latents(self, count: int, draws: torch.Generator) -> Tensor:
        return torch.randn(count, self.network.latent_dim, generator=draws)

    @torch.no_grad()
    def make(self, centre: Tensor, truncation: float, latents: Tensor, draws: torch.Generator) -> Tensor:
        """Images uint8 [N, C, H, W] on the CPU, or points [N, D] of a network that gives points."""
        styles = centre.lerp(self.styles(latents), truncation)
        noise = draw_noise(self.network, len(latents), draws).to(self.device)
        images = self.network.synthesize(styles[:, None].expand(-1, self.network.num_styles, -1), noise).float().cpu()
        return images if images.ndim == 2 else to_uint8(images)

    def batches(self, centre: Tensor, truncation: float, count: int, seed: int, *path: str | int) -> Iterator[Tensor]:
        """So many images of fresh latents as `make` gives them, at most 64 at once."""
        for start in range(0, count, BATCH):
            draws = generator(seed, *path, start)
            latents = self.latents(min(BATCH, count - start), draws)
            yield self.make(centre, truncation, latents, draws)

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of the network's settings and weights: other images, other fingerprint."""
        return hash_tensors(self.network.state_dict().items(), json.dumps(self.network.settings))


def read_styles(path: Path, device: str) -> TruncatedStyles:
    """The generator of a file of networks, the average of its weights if there is one."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no file {path}; to make one, run `fedgen fit --config {RECIPE}` and then `fedgen convert"
            f" checkpoints/{Path(RECIPE).stem}/last.ckpt {path}`; or give another by --network,"
            " e.g. a published one: `fedgen convert ffhq.pkl ffhq.safetensors`"
        )
    file = NetworkFile.read(path)
    network = file.generator_ema or file.generator
    if network is None:
        raise ValueError(f"{path} has no generator")
    return TruncatedStyles(network, device)


NETWORK = Path("checkpoints/stylegan2_fashion_mnist.safetensors")
TAUS = (0.01, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class TruncationChoice(Choice):
    """Options of the experiment; its fields are options of its command.

    Args:
        network: file of a StyleGAN2, .safetensors; `fedgen convert` makes one of a published pickle.
        embedding: in whose features scores are measured.
        weights: a local file of its weights.
        taus: truncations of the generators, rising.
        num_images: of each generator, and about as many for the real floor and for the components.
        clients: how many, each around a centre of its own.
        client_images: of each client.
        client_truncation: of their images' styles, to their own centre.
        components: principal components of public images, for a second FID.
        controls: IID splits of the clients' images.
        device: where images are made and embedded, e.g. cuda.
        quick: every second truncation, 20 clients of 30 images, 400 images of each generator, 16 components.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "taus": lambda taus: (*(taus[:-1:2] if len(taus) > 5 else taus[:-1]), taus[-1]),
        "num_images": 400, "clients": 20, "client_images": 30, "components": 16, "controls": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)
    LEAST: ClassVar[Mapping[str, float]] = {"client_truncation": 0, "clients": 2, "client_images": 2, "controls": 1}

    network: Path = NETWORK
    embedding: str = "efficientnet-lite0"
    weights: Path | None = None
    taus: tuple[float, ...] = TAUS
    num_images: int = 5000
    clients: int = 100
    client_images: int = 100
    client_truncation: float = 0.25
    components: int = 64
    controls: int = 3
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising(0, count=3, taus=self.taus)
        if not 1 <= self.components < self.num_images:
            raise ValueError(
                f"components={self.components}: at least 1, of {self.num_images} public images, which must be more"
            )
        require_device(self.device)

    @property
    def pooled_truncation(self) -> float:
        """The truncation t at which one generator's styles vary as those of all clients together."""
        # a client's style is (1 - c) centre + c w, of two independent latents' styles: t^2 = (1 - c)^2 + c^2
        return float(math.hypot(1 - self.client_truncation, self.client_truncation))

    def resolved(self) -> dict[str, Any]:
        return {"data": self.network.stem}


class StyleFederation:
    """The clients, generators and public images that a network makes of a choice, as features, kept on disk."""

    def __init__(
        self, styles: TruncatedStyles, embedding: Embedding, choice: TruncationChoice, cache: Path = CACHE
    ) -> None:
        self.styles, self.embedding, self.choice = styles, embedding, choice
        self._cache, self._network = FeatureCache(cache), styles.fingerprint()

    @cached_property
    def centres(self) -> list[Tensor]:
        return [self.styles.centre(self.choice.seed, client) for client in range(self.choice.clients)]

    def federation(self) -> FeatureFederation:
        features = self._around(self.centres, self.choice.client_truncation, self.choice.client_images, "client")
        positions = torch.arange(len(features)).split(self.choice.client_images)
        return FeatureFederation(features, positions, tuple(f"client {client}" for client in range(len(positions))))

    def floor(self) -> Tensor:
        each = -(-self.choice.num_images // self.choice.clients)
        return self._around(self.centres, self.choice.client_truncation, each, "floor")

    def generated(self, tau: float) -> Tensor:
        return self._around([self.styles.mean], tau, self.choice.num_images, f"generator {tau:g}")

    def projection(self) -> Projection:
        count = self.choice.num_images
        features = self._around([self.styles.mean], 1.0, count, "public")
        name = f"{self.choice.network.stem}, {count} images of no client and no generator"
        return Projection.fit(features, self.choice.components, self.embedding.name, name)

    def _around(self, centres: list[Tensor], truncation: float, each: int, stream: str) -> Tensor:
        choice = self.choice
        recipe = ["styles", 1, self._network, stream, truncation, len(centres), each, choice.seed]
        key = self._cache.key(json.dumps(recipe), self.embedding, f"batch {BATCH} on {self.embedding.device.type}")
        stored = self._cache.load(key)
        if stored is not None:
            return self.embedding.checked(stored, len(centres) * each)

        def batches() -> Iterator[Tensor]:
            for number, centre in enumerate(centres):
                yield from self.styles.batches(centre, truncation, each, choice.seed, "styles", stream, number)

        features = embed_batches(self.embedding, batches(), len(centres) * each, f"making and embedding: {stream}")
        self._cache.store(key, features)
        return features


SAMPLES = "truncation_samples.png"
SCORES = ("fid", PCA, "kid")
PICTURED = (0.01, 0.2, 0.4, 0.6, 0.8, 1.0)  # truncations of the papers' pictures
SHOWN = 6  # clients
COLUMNS = 10  # images of each
REAL = "the clients' further images"
TAU = "truncation of the generator"


def truncation(**options: Any) -> None:
    """Scores a StyleGAN2's truncated generators over clients around centres of their own; prints and draws the scores.

    Without --network it is the kit's own network of Fashion-MNIST. The papers' settings are --network ffhq.safetensors
    or afhqwild.safetensors with --embedding inception-v3-compat --num_images 50000, and a GPU.
    """
    choice = TruncationChoice(**options)
    styles = read_styles(choice.network, choice.device)
    study = choice.study("truncation", network=styles.fingerprint())
    if study.missing("found"):
        score_all(study, choice, styles)
    draw_samples(styles, choice, study.path(SAMPLES))
    rows, found, real = rankings.ScoredRows(study.numbers["scores"]), study.numbers["found"], study.numbers["real"]
    titles = {score: title_of(score, choice.components) for score in SCORES}
    side = styles.network.synthesis.image_size
    heading = f"{choice.network.stem}, {side} x {side}; generators: {len(choice.taus)} truncations,"
    heading += f" {choice.num_images:,} images each; clients: {choice.clients} of {choice.client_images} images at"
    heading += f" {choice.client_truncation:g}; {choice.embedding}"
    ranking = rankings.RankingStudy(rows, titles, heading, real)
    lines = [*expected(found, ranking, choice), *rankings.better_than_real(rows.clients, real, "generators", REAL)]
    if styles.mean_estimated:
        lines.append(f"the file keeps no mean of styles: tau pulls to that of {MEAN_STYLES:,} styles")
    lines.append(f"images: {study.path(SAMPLES)}")
    figure = draw(ranking, found, choice, study.figure)
    study.report([score_table(ranking), ranking.table(found["scores"]), *lines], figure)


def score_all(study: Study, choice: TruncationChoice, styles: TruncatedStyles) -> None:
    embedding = load_embedding(choice.embedding, weights=choice.weights).to(choice.device)
    places = StyleFederation(styles, embedding, choice)
    projection = places.projection()
    scorers = Scorers(places.federation(), choice.controls, choice.seed, projection=projection)
    study.step("real", lambda: scorers.score(places.floor())["clients"])
    taus = {f"{tau:g}": tau for tau in choice.taus}
    scored = study.each("scores", taus, lambda tau: scorers.score(places.generated(tau)), "generators")
    study.step("found", lambda: summarise(rankings.ScoredRows(scored), choice.taus))


def summarise(rows: rankings.ScoredRows, taus: Sequence[float]) -> dict[str, Any]:
    return {
        "scores": rows.compared(SCORES),
        "valleys": {score: valleys_of(rows.clients, score, taus) for score in SCORES},
        "control valleys": {
            score: [valleys_of(control, score, taus) for control in rows.controls(score)] for score in SCORES
        },
    }


def valleys_of(rows: rankings.Rows, score: str, taus: Sequence[float]) -> dict[str, Any]:
    """`valley` of both aggregates, with errors over generated images."""

    def difference(values: Sequence[float], errors: Sequence[float], end: int, place: int) -> tuple[float, float]:
        return values[end] - values[place], (errors[end] ** 2 + errors[place] ** 2) ** 0.5

    sides = {how: (rankings.column(rows, score, how), rankings.errors_of(rows, score, how)) for how in rankings.BOTH}
    return {how: rankings.valley(own[0], taus, partial(difference, *own)) for how, own in sides.items()}


def score_table(ranking: rankings.RankingStudy) -> Table:
    rows, columns = ranking.rows, dict[str, list[float]]()
    last: list[Any] = ["clients"]
    for score, title in ranking.titles.items():
        columns |= {f"{title}\n{how}": rankings.column(rows.clients, score, how) for how in rankings.BOTH}
        last += [ranking.real[score][how] for how in rankings.BOTH]
        if controls := rows.controls(score):
            iid = zip(*(rankings.column(one, score, "avg") for one in controls))
            columns[f"{title}\nIID"] = [statistics.mean(values) for values in iid]
            last.append(None)
    lines = [
        [name, *(f"[bold]{c[place]:.4g}[/bold]" if c[place] == min(c) else c[place] for c in columns.values())]
        for place, name in enumerate(rows.clients)
    ]
    note = "IID: the mean of FID-avg over IID splits of the clients' images; clients: further images of theirs in place"
    note += " of generated ones"
    return make_table("scores by truncation of the generator", ("tau", *columns), [*lines, last], note, names=())


def expected(found: Numbers, ranking: rankings.RankingStudy, choice: TruncationChoice) -> list[str]:
    lines = []
    for score in ("fid", PCA):
        lines += valley_lines(ranking.titles[score], found["valleys"][score], found["control valleys"][score], choice)
    avg, kid = found["valleys"]["fid"]["avg"], found["valleys"]["kid"]["all"]
    text = f"KID is least at tau = {kid['least at']:g}, larger than FID-avg's {avg['least at']:g}"
    return [*lines, expectation(text, kid["place"] > avg["place"]), *ranking.lines(found["scores"])]


def valley_lines(
    own: str, valleys: Numbers, controls: Sequence[Mapping[str, Mapping[str, Any]]], choice: TruncationChoice
) -> list[str]:
    """Say whether a score's avg falls and rises, is least near the clients' own spread, and all at a larger one."""
    # over IID clients avg turns up too, where the generator varies more than the pool: its place counts, not its form
    avg, everyone = valleys["avg"], valleys["all"]
    spread, pooled = choice.client_truncation, choice.pooled_truncation
    near = f"{own}: avg's is nearer to the clients' own truncation, {spread:g}, than to their pool's, {pooled:.2g}"
    larger = f"{own}: all is least at tau = {everyone['least at']:g} ({everyone['least']:.4g}), larger than avg's"
    places = ", ".join(f"{one['avg']['least at']:g}" for one in controls)
    iid = f"{own}: avg over IID clients is least at tau = {places}, larger than avg's"
    return [
        rankings.valley_line(f"{own}: avg", avg, "tau"),
        expectation(near, abs(avg["least at"] - spread) < abs(avg["least at"] - pooled)),
        expectation(larger, everyone["place"] > avg["place"]),
        expectation(iid, all(one["avg"]["place"] > avg["place"] for one in controls)),
    ]


def draw(ranking: rankings.RankingStudy, found: Numbers, choice: TruncationChoice, path: Path) -> Path:
    from scipy.stats import rankdata

    heading = f"{ranking.heading}\ntruncation of generators to the mean style; bands: two standard errors"
    with panels(path, (15, 3.4 * len(SCORES) + 0.5), len(SCORES), 4, heading) as (figure, axes):
        for (over, way, ranks, gap), (score, title) in zip(axes, ranking.titles.items()):
            _draw_over(over, ranking, score, choice)
            sides = [rankings.column(ranking.rows.clients, score, how) for how in rankings.BOTH]
            way.plot(*sides, color="0.4", linewidth=1.0, zorder=2)
            points = ranking.scatter(way, score, colours=choice.taus, real_title=REAL, errors=False)
            ranks.plot([1, len(choice.taus)], [1, len(choice.taus)], color="0.6", linewidth=0.8, zorder=1)
            avg, everyone = (rankdata(side).tolist() for side in sides)  # 1 the least
            draw_aggregates(ranks, avg, everyone, f"rank by {title}", colours=choice.taus)
            pairs = found["scores"][score]
            ranks.set_title(f"{len(pairs['inverted'])} of {pairs['pairs']} pairs inverted", fontsize=9)
            rankings.draw_gaps(gap, choice.taus, ranking.rows, score, title, TAU)
            figure.colorbar(points, ax=gap, label=TAU, aspect=30)
        named = [panel.get_legend_handles_labels() for panel in axes[0][:2]]
        handles, labels = ([*first, *second] for first, second in zip(*named))
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
        for panel in axes[:, 1]:
            panel.get_legend().remove()
    return path


def _draw_over(axes: Any, ranking: rankings.RankingStudy, score: str, choice: TruncationChoice) -> None:
    rows, real = ranking.rows, ranking.real[score]
    for number, control in enumerate(rows.controls(score)):
        label = None if number else "avg over IID clients of the same sizes"
        avg = rankings.column(control, score, "avg")
        axes.plot(choice.taus, avg, color=CONTROL, linestyle="--", linewidth=1.1, label=label)
    for how, colour in COLOURS.items():
        values, errors = rankings.column(rows.clients, score, how), rankings.errors_of(rows.clients, score, how)
        low, high = ([value + sign * Z * error for value, error in zip(values, errors)] for sign in (-1, 1))
        axes.fill_between(choice.taus, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(choice.taus, values, color=colour, marker=".", linewidth=1.6, label=how)
        least = values.index(min(values))
        axes.plot(choice.taus[least], values[least], marker="o", markersize=10, color=colour, fillstyle="none")
        axes.axhline(real[how], color=colour, linestyle=":", linewidth=1.1, label=f"{how}, {REAL}")
    axes.axvline(choice.client_truncation, color="0.6", linewidth=0.9, label="the clients' own truncation")
    axes.set(xlabel=TAU, ylabel=ranking.titles[score])


def draw_samples(styles: TruncatedStyles, choice: TruncationChoice, path: Path) -> Path:
    """Images of the same latents at the papers' pictured truncations, and of clients, each after its centre."""
    shown = min(SHOWN, choice.clients)
    size = 1.1 * COLUMNS + 1.6, 0.53 * max(len(PICTURED), shown) + 0.4

    def row(centre: Tensor, truncation: float, number: int) -> Tensor:
        draws = generator(choice.seed, "pictured", number)
        return styles.make(centre, truncation, styles.latents(COLUMNS, draws), draws)

    clients = {}
    for number, centre in enumerate(styles.centre(choice.seed, client) for client in range(shown)):
        around = row(centre, choice.client_truncation, number)
        clients[f"client {number}"] = torch.cat([row(centre, 0.0, number)[:1], around[1:]])
    with panels(path, size, columns=2) as (_, ((left, right),)):
        show_rows(left, {f"{tau:g}": row(styles.mean, tau, 0) for tau in PICTURED})
        left.set_title("generators by truncation to the mean style", fontsize=11)
        show_rows(right, clients)
        right.set_title(f"clients: the centre, then images at {choice.client_truncation:g} around it", fontsize=11)
    return path
