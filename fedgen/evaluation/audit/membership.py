"""Audits: how well an attacker who has a model finds its training images among others, and the nearest of its images.

Signals of a membership inference attack: a number of each image, larger where a model seems to have trained on it.

- "loss" (Carlini et al. 2023, arXiv 2301.13188; Matsumoto et al. 2023, arXiv 2302.03262): the negated training loss of
  a model with `example_losses`, over noise levels and draws that the k-th member and the k-th other image share.
- "critic" (LOGAN, Hayes et al. 2019, arXiv 1705.07663): the value of a GAN's critic.
- "likelihood": the log-likelihood, of a model that knows it.
- "distance" (GAN-Leaks, Chen et al. 2020, arXiv 1909.03935): the negated distance to the nearest generated image in an
  embedding, of any sampler; not calibrated by a second model.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from lightning.pytorch import LightningModule
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from fedgen.clients import Client, FederatedDataModule
from fedgen.data.optional_attributes import optional
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.answers import Answers, density_of
from fedgen.evaluation.audit.attack_strength import LEVEL, AttackStrength, average_attack, measure_attack
from fedgen.evaluation.image_sampling import Sample, draw_images, sampler_of
from fedgen.evaluation.names import SignalName
from fedgen.evaluation.own_models import Personal, own_in_place
from fedgen.evaluation.runs.rebuild import load_weights, personal_tensors
from fedgen.evaluation.runs.run_folder import Run, RunLike
from fedgen.evaluation.runs.scores_file import MEMBERSHIP, NEAREST
from fedgen.evaluation.tables.table import new_table
from fedgen.foreign_text import listed
from fedgen.images import from_uint8, save_png, tile_titled
from fedgen.io.files import write_json
from fedgen.models.adversarial import CriticLosses
from fedgen.models.optional_hooks import GenerativeModel
from fedgen.own_code import warn
from fedgen.progress import track
from fedgen.scores.aggregate import resolve_weights
from fedgen.scores.manifold.neighbours import Points, nearest_real
from fedgen.seeds import derive, generator, isolated, resolve, seed_all, subset

ROWS = 500  # images whose distances are formed at once
LEAST_PAIRS = 10  # of a client; of fewer an interval says nothing
CAPTION = (
    "AUC: how often the signal of a training image is above that of a held-out one of the same client; 0.5 knows"
    " nothing. Advantage: true less false positive rate, at a threshold chosen on other images; 0 knows nothing. With"
    " 95 % intervals: of clients whose model knows nothing, one in twenty shows one that excludes this by chance."
)
RATE = "found at 1 %"
SHOWN = 12  # pairs in a picture
SIDE = 32  # pixels that smaller images are enlarged to


class AnsweringModel:
    """A model's methods that give something of single images; all are optional."""

    example_losses: Callable[..., Tensor] | None = None
    log_prob: Callable[..., Tensor] | None = None
    bits_per_dim: Callable[..., Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Attacked:
    """A client with enough images, its number among those that train, and members and as many others by position."""

    client: Client
    number: int
    members: Tensor
    others: Tensor


@dataclass(frozen=True, eq=False)
class SignalOptions:
    name: SignalName | None = None
    draws: int = 4
    embedding: str | Embedding | None = None
    num_images: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in (None, *get_args(SignalName)):
            raise ValueError(f"signal={self.name!r}: choose {', '.join(get_args(SignalName))}")
        for what, number in (("draws", self.draws), ("num_images", self.num_images)):
            if number < 1:
                raise ValueError(f"{what}={number}: give at least 1")

    def resolved(self, model: Any, is_images: bool) -> "SignalOptions":
        """The options with the name of a signal that a model has, and of distances the loaded embedding."""
        kind, names = type(model).__name__, ("example_losses", "log_prob", "bits_per_dim")
        loss, log_prob, bits = (callable(optional(model, AnsweringModel, name)) for name in names)
        is_sampler = callable(model) and not isinstance(model, nn.Module)
        has: dict[SignalName, bool] = {  # the most telling first
            "critic": isinstance(model, CriticLosses),
            "loss": loss,
            "likelihood": log_prob or bits,
            "distance": is_sampler or callable(optional(model, GenerativeModel, "sample")),
        }
        found = [name for name, present in has.items() if present]
        if not found:
            raise TypeError(f"{kind} cannot be attacked: it has none of {', '.join(names)}, sample")
        name = self.name or found[0]
        if name not in found:
            raise TypeError(f"{kind} has no signal {name!r}: {_NEEDS[name]}; it has {', '.join(found)}")
        if name != "distance":
            return replace(self, name=name)
        default = "efficientnet-lite0" if is_images else "identity"
        embedding = load_embedding(default if self.embedding is None else self.embedding)
        return replace(self, name=name, embedding=embedding)

    @property
    def words(self) -> str:
        if self.name == "loss":
            return f"the model's own loss, the mean of {self.draws} draws"
        if self.name == "distance":
            name = self.embedding.name if isinstance(self.embedding, Embedding) else self.embedding
            return f"distance to the nearest of {self.num_images:,} generated images in {name}"
        return "the critic's value" if self.name == "critic" else "the model's log-likelihood"


Signal = Callable[[Attacked], Sequence[Tensor]]  # gives float64 [n] of the members and [n] of the others

_NEEDS: dict[str, str] = {
    "loss": "it asks for the method example_losses(images, labels, seed)",
    "critic": "it asks for a GAN of fedgen.models with its critic",
    "likelihood": "it asks for the method bits_per_dim(images) or log_prob(points)",
    "distance": "it asks for the method sample(num_images, generator)",
}


def _losses(model: Any, options: SignalOptions, one: Attacked) -> Sequence[Tensor]:
    """Negated losses; draws after the second are left out of a model that draws nothing."""
    found = []
    for place in range(options.draws):
        found.append([-_loss_of(model, one.client, part, options, place) for part in (one.members, one.others)])
        if place == 1 and all(torch.equal(*both) for both in zip(*found)):
            break
    return [torch.stack(part).mean(0) for part in zip(*found)]


def _loss_of(model: Any, client: Client, part: Tensor, options: SignalOptions, place: int) -> Tensor:
    with isolated():
        seed_all(options.seed, "membership", place)  # for models that draw from global generators
        answers = Answers(model, derive(options.seed, "membership", place))
        return answers.losses(client.data.inputs_at(part), client.data.labels[part])


def _critic_values(model: Any, options: SignalOptions, one: Attacked) -> Sequence[Tensor]:
    """Critic's values of members and others in random order: a critic may compare the images that it gets at once."""
    both = torch.cat([one.members, one.others])
    order = torch.randperm(len(both), generator=generator(options.seed, "critic's batches"))
    values = torch.empty(len(both), dtype=torch.float64)
    values[order] = -_loss_of(model, one.client, both[order], options, 0)
    return values.split(len(one.members))


def _likelihoods(model: Any, options: SignalOptions, one: Attacked) -> Sequence[Tensor]:
    """Log-likelihoods: in negated bits per dimension of images where the model has these, else of points."""
    examples, bits, found = one.client.data, optional(model, AnsweringModel, "bits_per_dim"), []
    for part in (one.members, one.others):
        inputs = examples.inputs_at(part)[:]
        inputs = from_uint8(inputs) if examples.is_images else inputs
        with isolated(), torch.no_grad():
            seed_all(options.seed, "membership", 0)
            if examples.is_images and callable(bits):
                found.append(-bits(inputs.to(optional(model, GenerativeModel, "device"))).double().cpu())
            else:
                found.append(density_of(model).log_prob(inputs.flatten(1).double()))
    return found


def _distances(model: Any, options: SignalOptions) -> Signal:
    """Negated distances to generated images, which are drawn once."""
    embedding: Any = options.embedding
    sample = sampler_of(model) if isinstance(model, nn.Module) else model
    images = draw_images(sample, options.num_images, options.seed, 0, "membership")
    made = embed(embedding, images, description="embedding generated images").double()

    def nearest(inputs: Any) -> Tensor:
        features = embed(embedding, inputs).double()
        exact = "donot_use_mm_for_euclid_dist"  # by products an image would not be at distance 0 of its copy
        return torch.cat([torch.cdist(part, made, compute_mode=exact).amin(1) for part in features.split(ROWS)])

    return lambda one: [-nearest(one.client.data.inputs_at(part)) for part in (one.members, one.others)]


def make_signal(model: Any, options: SignalOptions) -> Signal:
    if options.name == "distance":
        return _distances(model, options)
    made = {"loss": _losses, "critic": _critic_values, "likelihood": _likelihoods}
    return partial(made[str(options.name)], model, options)


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
    """Attack a model: how well does its signal separate each client's training images from held-out ones?

    Equal numbers of members and others are drawn from each client's training and held-out images. The data module
    holds out a random part of each client's images, so both come from one distribution: the signal finds the trace of
    training, not a difference between the images, as long as no model trained on the held-out part.

    An attack that finds nothing does not show that no attack would: this one uses no other models, and one threshold
    for all images of a client.

    Args:
        model: a module, or a sampler (number, torch.Generator) to images, which has distances alone.
        data: the clients; those that train are attacked.
        signal: "loss", "critic", "likelihood" or "distance"; by default "critic" of the kit's GANs, else the first of
            these that the model has.
        draws: draws of noise per loss.
        embedding: of distances; efficientnet-lite0 by default, `identity` for other floats.
        num_images: generated images, for distances.
        seed: of all draws; None takes what `seed_everything` was given, else 0.
        personal: clients' own tensors by their number among the clients that train; each client is then attacked
            through its own model.
        pairs: most members to attack per client, with as many others: a random part of its images.

    Raises:
        TypeError: for a model without the signal.
        ValueError: if no client has enough images of either kind, `pairs` are too few, or the signal is NaN.
    """
    if pairs is not None and pairs < LEAST_PAIRS:
        raise ValueError(f"pairs={pairs}: an attack takes at least {LEAST_PAIRS} of a client")
    seed = resolve(seed)
    attacked, left_out = _pairs_of(data.clients, seed, pairs)
    options = SignalOptions(signal, draws, embedding, num_images, seed).resolved(model, data.examples.is_images)
    target: Any = model
    shared, signals = None if personal is not None else make_signal(model, options), []
    for one in track(attacked, "attacking clients", len(attacked), "clients"):
        with nullcontext() if personal is None else own_in_place(target, personal.get(one.number, {})):
            signals.append((shared or make_signal(model, options))(one))
    paired = options.name == "loss"  # whose noise the k-th member and the k-th other share
    clients = [measure_attack(one.client.name, a, b, seed, paired) for one, (a, b) in zip(attacked, signals)]
    weights = resolve_weights("examples", [len(one.client.train) for one in attacked]).tolist()
    members, others = (torch.cat(list(part)) for part in zip(*signals))
    pooled = measure_attack("all", members, others, seed, paired) if personal is None else None
    avg = average_attack("avg", clients, weights)
    assert options.name is not None  # as they are resolved
    return MembershipAudit(options.name, options.words, seed, clients, avg, pooled, left_out)


def _pairs_of(clients: Sequence[Client], seed: int, most: int | None = None) -> tuple[list[Attacked], list[str]]:
    """The clients with enough images, and the names of the others, of which there is a warning."""
    found, few = [], []
    for number, client in enumerate(clients):
        count = min(len(client.train), len(client.held_out), len(client.train) if most is None else most)
        if count < LEAST_PAIRS:
            few.append(client.name)
            continue
        members, others = (
            positions[subset(len(positions), count, seed, f"attacked {part}", number)]
            for part, positions in (("train", client.train), ("held out", client.held_out))
        )
        found.append(Attacked(client, number, members, others))
    if not found:
        most = max(min(len(client.train), len(client.held_out)) for client in clients)
        raise ValueError(
            f"an attack takes {LEAST_PAIRS} training and {LEAST_PAIRS} held-out images of a client, and none has more"
            f" than {most} of both: let clients hold out more (held_out), or use fewer, larger clients"
        )
    if few:
        warn(
            f"{len(few)} of {len(clients)} clients have fewer than {LEAST_PAIRS} training or held-out images and are"
            f" not attacked: {listed(few)}"
        )
    return found, few


def audit_run(
    run: RunLike, module: LightningModule, data: FederatedDataModule, rounds: Sequence[int] | None = None, **asked: Any
) -> list[MembershipAudit]:
    """Attacks a run's checkpoints, writes what was found into its folder (`membership.json`) and returns it.

    Where clients keep tensors of their own, each is attacked through its own model.

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the last checkpoint's weights.
        data: the run's clients.
        rounds: which checkpoints; the last one by default.
        asked: as for `membership_inference`.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or not those of `rounds`.
    """
    run = run if isinstance(run, Run) else Run(run)
    found = run.checkpoints_of(rounds, only_last=True)
    audits = []
    for round, path in found.items():
        personal = personal_tensors(module, load_weights(module, path)) or None
        audit = membership_inference(module, data, personal=personal, **asked)
        audits.append(replace(audit, round=round, checkpoint=path.name))
    write_json(run.folder / MEMBERSHIP, {"version": 1, "audits": [audit.to_json() for audit in audits]})
    return audits


def membership_table(audit: MembershipAudit) -> Table:
    """The attack on each client, and over all clients."""
    totals = [audit.avg, *([audit.all] if audit.all is not None else [])]
    rates = any(row.found for row in (*audit.clients, *totals))
    after = "" if audit.round is None else f"round {audit.round}: "
    caption = f"{CAPTION} {RATE}: share of members found where 1 % of others are taken for some." if rates else CAPTION
    title = f"{after}membership inference by {audit.words}"
    headings = ("client", "pairs", "AUC", "advantage", *([RATE] if rates else []))
    table = new_table(title, headings, left=("client",), fold=("client",))
    table.caption = caption
    for place, row in enumerate([*audit.clients, *totals]):
        if place == len(audit.clients):
            table.add_section()
        found = [row.auc, row.advantage, *([row.found] if rates else [])]
        cells = ["" if one is None else escape(str(one)) for one in found]
        style = "bold" if place >= len(audit.clients) else None
        table.add_row(escape(row.name), str(row.pairs), *cells, style=style)
    return table


@dataclass(frozen=True, eq=False)
class NearestPairs:
    """Images with the training image that is nearest to each, the nearest pair first."""

    images: Tensor
    training: Tensor
    distances: Tensor
    searched: int


@dataclass(frozen=True)
class NearestImages:
    """Pairs of generated and training images, and of held-out and training images, that lie nearest to each other.

    Images that were never seen are near some training image, too: a generator has copied where its pairs are alike and
    those of held-out images are not.

    Args:
        generated: of the model.
        held_out: of the clients' held-out images; None where they hold out none.
        training: number of training images.
        embedding: name of the embedding used for distances.
    """

    generated: NearestPairs
    held_out: NearestPairs | None
    training: int
    embedding: str

    def picture(self) -> Tensor:
        """Rows of generated images, their nearest training images, and likewise of held-out ones; uint8 [C, H, W]."""
        rows = []
        for name, pairs in (("generated", self.generated), ("held out, never trained on", self.held_out)):
            if pairs is not None:
                rows.append((f"{name}: nearest of {pairs.searched:,} to a training image", pairs.images))
                nearest = f"their nearest of {self.training:,} training images, in {self.embedding}"
                rows.append((nearest, pairs.training))
        return tile_titled(rows, len(self.generated.images), SIDE)


def nearest_images(
    model: nn.Module | Sample,
    data: FederatedDataModule,
    embedding: str | Embedding | None = None,
    num_images: int = 1000,
    shown: int = SHOWN,
    seed: int | None = None,
    personal: Personal | None = None,
    cache: FeatureCache | None = None,
) -> NearestImages:
    """Find the generated images that are nearest to any training image of any client that trains.

    Args:
        model: a module with `sample`, or a sampler (number, torch.Generator) to images.
        data: the clients.
        embedding: for Euclidean distances between features; efficientnet-lite0 by default.
        num_images: generated images to search; no more than clients hold out images, if they do, so that as many of
            either are searched.
        shown: pairs to return.
        seed: of all draws; None takes what `seed_everything` was given, else 0.
        personal: clients' own tensors by their number among the clients that train; as many images are then drawn of
            each client's own model.
        cache: keeps the training images' features on disk.

    Raises:
        ValueError: for points in place of images, and numbers below 1.
    """
    if not data.examples.is_images:
        raise ValueError(f"nearest images are of images, and {data.examples.name} has {data.examples.kind}")
    for what, number in (("num_images", num_images), ("shown", shown)):
        if number < 1:
            raise ValueError(f"{what}={number}: give at least 1")
    seed, network = resolve(seed), load_embedding("efficientnet-lite0" if embedding is None else embedding)
    inside = data.examples.inputs_at(torch.cat([client.train for client in data.clients]))
    outside = torch.cat([client.held_out for client in data.clients])
    count = min(num_images, len(outside)) if len(outside) else num_images
    chosen = outside[subset(len(outside), count, seed, "held out beside generated")] if len(outside) else outside
    features = embed(network, inside, description="embedding training images", cache=cache)

    def pairs_of(images: Any) -> NearestPairs:
        made = Points(embed(network, images, description="embedding images to compare"))
        found = nearest_real(made, features)
        best = found.squares.sort(stable=True).indices[:shown]
        return NearestPairs(images[best], inside[found.places[best]], found.squares[best].sqrt(), len(images))

    generated = pairs_of(_draw_generated(model, count, seed, len(data.clients), personal))
    held_out = pairs_of(data.examples.inputs_at(chosen)[:]) if len(chosen) else None
    return NearestImages(generated, held_out, len(inside), network.name)


def _draw_generated(model: Any, count: int, seed: int, clients: int, personal: Personal | None) -> Tensor:
    """Images of the model, or as many of each client's own, uint8 [count, C, H, W]."""
    sample = sampler_of(model) if isinstance(model, nn.Module) else model
    if personal is None:
        return draw_images(sample, count, seed, 0, "nearest")
    parts = []
    for client in range(min(clients, count)):
        share = count // clients + (client < count % clients)
        with own_in_place(model, personal.get(client, {})):
            parts.append(draw_images(sample, share, seed, 0, f"nearest {client}"))
    return torch.cat(parts)


def draw_nearest(
    run: RunLike, module: LightningModule, data: FederatedDataModule, rounds: Sequence[int] | None = None, **asked: Any
) -> NearestImages:
    """Finds the generated images that are nearest to training images, and draws them beside these into the run's folder
    (`nearest.png`).

    Arguments as for `audit_run`, but of the last of `rounds` alone; `asked` as for `nearest_images`.
    """
    run = run if isinstance(run, Run) else Run(run)
    path = list(run.checkpoints_of(rounds, only_last=True).values())[-1]
    personal = personal_tensors(module, load_weights(module, path)) or None
    found = nearest_images(module, data, personal=personal, **asked)
    save_png(run.folder / NEAREST, found.picture())
    return found
