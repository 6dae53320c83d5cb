"""Generators of rising truncation over clients of little variance, all made by one StyleGAN2.

Section 8 of "On the (Distributed) Evaluation of Generative Models" (arXiv 2310.11714), there with networks of FFHQ and
AFHQ. A truncation tau sets how much a generator varies; a client's images vary little around a centre of its own.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.aggregate_rankings import (
    Rows,
    agreement_table,
    column,
    compare,
    errors_of,
    expectation,
    gaps_of,
    inversion_lines,
)
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.scored_checkpoints import PCA, ScoredRows, Scorers, title_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.trained.wgan_gp_checkpoints import against_real
from fedgen.experiments.ranking.truncation.truncated_styles import MEAN_STYLES, TruncatedStyles, read_styles
from fedgen.experiments.ranking.truncation.truncation_choice import StyleFederation, TruncationChoice
from fedgen.reports.figures.aggregate_panels import CONTROL, draw_aggregates, draw_gap
from fedgen.reports.figures.curves import COLOURS
from fedgen.reports.figures.picture_panels import show_rows
from fedgen.scores.rankings import Z
from fedgen.seeds import generator

FIGURE, SAMPLES = "truncation.png", "truncation_samples.png"
SCORES = ("fid", PCA, "kid")
FLAT = 1e-9  # of KID's gap: rounding leaves less
PICTURED = (0.01, 0.2, 0.4, 0.6, 0.8, 1.0)  # truncations of the papers' pictures
SHOWN = 6  # clients
COLUMNS = 10  # images of each
CLOSE = 0.07  # of a panel's width or height, where two points leave no room for text
REAL = "the clients' further images"


def truncation(output: Path | None = None, **options: Any) -> None:
    """Scores a StyleGAN2's truncated generators over clients around centres of their own; prints and draws the scores.

    Without --network it is the kit's own network of Fashion-MNIST. The papers' settings are --network ffhq.safetensors
    or afhqwild.safetensors with --embedding inception-v3-compat --num_images 50000, and a GPU.

    Args:
        output: folder of results.json, truncation.png and truncation_samples.png.
        options: the fields of `TruncationChoice`.
    """
    choice = TruncationChoice(**options)
    styles = read_styles(choice.network, choice.device)
    study = Study("truncation", output, {**choice.settings(), "network": styles.fingerprint()})
    if study.missing("found"):
        score_all(study, choice, styles)
    draw_samples(styles, choice, study.path(SAMPLES))
    rows, found = ScoredRows(study.numbers["scores"]), study.numbers["found"]
    named = {title_of(score, choice.components): found["scores"][score] for score in SCORES}
    real = study.numbers["real"]
    lines = [*expected(found, choice), *against_real(rows.clients, real, "generators", "the clients' further images")]
    if styles.mean_estimated:
        lines.append(f"the file keeps no mean of styles: tau pulls to that of {MEAN_STYLES:,} styles")
    lines.append(f"images: {study.path(SAMPLES)}")
    figure = draw(rows, real, found, choice, heading(choice, styles), study.path(FIGURE))
    tables = [score_table(rows, real, choice), agreement_table(named, heading(choice, styles))]
    study.report([*tables, *lines], figure)


def score_all(study: Study, choice: TruncationChoice, styles: TruncatedStyles) -> None:
    """The steps: real floor and generators scored over the clients and IID dealings, and what the scores say."""
    embedding = load_embedding(choice.embedding, weights=choice.weights).to(choice.device)
    places = StyleFederation(styles, embedding, choice)
    projection = places.projection()
    scorers = Scorers(places.federation(), choice.controls, choice.seed, projection=projection)
    study.step("real", lambda: scorers.score(places.floor())["clients"])
    taus = {f"{tau:g}": tau for tau in choice.taus}
    scored = study.each("scores", taus, lambda tau: scorers.score(places.generated(tau)), "generators")
    study.step("found", lambda: summarise(ScoredRows(scored), choice.taus))


def summarise(rows: ScoredRows, taus: Sequence[float]) -> dict[str, Any]:
    """Return what the scores say: avg beside all, where each is least, and the same of FID over IID clients.

    Args:
        rows: scores of every generator.
        taus: their truncations.
    """
    controls = {score: rows.controls(score) for score in SCORES}
    return {
        "scores": {score: compare(rows.clients, controls[score], score) for score in SCORES},
        "valleys": {score: valleys_of(rows.clients, score, taus) for score in SCORES},
        "control valleys": {
            score: [valleys_of(control, score, taus) for control in own] for score, own in controls.items()
        },
    }


def valleys_of(rows: Rows, score: str, taus: Sequence[float]) -> dict[str, Any]:
    """`valley` of both aggregates."""
    return {how: valley(column(rows, score, how), errors_of(rows, score, how), taus) for how in ("avg", "all")}


def valley(values: Sequence[float], errors: Sequence[float], taus: Sequence[float]) -> dict[str, Any]:
    """Return where a curve over truncations is least, and how far its ends lie above that.

    Keys: "least at" (the truncation) and "place", "least", "left" and "right" (difference of the first and the last
    value and its standard error), and "inside": whether both exceed 1.96 errors, so that the curve falls and rises.

    Args:
        values: of each generator.
        errors: their standard errors over generated images.
        taus: rising.
    """
    place = min(range(len(values)), key=values.__getitem__)
    found: dict[str, Any] = {"least at": taus[place], "place": place, "least": values[place]}
    for side, end in (("left", 0), ("right", len(values) - 1)):
        found[side] = [values[end] - values[place], (errors[end] ** 2 + errors[place] ** 2) ** 0.5]
    found["inside"] = all(found[side][0] > Z * found[side][1] and found[side][0] > 0 for side in ("left", "right"))
    return found


def heading(choice: TruncationChoice, styles: TruncatedStyles) -> str:
    """A line on network, generators and clients."""
    return (
        f"{choice.network.stem}, {styles.image_size} x {styles.image_size}; generators: {len(choice.taus)} truncations,"
        f" {choice.num_images:,} images each; clients: {choice.clients} of {choice.client_images} images at"
        f" {choice.client_truncation:g}; {choice.embedding}"
    )


def score_table(rows: ScoredRows, real: Mapping[str, Any], choice: TruncationChoice) -> Table:
    """A line for each truncation, the least of each column in bold, and real images in the last line."""
    table = Table(
        title="scores by truncation of the generator",
        caption="IID: the mean of FID-avg over dealings of the clients' images; clients: further images of theirs in"
        " place of generated ones",
        caption_justify="left",
    )
    columns: list[list[float]] = []
    table.add_column("tau", justify="right")
    for score in SCORES:
        for how in ("avg", "all"):
            table.add_column(f"{title_of(score, choice.components)}\n{how}", justify="right")
            columns.append(column(rows.clients, score, how))
        if rows.controls(score):
            table.add_column("IID", justify="right")
            columns.append(mean_control(rows, score))
    for place, name in enumerate(rows.clients):
        cells = [f"{own[place]:.4g}" for own in columns]
        table.add_row(name, *(f"[bold]{c}[/bold]" if own[place] == min(own) else c for c, own in zip(cells, columns)))
    cells = []
    for score in SCORES:
        cells += [f"{real[score][how]:.4g}" for how in ("avg", "all")] + ["-"] * bool(rows.controls(score))
    table.add_row("clients", *cells)
    return table


def mean_control(rows: ScoredRows, score: str) -> list[float]:
    """A score's avg over IID clients, the mean over dealings, generator by generator."""
    return [statistics.mean(values) for values in zip(*(column(one, score, "avg") for one in rows.controls(score)))]


def expected(found: Mapping[str, Any], choice: TruncationChoice) -> list[str]:
    """Say whether the papers' outcomes were seen, a line each."""
    lines = []
    for score in ("fid", PCA):
        own = title_of(score, choice.components)
        lines += valley_lines(own, found["valleys"][score], found["control valleys"][score], choice)
        lines += inversion_lines(own, found["scores"][score])
    avg, kid = found["valleys"]["fid"]["avg"], found["valleys"]["kid"]["all"]
    text = f"KID is least at tau = {kid['least at']:g}, larger than FID-avg's {avg['least at']:g}"
    lines.append(expectation(text, kid["place"] > avg["place"]))
    row = found["scores"]["kid"]
    relative = row["gap"]["spread"] / max(abs(row["gap"]["mean"]), 1e-300)
    flat = f"KID: avg - all is one number, {row['gap']['mean']:.4g}, to {relative:.1e} of it; {len(row['inverted'])}"
    return [*lines, expectation(f"{flat} pairs are inverted", relative < FLAT and not row["inverted"])]


def valley_lines(
    own: str,
    valleys: Mapping[str, Mapping[str, Any]],
    controls: Sequence[Mapping[str, Mapping[str, Any]]],
    choice: TruncationChoice,
) -> list[str]:
    """Say whether a score's avg falls and rises, is least near the clients' own spread, and all at a larger truncation.

    Over IID clients avg turns up too, where the generator varies more than the pool; so its place counts, not its form.

    Args:
        own: the score's title.
        valleys: of "avg" and "all", as `valley` gives them.
        controls: the same over each IID dealing.
        choice: of truncations.
    """
    avg, everyone = valleys["avg"], valleys["all"]
    ends = " and ".join(f"{avg[side][0]:.4g} ± {avg[side][1]:.2g}" for side in ("left", "right"))
    form = f"{own}: avg falls and rises, least at tau = {avg['least at']:g} ({avg['least']:.4g}); at"
    form += f" {choice.taus[0]:g} and {choice.taus[-1]:g} it is {ends} above that"
    spread, pooled = choice.client_truncation, choice.pooled_truncation
    near = f"{own}: avg's is nearer to the clients' own truncation, {spread:g}, than to their pool's, {pooled:.2g}"
    larger = f"{own}: all is least at tau = {everyone['least at']:g} ({everyone['least']:.4g}), larger than avg's"
    dealt = [one["avg"] for one in controls]
    places = ", ".join(f"{one['least at']:g}" for one in dealt)
    iid = f"{own}: avg over IID clients is least at tau = {places}, larger"
    return [
        expectation(form, avg["inside"]),
        expectation(near, abs(avg["least at"] - spread) < abs(avg["least at"] - pooled)),
        expectation(larger, everyone["place"] > avg["place"]),
        expectation(f"{iid} than avg's", all(one["place"] > avg["place"] for one in dealt)),
    ]


def draw(
    rows: ScoredRows,
    real: Mapping[str, Mapping[str, Any]],
    found: Mapping[str, Any],
    choice: TruncationChoice,
    heading: str,
    path: Path,
) -> Path:
    """A row a score: avg and all over truncations, avg against all, rank against rank, and avg - all.

    Args:
        rows: scores of every generator over the clients and IID dealings.
        real: of further images of the clients.
        found: as `truncation.summarise` gives it.
        choice: what was asked for.
        heading: a line on network, generators and clients.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    scores = ("fid", PCA, "kid")
    figure = Figure(figsize=(15, 3.4 * len(scores) + 0.5), layout="constrained")
    for (over, path_axes, ranks, gap), score in zip(figure.subplots(len(scores), 4), scores):
        title = title_of(score, choice.components)
        _draw_over(over, rows, score, title, real[score], choice)
        points = _draw_path(path_axes, rows, score, title, real[score], choice.taus)
        _draw_ranks(ranks, rows, score, title, found["scores"][score], choice.taus)
        others = [gaps_of(control, score) for control in rows.controls(score)]
        draw_gap(gap, choice.taus, gaps_of(rows.clients, score), title, "truncation of the generator", others)
        low, high = gap.get_ylim()
        gap.set_ylim(low, high + (0.3 if others else 0.0) * (high - low))  # room for the legend
        figure.colorbar(points, ax=gap, label="truncation of the generator", aspect=30)
        if score == scores[0]:
            handles, labels = over.get_legend_handles_labels()
            stars, names = path_axes.get_legend_handles_labels()
    figure.legend(handles + stars, labels + names, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle(f"{heading}\ntruncation of generators to the mean style; bands: two standard errors", fontsize=11)
    return save_figure(figure, path)


def _draw_over(
    axes: Any, rows: ScoredRows, score: str, title: str, real: Mapping[str, Any], choice: TruncationChoice
) -> None:
    """avg and all over truncations with a ring at the least, avg over IID clients, and real images as lines."""
    for number, control in enumerate(rows.controls(score)):
        label = "avg over IID clients of the same sizes" if number == 0 else None
        values = column(control, score, "avg")
        axes.plot(choice.taus, values, color=CONTROL, linestyle="--", linewidth=1.1, label=label)
    for how, colour in COLOURS.items():
        values, errors = column(rows.clients, score, how), errors_of(rows.clients, score, how)
        low, high = ([value + sign * Z * error for value, error in zip(values, errors)] for sign in (-1, 1))
        axes.fill_between(choice.taus, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(choice.taus, values, color=colour, marker=".", linewidth=1.6, label=how)
        least = values.index(min(values))
        axes.plot(choice.taus[least], values[least], marker="o", markersize=10, color=colour, fillstyle="none")
        axes.axhline(real[how], color=colour, linestyle=":", linewidth=1.1, label=f"{how}, {REAL}")
    axes.axvline(choice.client_truncation, color="0.6", linewidth=0.9, label="the clients' own truncation")
    axes.set_xlabel("truncation of the generator")
    axes.set_ylabel(title)
    axes.grid(alpha=0.25)


def _draw_path(
    axes: Any, rows: ScoredRows, score: str, title: str, real: Mapping[str, Any], taus: Sequence[float]
) -> Any:
    """avg against all, joined in the order of truncations, some of which are written beside; gives the points."""
    avg, everyone = (column(rows.clients, score, how) for how in ("avg", "all"))
    axes.plot(avg, everyone, color="0.4", linewidth=1.0, zorder=2)
    points = draw_aggregates(axes, avg, everyone, title, colours=taus)
    axes.scatter([real["avg"]], [real["all"]], marker="*", s=80, color="black", zorder=4, label=REAL)
    axes.margins(0.12)
    for place in _apart(avg, everyone):
        _write(axes, taus[place], avg[place], everyone[place])
    return points


def _apart(across: Sequence[float], up: Sequence[float]) -> list[int]:
    """Places of points to write beside: the first, the last, and those that are not close to one of them taken."""
    widths = [max(max(values) - min(values), 1e-300) for values in (across, up)]
    taken: list[int] = []
    for place in (0, len(across) - 1, *range(1, len(across) - 1)):
        steps = [(abs(across[place] - across[p]) / widths[0], abs(up[place] - up[p]) / widths[1]) for p in taken]
        if all(max(step) > CLOSE for step in steps):
            taken.append(place)
    return taken


def _draw_ranks(
    axes: Any, rows: ScoredRows, score: str, title: str, found: Mapping[str, Any], taus: Sequence[float]
) -> None:
    """Each generator's rank by avg (across) and by all (up), 1 the least; on the diagonal where both rank alike."""
    from scipy.stats import rankdata

    avg, everyone = (rankdata(column(rows.clients, score, how)).tolist() for how in ("avg", "all"))
    axes.plot([1, len(taus)], [1, len(taus)], color="0.6", linewidth=0.8, zorder=1)
    draw_aggregates(axes, avg, everyone, f"rank by {title}", colours=taus)
    for tau, across, up in zip(taus, avg, everyone):
        _write(axes, tau, across, up)
    axes.margins(0.12)
    axes.set_title(f"{len(found['inverted'])} of {found['pairs']} pairs inverted", fontsize=9)


def _write(axes: Any, tau: float, across: float, up: float) -> None:
    axes.annotate(f"{tau:g}", (across, up), textcoords="offset points", xytext=(4, 4), fontsize=8, zorder=5)


def draw_samples(styles: TruncatedStyles, choice: TruncationChoice, path: Path) -> Path:
    """Images of the same latents at the papers' pictured truncations, and of clients, each after its centre.

    Args:
        styles: the network.
        choice: of clients and seed.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    shown = min(SHOWN, choice.clients)
    figure = Figure(figsize=(1.1 * COLUMNS + 1.6, 0.53 * max(len(PICTURED), shown) + 0.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    show_rows(left, {f"{tau:g}": _row(styles, styles.mean, tau, choice.seed, 0) for tau in PICTURED})
    left.set_title("generators by truncation to the mean style", fontsize=11)
    show_rows(right, {f"client {client}": _client_row(styles, choice, client) for client in range(shown)})
    right.set_title(f"clients: the centre, then images at {choice.client_truncation:g} around it", fontsize=11)
    return save_figure(figure, path)


def _client_row(styles: TruncatedStyles, choice: TruncationChoice, client: int) -> Tensor:
    """The image of a client's centre, then images around it."""
    centre = styles.centre(choice.seed, client)
    alone, around = (_row(styles, centre, pull, choice.seed, client) for pull in (0.0, choice.client_truncation))
    return torch.cat([alone[:1], around[1:]])


def _row(styles: TruncatedStyles, centre: Tensor, truncation: float, seed: int, number: int) -> Tensor:
    """Images uint8 [COLUMNS, C, H, W] of latents that are the same for every centre and truncation of a number."""
    draws = generator(seed, "pictured", number)
    return styles.make(centre, truncation, styles.latents(COLUMNS, draws), draws)
