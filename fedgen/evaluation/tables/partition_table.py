"""A partition and how unlike its clients are, as tables."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from fedgen.clients import FederatedDataModule
from fedgen.clients.heterogeneity.heterogeneity import CONTROLS, TITLES, Heterogeneity, label_table
from fedgen.clients.partitions import SavedPartition, load_partition
from fedgen.evaluation.records import say_number
from fedgen.evaluation.tables.table import new_table

SHOWN = 40  # clients that are listed all
EXTREMES = 5  # of each kind that are listed where there are more
ENOUGH = 10  # images of a client that is called unlike the pool, as of fewer a distance is chance
BARS = " ▁▂▃▄▅▆▇█"
CHARTED = 40  # labels whose numbers are drawn as bars
IN_COLUMNS = ("fid", "kid", "vendi", "entropy")  # measures that stand beside each client


class PartitionSummary:
    """The numbers of all clients of a data module, those too that never train; partitions the examples."""

    def __init__(self, data: FederatedDataModule) -> None:
        clients, examples, shared = data.everyone, data.examples, sum(map(len, data.dealt))
        self.source, self.seed = examples.name, data.seed
        self.kind = examples.kind
        self.partition: dict[str, Any] = data.partition.settings()
        if isinstance(data.partition, SavedPartition):
            self.partition = {**load_partition(data.partition.path).partition, "saved": data.partition.path}
        role = dict.fromkeys(data.roles.participating, "trains") | dict.fromkeys(data.roles.unparticipating, "kept")
        self.names = [client.name for client in clients]
        self.roles = [role.get(number, "left out") for number in range(len(clients))]
        self.train, self.held_out = ([len(getattr(one, part)) for one in clients] for part in ("train", "held_out"))
        self.undealt, self.capped = len(examples) - shared, shared - sum(self.train) - sum(self.held_out)
        present = examples.labels.unique()
        self.classes = tuple(examples.classes[label] for label in present) if examples.classes else ()
        parts = [client.everything for client in clients]
        owners = torch.arange(len(parts)).repeat_interleave(torch.tensor(list(map(len, parts))))
        labels = clients[0].data.labels[torch.cat(parts)]
        self.labels = label_table(labels, owners, max(1, len(examples.classes)))[:, present]

    @property
    def sizes(self) -> list[int]:
        """Examples of each client, training and held-out ones together."""
        return [train + held_out for train, held_out in zip(self.train, self.held_out)]

    @property
    def labels_held(self) -> list[int]:
        """The number of labels that each client has examples of; nothing for data without labels."""
        return (self.labels > 0).sum(1).tolist() if self.classes else []

    @property
    def spans(self) -> dict[str, tuple[float, float, float]]:
        """Least, median and most over clients, by what is counted."""
        counted = {f"training {self.kind}": self.train, f"held-out {self.kind}": self.held_out}
        counted |= {"labels held": self.labels_held} if self.classes else {}
        return {name: (min(values), statistics.median(values), max(values)) for name, values in counted.items()}

    def to_json(self) -> dict[str, Any]:
        keys = ("name", "role", "train", "held_out", "labels")
        parts = [self.names, self.roles, self.train, self.held_out, *([self.labels.tolist()] if self.classes else [])]
        whole = {name: vars(self)[name] for name in ("source", "partition", "seed", "undealt", "capped")}
        return {
            **whole,
            "classes": list(self.classes),
            "summary": {name: dict(zip(("min", "median", "max"), span)) for name, span in self.spans.items()},
            "clients": [dict(zip(keys, values)) for values in zip(*parts)],
        }


def partition_tables(summary: PartitionSummary, found: Heterogeneity | None = None) -> list[Table]:
    """Return who has what, least, median and most, and how unlike clients are: two tables, or three with measures."""
    first = f"over {len(summary.names):,} clients"
    spans = new_table("", (first, "min", "median", "max"), (first,))
    for name, span in summary.spans.items():
        spans.add_row(name, *(f"{value:,g}" for value in span))
    return [client_table(summary, found), spans, *([measure_table(found)] if found else [])]


def client_table(summary: PartitionSummary, found: Heterogeneity | None = None) -> Table:
    """A line for each client, or for the extreme ones where there are more than SHOWN."""
    places, which = listed(summary, found)
    names = [name for name in IN_COLUMNS if found and name in found.measures]
    measured = [found.measures[name].per_client for name in names] if found else []
    known = {place: number for number, place in enumerate(found.clients)} if found else {}
    role = ["role"] if len(set(summary.roles)) > 1 else []
    labels = ["labels", "most of"] if summary.classes else []
    title, words = f"{_counted(summary)}, seed {summary.seed}{which}", ["client", *role, *labels]
    table = new_table(title, ["client", *role, "train", "held out", *labels, *names], left=words, fold=("client",))
    if 1 < len(summary.classes) <= CHARTED:
        key = " ".join(map(str, summary.classes))
        table.caption = f"labels: one bar each, scaled to the client's most: {escape(key)}"
    for column in table.columns:
        column.no_wrap = column.header == "labels"
    for place in places:
        row = [escape(summary.names[place]), *([summary.roles[place]] if role else [])]
        row += [f"{summary.train[place]:,}", f"{summary.held_out[place]:,}"]
        row += _labels_of(summary, place) if labels else []
        row += [_number(values[known[place]]) if place in known else "" for values in measured]
        table.add_row(*row)
    return table


def measure_table(found: Heterogeneity) -> Table:
    """Each measure's mean over clients, beside that of random partitions: mean ± deviation over them."""
    controls = [name for name in CONTROLS if any(name in one.controls for one in found.measures.values())]
    headings = ("", "the clients", *(CONTROLS[name] for name in controls))
    table = new_table(f"means over clients, in {found.embedding}", headings, ("",))
    for measure in found.measures.values():
        deals = (measure.of_deals(name) for name in controls)
        table.add_row(TITLES[measure.name], _number(measure.value), *map(_spread, deals))
    return table


def remarks_on(summary: PartitionSummary, found: Heterogeneity) -> list[str]:
    measured, lines = sum(found.counts), []
    if measured < sum(summary.sizes):
        lines.append(
            f"measured on {measured:,} of {sum(summary.sizes):,} {summary.kind}, of {len(found.clients):,} of"
            f" {len(summary.names):,} clients"
        )
    if few := sum(count < found.dim for count in found.counts):
        lines.append(
            f"{few:,} of {len(found.clients):,} clients have fewer {summary.kind} than the {found.dim:,} features: the"
            " clients' FID is biased, as that of IID clients is; KID is not"
        )
    if entropy := found.measures.get("entropy"):
        own, steps = sum(map(bool, entropy.counts)), entropy.details["options"]["steps"]
        lines.append(
            f"entropy: of {own:,} clients' {summary.kind} of one label each, by autoencoders of {steps:,} steps;"
            " compare values only under the same settings"
        )
    return lines


def listed(summary: PartitionSummary, found: Heterogeneity | None) -> tuple[list[int], str]:
    """The places of the clients that are listed, and which they are, in words."""
    count = len(summary.names)
    if count <= SHOWN:
        return list(range(count)), ""
    by_size = sorted(range(count), key=lambda place: summary.sizes[place])
    chosen = [by_size[:EXTREMES], by_size[-EXTREMES:]]
    which = f"the {EXTREMES} smallest, the {EXTREMES} largest"
    if len(set(summary.sizes)) == 1:
        chosen, which = [by_size[:EXTREMES]], f"the first {EXTREMES}"
    if found:
        values = [(-value, k) for k, value in enumerate(found.measures["kid"].per_client) if found.counts[k] >= ENOUGH]
        far = sorted(one for one in values if math.isfinite(one[0]))[:EXTREMES]
        chosen.append([found.clients[place] for _, place in far])
        which += f", the {len(far)} least like the pool by KID" if far else ""
    return list(dict.fromkeys(place for places in chosen for place in places)), f": {which}"


def _counted(summary: PartitionSummary) -> str:
    clients = "1 client" if len(summary.names) == 1 else f"{len(summary.names):,} clients"
    train = summary.roles.count("trains")
    rest = [f"{train:,} train"] if train < len(summary.names) else []
    rest += [f"{summary.undealt:,} {summary.kind} of no client"] if summary.undealt else []
    rest += [f"{summary.capped:,} of theirs in no part"] if summary.capped else []
    said = f" ({'; '.join(rest)})" if rest else ""
    return f"{summary.source}: {sum(summary.sizes):,} {summary.kind}, {clients}{said}"


def _labels_of(summary: PartitionSummary, place: int) -> list[str]:
    counts = summary.labels[place].tolist()
    most = max(range(len(counts)), key=counts.__getitem__)
    share = counts[most] / max(1, sum(counts))
    chart = bars(counts) if len(counts) <= CHARTED else f"{sum(map(bool, counts))} of {len(counts)}"
    return [chart, escape(f"{summary.classes[most]} {share:.0%}")]


def bars(counts: Sequence[int]) -> str:
    """One character a number, as high as its share of the largest; a space for 0 alone."""
    most = max(max(counts), 1)
    return "".join(BARS[math.ceil(count / most * (len(BARS) - 1))] for count in counts)


def _number(value: float) -> str:
    return say_number(value, digits=3) if math.isfinite(value) else "-"


def _spread(values: Iterable[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "-"
    mean = _number(statistics.mean(known))
    return f"{mean} ± {statistics.stdev(known):.1g}" if len(known) > 1 else mean
