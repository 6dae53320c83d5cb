"""A partition in one picture: sizes, labels, some images of some clients, and how unlike clients are."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.clients import Client
from fedgen.clients.heterogeneity.heterogeneity import CONTROLS, TITLES, Heterogeneity, HeterogeneityMeasure
from fedgen.evaluation.tables.partition_table import PartitionSummary
from fedgen.reports.figures.aggregate_panels import show_rows
from fedgen.reports.figures.curves import drawable, new_figure, save_picture
from fedgen.seeds import generator, subset

ROWS, COLUMNS = 14, 10  # clients whose images are shown, and images of each
BINS = 40  # of a histogram, at most
NAMED = 40  # clients, or labels; of more the axes have no names
POINTS = 2000  # at most, in a scatter
PARTS = {"train": "#1f5fa8", "held out": "#9dbfe0"}
GROUNDS = {"clients": "#c4560b", "iid": "#3a8a3a", "labels": "#7a5195"}
KEY = (
    "dots: clients; lines: means, by numbers of images. IID: the same images at random, in clients of the same"
    " sizes; same labels: in clients of the same labels, too"
)
SHORT = {"clients": "the\nclients", "iid": "IID\n", "labels": "same\nlabels"}


def draw_partition(
    clients: Sequence[Client], summary: PartitionSummary, found: Heterogeneity, path: str | Path, seed: int = 0
) -> Path:
    """Draws a partition and returns the path of the picture (PNG).

    Sizes (a bar for each client, or of many a histogram); labels (share of each client's, dark for more); images of
    some clients, in order, or points in their first two coordinates; and a panel for each measure, a dot a client, with
    the mean as a line: of the clients, and of the same images dealt at random.

    Args:
        clients: of the partition.
        summary: of them.
        found: their measures.
        path: of the picture.
        seed: of which images are shown.
    """
    measures = list(found.measures.values())
    figure = new_figure(15, 8)
    halves: Any = figure.subfigures(1, 2, width_ratios=(2.1, 1))
    above, below = halves[0].subfigures(2, 1, height_ratios=(1.25, 1))
    panels = above.subplots(1, 2 if summary.classes else 1, squeeze=False, width_ratios=None)[0]
    _draw_sizes(panels[0], summary)
    if summary.classes:
        _draw_labels(panels[1], summary)
    below.supxlabel(KEY, fontsize=8.5, color="0.3")
    for axes, measure in zip(below.subplots(1, len(measures), squeeze=False)[0], measures):
        _draw_measure(axes, measure, seed)
    _draw_examples(halves[1].subplots(), clients, seed)
    parts = f"{summary.source} over {len(summary.names):,} clients by {summary.partition['class']}"
    measured = f"measured in {found.embedding} on {sum(found.counts):,} {summary.kind}"
    figure.suptitle(f"{parts}, seed {summary.seed}; {measured}", fontsize=11)
    return save_picture(figure, path, dpi=110)


def _draw_sizes(axes: Any, summary: PartitionSummary) -> None:
    if len(summary.names) <= NAMED:
        places = range(len(summary.names))
        axes.bar(places, summary.train, color=PARTS["train"], label="train")
        axes.bar(places, summary.held_out, bottom=summary.train, color=PARTS["held out"], label="held out")
        axes.set(ylabel=summary.kind, xlabel="client")
    else:
        low, high = min(summary.sizes), max(summary.sizes)
        whole = [size - 0.5 for size in range(low, high + 2)]  # edges, for a bar a size
        axes.hist(summary.sizes, bins=whole if len(whole) <= BINS else BINS, color=PARTS["train"])
        if high - low < 6:
            axes.set_xlim(low - 3, high + 3)
        axes.set(xlabel=f"{summary.kind} of a client, training and held-out", ylabel="clients")
        axes.axvline(statistics.median(summary.sizes), color="0.2", linewidth=1, linestyle="--", label="median")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8, ncols=2, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)
    axes.set_title("sizes", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def _draw_labels(axes: Any, summary: PartitionSummary) -> None:
    shares = summary.labels / summary.labels.sum(1, keepdim=True)
    order = list(range(len(shares)))
    if len(order) > NAMED:  # by the label that a client has most of, so that what is alike lies together
        order = sorted(order, key=lambda place: (int(shares[place].argmax()), -float(shares[place].max())))
    names = summary.classes
    dark = max(float(shares.max()), min(1.0, 3 / len(names)))  # so that even shares are not the darkest
    image = axes.imshow(shares[order].numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=dark, interpolation="nearest")
    if len(names) <= NAMED:
        turned = max(map(len, names)) * len(names) > 60
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=90 if turned else 0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="label", ylabel="client" if len(order) <= NAMED else "clients, by their most frequent label")
    axes.set_title("labels: share of a client's", fontsize=10)
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=8)


def _draw_measure(axes: Any, measure: HeterogeneityMeasure, seed: int) -> None:
    columns: dict[str, list[list[float]]] = {"clients": [measure.per_client]}
    columns |= {name: measure.controls[name] for name in CONTROLS if measure.controls.get(name)}
    means = {"clients": [measure.value], **{name: measure.of_deals(name) for name in CONTROLS}}
    for place, (name, deals) in enumerate(columns.items()):
        values = [value for deal in deals for value in deal if math.isfinite(value)]
        spread = torch.rand(len(values), generator=generator(seed, "spread of dots", measure.name, name))
        across = (place + 0.5 * (spread - 0.5)).tolist()
        axes.scatter(across, values, s=9, color=GROUNDS[name], alpha=max(0.1, min(0.7, 60 / max(1, len(values)))))
        known = [value for value in means[name] if math.isfinite(value)]
        if known:
            mean = statistics.mean(known)
            axes.plot([place - 0.38, place + 0.38], [mean, mean], color="0.1", linewidth=1.6)
    axes.set_xticks(range(len(columns)), [SHORT[name] for name in columns], fontsize=8)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_title(textwrap.fill(TITLES[measure.name], 16), fontsize=9)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def _draw_examples(axes: Any, clients: Sequence[Client], seed: int) -> None:
    from matplotlib import colormaps

    # evenly spaced
    shown = torch.linspace(0, len(clients) - 1, min(len(clients), ROWS)).round().int().tolist()
    if clients[0].data.is_images:
        show_rows(axes, {drawable(clients[k].name, 16): _images_of(clients[k], seed, k) for k in shown})
        axes.set_anchor("N")
        axes.set_title("some images of some clients" if len(shown) < len(clients) else "some images", fontsize=10)
        return
    for number, place in enumerate(shown):
        colour = colormaps["turbo"]((number + 0.5) / len(shown))
        own = clients[place].everything
        points = clients[place].data.inputs[own[: POINTS // len(shown) + 1]].flatten(1)
        up = points[:, 1] if points.shape[1] > 1 else torch.zeros(len(points))
        axes.scatter(points[:, 0], up, s=5, alpha=0.5, color=colour, label=drawable(clients[place].name, 16))
    axes.set_title("some points, first two coordinates", fontsize=10)
    axes.legend(fontsize=8, markerscale=2)
    axes.grid(alpha=0.25)


def _images_of(client: Client, seed: int, place: int) -> Tensor:
    """COLUMNS images uint8 [COLUMNS, C, H, W] of a client at random, sorted by label; white where it has fewer."""
    own = client.everything
    chosen = own[subset(len(own), COLUMNS, seed, "shown images", place)]
    chosen = chosen[client.data.labels[chosen].argsort(stable=True)]
    images = client.data.inputs[chosen]
    blank = torch.full((COLUMNS - len(images), *images.shape[1:]), 255, dtype=torch.uint8)
    return torch.cat([images, blank])
