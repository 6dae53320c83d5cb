"""Pictures of `truncation`: scores over truncations, ranks and gaps; images of generators and clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import column, errors_of, gaps_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.scored_checkpoints import PCA, ScoredRows, title_of
from fedgen.experiments.ranking.truncation.truncated_styles import TruncatedStyles
from fedgen.experiments.ranking.truncation.truncation_choice import TruncationChoice
from fedgen.reports.figures.aggregate_panels import CONTROL, draw_aggregates, draw_gap
from fedgen.reports.figures.curves import COLOURS
from fedgen.reports.figures.picture_panels import show_rows
from fedgen.scores.rankings import Z
from fedgen.seeds import generator

PICTURED = (0.01, 0.2, 0.4, 0.6, 0.8, 1.0)  # truncations of the papers' pictures
SHOWN = 6  # clients
COLUMNS = 10  # images of each
CLOSE = 0.07  # of a panel's width or height, where two points leave no room for text
REAL = "the clients' further images"


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
