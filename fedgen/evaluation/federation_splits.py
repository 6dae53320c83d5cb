"""The splits of a federation: train and report, or three where some clients never train."""

from collections.abc import Mapping, Sequence

from fedgen.clients import FederatedDataModule
from fedgen.data import Examples
from fedgen.evaluation.records import FLOOR
from fedgen.evaluation.splits import LEAST, REPORT, SELECT, Split, StandIn
from fedgen.evaluation.three_way import three_way_splits

Clients = FederatedDataModule | Sequence[Split] | Mapping[str, Sequence[Examples]]


def as_splits(clients: Clients) -> list[Split]:
    """Splits from a data module, from splits, or from {split: [examples of each client]}."""
    if isinstance(clients, FederatedDataModule):
        return splits_of(clients)
    if isinstance(clients, Mapping):
        return [Split.of_clients(name, examples) for name, examples in clients.items()]
    return list(clients)


def splits_of(data: FederatedDataModule) -> list[Split]:
    """A federation's splits, the one to select by first: those of `three_way_splits` where clients are kept from
    training, else "train" and "report".

    Raises:
        ValueError: for a client with fewer than two training images.
    """
    return _two_splits(data) if data.split is None else three_way_splits(data)


def _two_splits(data: FederatedDataModule) -> list[Split]:
    """Without clients that never train: "train" for selecting and "report".

    "train" is what each client trains on (the field's convention) with the pooled held-out images as its floor;
    "report" the held-out images, which no training has seen, with the pooled training images as its floor. "report" is
    left out if a client holds out fewer than two images.

    Raises:
        ValueError: for a client with fewer than two training images.
    """
    names, examples = tuple(client.name for client in data.clients), data.examples
    parts = [data.pooled(part) for part in ("train", "held_out")]
    trained, held = (examples.inputs_at(part) for part in parts)
    labels, held_labels = (examples.labels[part] if examples.is_labelled else None for part in parts)
    counts = tuple(len(client.train) for client in data.clients)
    held_counts = tuple(len(client.held_out) for client in data.clients)
    source, classes = examples.name, examples.classes
    floor = {FLOOR: StandIn(held, held_labels)} if len(held) >= LEAST else {}
    splits = [Split(SELECT, trained, counts, source, names, floor, classes, labels)]
    if min(held_counts) >= LEAST:
        report = f"{source} held out"
        floor = {FLOOR: StandIn(trained, labels)}
        splits.append(Split(REPORT, held, held_counts, report, names, floor, classes, held_labels))
    return splits
