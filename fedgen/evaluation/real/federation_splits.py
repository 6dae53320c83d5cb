"""The splits of a federation: train and report, or three where some clients never train."""

from collections.abc import Mapping, Sequence

import torch

from fedgen.clients import Client, FederatedDataModule
from fedgen.data import Examples
from fedgen.data.lazy_examples import join_inputs
from fedgen.evaluation.real.splits import LEAST, Split, StandIn, large_enough
from fedgen.evaluation.real.three_splits import three_way_splits
from fedgen.evaluation.record_names import REPORT, SELECT
from fedgen.evaluation.records import FLOOR
from fedgen.own_code import warn

Clients = (
    FederatedDataModule | Sequence[Split] | Sequence[Client] | Sequence[Examples] | Mapping[str, Sequence[Examples]]
)


def as_splits(clients: Clients) -> list[Split]:
    """Splits from a data module; from splits; from clients, or the examples of each, one split "train" of all of them;
    or from {split: [examples of each client]}.

    Of clients the split has the images that they train on, and the held-out ones of all are its floor.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(clients, FederatedDataModule):
        return splits_of(clients)
    if isinstance(clients, Mapping):
        return [Split.of_clients(name, _examples(name, part)) for name, part in clients.items()]
    is_list = isinstance(clients, Sequence) and not isinstance(clients, (str, bytes))
    given = list(clients) if is_list else []
    if given and all(isinstance(one, Split) for one in given):
        return given
    if given and all(isinstance(one, Client) for one in given):
        return [_of_clients(given)]
    if given and all(isinstance(one, Examples) for one in given):
        return [Split.of_clients(SELECT, given)]
    kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in given)) or "nothing"
    got = f"a list of {kinds}" if is_list else f"a {type(clients).__name__}"
    raise TypeError(
        "clients are a FederatedDataModule, its clients, a list of Examples (one a client), a list of splits, or"
        f" {{split: [Examples of each client]}}; got {got}"
    )


def _examples(name: str, part: Sequence[Examples]) -> Sequence[Examples]:
    """The examples of a split's clients; TypeError for anything else."""
    wrong = next((one for one in part if not isinstance(one, Examples)), None)
    if wrong is not None:
        raise TypeError(f"split {name!r} is a list of Examples, one a client; got a {type(wrong).__name__} in it")
    return part


def _of_clients(clients: Sequence[Client]) -> Split:
    """Return the images that clients train on, with the held-out images of all in a generator's place, by their data
    module.
    """
    held = [client.held_out_examples for client in clients if len(client.held_out)]
    floor = {}
    if sum(map(len, held)) >= LEAST:
        labels = torch.cat([part.labels for part in held]) if held[0].is_labelled else None
        floor = {FLOOR: StandIn(join_inputs([part.inputs for part in held]), labels)}
    names = tuple(client.name for client in clients)
    return Split.of_clients(SELECT, [client.train_examples for client in clients], client_names=names, stand_ins=floor)


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
    "report" the held-out images, which no training has seen, with the pooled training images as its floor. "report" has
    the clients that hold out two images or more, and is not there if none does; a warning names the others.

    Raises:
        ValueError: for a client with fewer than two training images.
    """
    names, examples = tuple(client.name for client in data.clients), data.examples
    parts = [data.pooled(part) for part in ("train", "held_out")]
    trained, held = (examples.inputs_at(part) for part in parts)
    labels, held_labels = (examples.labels[part] if examples.is_labelled else None for part in parts)
    counts = tuple(len(client.train) for client in data.clients)
    source, classes = examples.name, examples.classes
    floor = {FLOOR: StandIn(held, held_labels)} if len(held) >= LEAST else {}
    splits = [Split(SELECT, trained, counts, source, names, floor, classes, labels)]
    found, note = large_enough(names, [len(client.held_out) for client in data.clients], "held-out")
    if note and data.held_out:
        warn(note)
    own = [data.clients[place].held_out for place in found]
    if own and note:  # all clients' are the floor above, and are embedded once
        held, held_labels = examples.inputs_at(torch.cat(own)), examples.labels[torch.cat(own)] if classes else None
    if own:
        names, report = tuple(names[place] for place in found), f"{source} held out"
        counts, floor = tuple(map(len, own)), {FLOOR: StandIn(trained, labels)}
        splits.append(Split(REPORT, held, counts, report, names, floor, classes, held_labels, note=note))
    return splits
