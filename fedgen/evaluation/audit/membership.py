"""Membership inference: how well somebody who has a model tells its training images from others of the same clients."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.clients import Client, FederatedDataModule
from fedgen.embeddings import Embedding
from fedgen.evaluation.audit.attack_strength import AttackStrength, average_attack, measure_attack
from fedgen.evaluation.audit.estimates import LEVEL
from fedgen.evaluation.audit.membership_signals import (
    MembershipPairs,
    SignalOptions,
    make_signal,
)
from fedgen.evaluation.audit.signal_names import SignalName
from fedgen.evaluation.generation.image_sampling import Sample
from fedgen.evaluation.personal.own_models import Personal, own_in_place
from fedgen.own_code import warn
from fedgen.progress import track
from fedgen.scores.aggregate import resolve_weights
from fedgen.seeds import resolve, subset

LEAST_PAIRS = 10  # of a client; of fewer an interval says nothing
AVG, ALL = "avg", "all"
NAMED = 5  # clients that are left out, in a warning of them


@dataclass(frozen=True)
class MembershipAudit:
    """The findings of a membership inference attack.

    Args:
        signal: its name.
        words: what the signal is.
        seed: of all draws.
        clients: the attack on each client.
        avg: the mean over clients, weighted by their numbers of training images.
        all: one attack on all clients' images together, with one threshold; None where models are the clients' own.
        left_out: names of clients with too few images.
        round: after which this was the model; None if it is not of a run.
        checkpoint: file name of the model's checkpoint.
    """

    signal: SignalName
    words: str
    seed: int
    clients: list[AttackStrength]
    avg: AttackStrength
    all: AttackStrength | None
    left_out: list[str]
    round: int | None = None
    checkpoint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All as plain values."""
        return {"level": LEVEL, **asdict(self)}


def membership_inference(
    model: nn.Module | Sample,
    data: FederatedDataModule,
    signal: SignalName | None = None,
    draws: int = 4,
    embedding: str | Embedding | None = None,
    num_images: int = 5000,
    seed: int | None = None,
    personal: Personal | None = None,
    pairs: int | None = None,
) -> MembershipAudit:
    """Attack a model: how well does a signal of it tell each client's training images from its held-out ones?

    Members and others of a client are equally many, drawn from its training and its held-out images. The data module
    holds out a random part of each client's images, so that both come from one distribution: what a signal finds is
    the training's trace, not a difference of the images. This holds as long as nobody trained on the held-out part.

    An attack that finds nothing does not show that none would: this one knows no other models, and takes one threshold
    for all images of a client.

    Args:
        model: a module, or a sampler (number, torch.Generator) to images, which has distances alone.
        data: the clients; those that train are attacked.
        signal: "loss", "critic", "likelihood" or "distance"; by default "critic" of the kit's GANs, else the first of
            these that the model has.
        draws: of the noise of losses.
        embedding: of distances; efficientnet-lite0 by default, `identity` for points.
        num_images: generated images, for distances.
        seed: of all draws; None takes what `seed_everything` was given, else 0.
        personal: clients' own tensors by their number among the clients that train; each client is then attacked
            through its own model.
        pairs: the most members of a client that are attacked, with as many others: a random part of its images.

    Raises:
        TypeError: for a model without the signal.
        ValueError: if no client has enough images of either kind, `pairs` are too few, or the signal is NaN.
    """
    if pairs is not None and pairs < LEAST_PAIRS:
        raise ValueError(f"pairs={pairs}: an attack takes at least {LEAST_PAIRS} of a client")
    seed = resolve(seed)
    attacked, left_out = _pairs_of(data.clients, seed, pairs)
    options = SignalOptions(signal, draws, embedding, num_images, seed).resolved(model, data.examples.is_images)
    signals = _signals(model, options, attacked, personal)
    clients = [measure_attack(one.name, *own, seed) for one, own in zip(attacked, signals)]
    weights = resolve_weights("examples", [one.trained_on for one in attacked]).tolist()
    pooled = None
    if personal is None:
        members, others = (torch.cat(list(part)) for part in zip(*signals))
        pooled = measure_attack(ALL, members, others, seed)
    avg = average_attack(AVG, clients, weights)
    assert options.name is not None  # as they are resolved
    return MembershipAudit(options.name, options.words, seed, clients, avg, pooled, left_out)


@dataclass(frozen=True, eq=False)
class _Attacked:
    """A client with enough images: its name, its number among those that train, its training images, the pairs."""

    name: str
    number: int
    trained_on: int
    pairs: MembershipPairs


def _pairs_of(clients: Sequence[Client], seed: int, most: int | None = None) -> tuple[list[_Attacked], list[str]]:
    """Return the clients with enough images, and the names of the others, of whom there is a warning."""
    found = []
    for number, client in enumerate(clients):
        count = min(len(client.train), len(client.held_out))
        count = count if most is None else min(count, most)
        if count >= LEAST_PAIRS:
            members, others = (
                positions[subset(len(positions), count, seed, f"attacked {part}", number)]
                for part, positions in (("train", client.train), ("held out", client.held_out))
            )
            pairs = MembershipPairs(client.data, members, others)
            found.append(_Attacked(client.name, number, len(client.train), pairs))
    known = {one.number for one in found}
    few = [client.name for number, client in enumerate(clients) if number not in known]
    if not found:
        most = max(min(len(client.train), len(client.held_out)) for client in clients)
        raise ValueError(
            f"an attack takes {LEAST_PAIRS} training and {LEAST_PAIRS} held-out images of a client, and none has more"
            f" than {most} of both: let clients hold out more (held_out), or use fewer, larger clients"
        )
    if few:
        more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
        warn(
            f"{len(few)} of {len(clients)} clients have fewer than {LEAST_PAIRS} training or held-out images and are"
            f" not attacked: {', '.join(few[:NAMED])}{more}"
        )
    return found, few


def _signals(
    model: Any, options: SignalOptions, attacked: Sequence[_Attacked], personal: Personal | None
) -> list[tuple[Tensor, Tensor]]:
    """Return the signal of each client's members and others, of its own model where it has one."""
    shared = None if personal is not None else make_signal(model, options)
    found = []
    for one in track(attacked, "attacking clients", len(attacked), "clients"):
        with nullcontext() if personal is None else own_in_place(model, personal.get(one.number, {})):
            found.append((shared or make_signal(model, options))(one.pairs))
    return found
