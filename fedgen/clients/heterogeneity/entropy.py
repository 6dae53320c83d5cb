"""Client entropy as a measure of a partition: clients' images of one label, beside random deals of that label's."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from fedgen.clients import Client
from fedgen.clients.heterogeneity.between_clients import label_table
from fedgen.clients.heterogeneity.client_entropy import client_entropies, grey_floor
from fedgen.clients.heterogeneity.entropy_options import DEFAULT, EntropyOptions
from fedgen.clients.heterogeneity.heterogeneity import Heterogeneity, HeterogeneityMeasure, deal_again
from fedgen.seeds import subset

LEAST = 5  # images of a label, for it to be asked for in turn


def with_entropy(
    found: Heterogeneity,
    clients: Sequence[Client],
    options: EntropyOptions = DEFAULT,
    max_clients: int = 50,
    max_images: int = 10,
    controls: int = 1,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Heterogeneity:
    """The measures, and the clients' entropy above the grey floor in nats.

    A model is fitted to each client's images of one label: labels are asked for in turn, and a client with fewer than
    five images of that label gives those of its most frequent one. The control deals each label's images again, to
    clients with as many of each as before; without labels all images.

    Args:
        found: the other measures; of its clients some are measured.
        clients: of the partition.
        options: of fitting and reading.
        max_clients: measured, drawn at random where there are more.
        max_images: of each, likewise; few, as the paper's are, because entropy grows with their number.
        controls: random deals.
        seed: of the draws and the models.
        device: where to fit.

    Raises:
        ValueError: for points.
    """
    data = clients[0].data
    owned = [clients[place].everything for place in found.clients]
    rows = torch.cat(owned)
    owners = torch.repeat_interleave(torch.arange(len(owned)), torch.tensor([len(own) for own in owned]))
    present, labels = data.labels[rows].unique(return_inverse=True)
    chosen = subset(len(owned), max_clients, seed, "clients of entropy").tolist()
    asked = choose_labels(label_table(labels, owners), chosen)
    control = "labels" if data.is_labelled else "iid"
    deals = [owners, *deal_again(owners, labels if data.is_labelled else None, controls, seed)[control]]
    groups = [rows[(deal == client) & (labels == asked[client])] for deal in deals for client in chosen]
    names = chosen * len(deals)  # a client's random deals have its draws
    drawn = [subset(len(group), max_images, seed, "images of entropy", name) for group, name in zip(groups, names)]
    groups = [group[chosen] for group, chosen in zip(groups, drawn)]
    images = [data.inputs[group] for group in groups]
    floor = grey_floor(images)
    above = client_entropies(images, options, seed, device, names) - floor
    values = [_spread_out(own, chosen, len(owned)).tolist() for own in above.split(len(chosen))]
    counts = _spread_out(torch.tensor([len(group) for group in groups[: len(chosen)]]), chosen, len(owned), 0)
    details = {
        "options": asdict(options),
        "label": [data.classes[present[asked[client]]] for client in chosen] if data.is_labelled else [],
        "grey_floor": floor[: len(chosen)].tolist(),
    }
    measure = HeterogeneityMeasure("entropy", values[0], counts.long().tolist(), {control: values[1:]}, details)
    return replace(found, measures={**found.measures, "entropy": measure})


def choose_labels(table: Tensor, chosen: Sequence[int]) -> dict[int, int]:
    """The label that each of some clients is measured on: 0, 1, ... in turn, else the one that it has most of.

    Args:
        table: each client's images of each label, int64 [K, L].
        chosen: the clients.
    """
    turns = {client: turn % table.shape[1] for turn, client in enumerate(chosen)}
    enough = {client: int(table[client, label]) >= LEAST for client, label in turns.items()}
    return {client: label if enough[client] else int(table[client].argmax()) for client, label in turns.items()}


def _spread_out(values: Tensor, places: Sequence[int], count: int, missing: float = torch.nan) -> Tensor:
    """The values at their places, and something else at the others, float64 [count]."""
    found = torch.full((count,), missing, dtype=torch.float64)
    found[torch.tensor(places)] = values.double()
    return found
