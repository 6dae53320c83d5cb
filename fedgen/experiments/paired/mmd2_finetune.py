"""A StyleGAN2 fine-tuned against its server's images and by MMD^2 towards clients who keep theirs, in three forms.

Section 8.3 of "On the (Distributed) Evaluation of Generative Models" (arXiv 2310.11714): twelve clients around centres
of a pretrained network that share an attribute; GAN loss against the images that it was trained on + 5 MMD^2. Each form
stands beside the same game without MMD^2, on held-out images, also in an embedding that nothing was trained on.
"""

import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor, nn

from fedgen.class_paths import import_by_path
from fedgen.clients import FederatedDataModule
from fedgen.data import Examples
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.evaluation.marks import SAME
from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.panels import require_device
from fedgen.evaluation.reference import Reference
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_images, draw_panels
from fedgen.experiments.engine.features import CACHE
from fedgen.experiments.engine.paired_seeds import by_chance
from fedgen.experiments.engine.scored_arms import REAL_IMAGES, ScoredArms, require_unrelated, states_in
from fedgen.experiments.engine.study import ArmsChoice, Numbers, Study, expectation, make_table
from fedgen.experiments.ranking.truncation import BATCH, NETWORK, TruncatedStyles, read_styles
from fedgen.images import save_png
from fedgen.io.files import in_bytes, read_json
from fedgen.losses import EmbeddedLoss, MMD2Loss
from fedgen.losses.distributed import Traffic
from fedgen.losses.one_message import Nystrom, Sketches, approximation_errors, local_drift
from fedgen.models.checkpoint_file import read_checkpoint, read_generator
from fedgen.models.distributed_fine_tuning import TRAFFIC
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.progress import track
from fedgen.scores import frechet_distance
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, summarize

CHECKPOINTS = 4  # kept of each run, evenly spaced
CONTROL = "weight 0"
EXACT, LOCAL, MESSAGE = "(a) exact", "(b) local", "(c) one message"
FORMS = {EXACT: "exact", LOCAL: "local", MESSAGE: "message"}
ARMS = (CONTROL, *FORMS)
START = "start"
RECIPE = "mmd2_fashion_mnist.yaml"


@dataclass(frozen=True)
class Mmd2Choice(ArmsChoice):
    """Options of the experiment; its fields are options of its command.

    Args:
        network: file of a StyleGAN2 with its critic, .safetensors; `fedgen convert` makes one of a published pickle.
        server_data: the images that the network was trained on: fashion-mnist, or a folder of class folders.
        attribute: the class that all clients' centres show.
        centres: numbers of the centres' latents, one a client, in place of a search; found ones are printed.
        embedding: in which MMD^2 is minimised.
        judge: another one, which nothing is trained on.
        weights: a local file of the judge's weights.
        clients: how many, each around a centre of its own.
        client_images: of each client, half of which are trained on and half held out.
        client_truncation: of their images' styles, to their own centre; at 0.25 many leave the attribute.
        weight: of MMD^2 beside the GAN's loss; the paper's is 5, for another embedding. At 0.5 recall falls here.
        rounds: of fine-tuning; a multiple of 4.
        iterations: of the server's game, in a round.
        batch: images of the server, an iteration, and images generated in a step.
        local_steps: of every client in a round, in form (b).
        local_lr: of their Adam; the game's rate by default.
        num_images: generated of every checkpoint.
        seeds: repetitions, each with clients and draws of its own.
        recipes: folder of the recipe.
        device: where images are made and embedded to score them, e.g. cuda; runs take what the recipe says.
        quick: a minute, to see that it runs: one seed, 3 clients of 24 images, 4 rounds of 2 iterations.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "clients": 3, "client_images": 24, "rounds": 4, "iterations": 2, "batch": 16, "num_images": 100, "seeds": 1,
        "centres": lambda centres: centres and centres[:3], "local_steps": 1, "parallel": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)
    LEAST: ClassVar[Mapping[str, float]] = {
        **ArmsChoice.LEAST, "clients": 2, "client_images": 24, "rounds": CHECKPOINTS, "iterations": 1, "batch": 1,
        "local_steps": 1, "client_truncation": 0,
    }  # fmt: skip

    network: Path = NETWORK
    server_data: str = "fashion-mnist"
    attribute: str = "Bag"
    centres: tuple[int, ...] | None = None
    embedding: str = "efficientnet-lite0"
    judge: str = "classifier-mnist5k"
    weights: Path | None = None
    clients: int = 12
    client_images: int = 200
    client_truncation: float = 0.1
    weight: float = 0.1
    rounds: int = 8
    iterations: int = 20
    batch: int = 64
    local_steps: int = 4
    local_lr: float = 0.0025
    num_images: int = 2000
    seeds: int = 5
    recipes: Path = Path("recipes")
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unrelated(self.judge, [self.embedding])
        if self.client_images % 2 or self.rounds % CHECKPOINTS:
            raise ValueError(
                f"client_images={self.client_images}, rounds={self.rounds}: half of a client's images are held out, and"
                f" {CHECKPOINTS} checkpoints are kept, evenly spaced; give multiples of 2 and {CHECKPOINTS}"
            )
        if self.centres is not None and len(set(self.centres)) != self.clients:
            raise ValueError(f"centres={list(self.centres)}: give {self.clients} different ones, one a client")
        if self.weight <= 0 or self.local_lr <= 0:
            raise ValueError(f"weight={self.weight}, local_lr={self.local_lr}: give numbers above 0")
        require_device(self.device)

    def server(self, shape: tuple[int, ...]) -> dict[str, Any]:
        if self.server_data == "fashion-mnist":
            return trainings.component("fedgen.data.FashionMNIST", pad_to=shape[1])
        if not Path(self.server_data).is_dir():
            raise ValueError(f"server_data={self.server_data!r}: give fashion-mnist, or a folder of images")
        return trainings.component("fedgen.data.ImageFolder", root=self.server_data, size=shape[1], channels=shape[0])

    def resolved(self) -> dict[str, Any]:
        return {"data": self.network.stem}


@dataclass(frozen=True)
class Mmd2Runs:
    choice: Mmd2Choice  # how long they are
    shape: tuple[int, ...]  # of the network's images, (C, H, W)
    root: Path  # folder of the clients' folders and of the runs
    fingerprint: str  # of the network, for the runs' names

    def data(self, seed: int) -> FederatedDataModule:
        return rebuild(self.training(CONTROL, seed).place)[1]

    def clients(self, seed: int) -> Path:
        return self.root / f"clients-seed{seed}"

    def training(self, arm: str, seed: int) -> trainings.Training:
        choice, recipe = self.choice, self.choice.recipes / RECIPE
        # without weight the score is of no matter, and its images are those of the game: the cheapest will do
        embedding, weight = (["pixels"], 0.0) if arm == CONTROL else ([choice.embedding], choice.weight)
        (objective,) = trainings.embedded_loss(trainings.component("fedgen.losses.MMD2Loss"), embedding, weight=weight)
        given: dict[str, Any] = {
            "model.init_args.model.init_args.weights": choice.network,
            "model.init_args.objective": objective,
            "model.init_args.server_data": choice.server(self.shape),
            "model.init_args.form": FORMS.get(arm, "exact"),
            "model.init_args.batch": choice.batch,
            "data.init_args.data.init_args.root": self.clients(seed),
            "data.init_args.data.init_args.channels": self.shape[0],
            "data.init_args.iterations": choice.iterations,
        }
        if arm == LOCAL:
            steps = trainings.component("fedgen.federated.FedAvgStrategy", communication_interval=choice.local_steps)
            lr = {"server_iterations": choice.iterations, "images": choice.batch, "lr": choice.local_lr}
            given |= {"trainer.strategy": steps, "model.init_args.local": lr}
        settings = trainings.kept_rounds(choice.rounds, choice.rounds // CHECKPOINTS, 0, more=given)
        # runs of another network or recipe are others; of another choice, the study refuses the folder
        own = [trainings.slug(arm), f"seed{seed}", self.fingerprint[:8]]
        own += [trainings.start_of(recipe), *(["quick"] if choice.quick else [])]
        return trainings.Training(recipe, self.root / "runs" / "-".join(own), seed, settings)

    def states(self, arm: str, seed: int) -> dict[int, Path]:
        """An arm's checkpoints by images shown; 0 is the network itself."""
        each, folder = self.choice.rounds // CHECKPOINTS, self.training(arm, seed).place
        shown = each * self.choice.iterations * self.choice.batch
        later = {shown * (k + 1): folder / checkpoint_name(each * (k + 1) - 1) for k in range(CHECKPOINTS)}
        return {0: self.choice.network} | later


def images_of(path: Path, count: int, seed: int, device: str) -> Tensor:
    """Images uint8 [count, C, H, W] of a network's file or a run's checkpoint, all of the same latents and noise."""
    if path.suffix == ".ckpt":
        network: Any = read_generator(path)
        styles = TruncatedStyles(network, device)
    else:
        styles = read_styles(path, device)
    return torch.cat(list(styles.batches(styles.mean, 1.0, count, seed, "generated")))


KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE = "kid avg", "kid all", "fid server", "recall", "coverage"
TITLES = {KID_AVG: "KID-avg", KID_ALL: "KID-all", RECALL: RECALL, COVERAGE: COVERAGE}
TITLES[FID_SERVER] = "FID-all to the server's images"
SIZES = (Sketches(250), Sketches(1000), Sketches(4000), Nystrom(128), Nystrom(512), Nystrom(2048))
MOVES = (1e-7, 1e-6, 1e-5)  # how far a first step of SGD goes, as a share of the norm of the weights, in the drift
STEPS = 8  # of SGD


class HeldOutScores:
    """KID to the clients' held-out images, recall and coverage of their pool, and FID to the server's, by embedding."""

    def __init__(self, data: FederatedDataModule, public: Examples, embeddings: Sequence[Embedding]) -> None:
        self._sides: list[tuple[Embedding, Reference, Gaussian]] = []
        for embedding in embeddings:
            features = embed(embedding, data.examples.inputs, description=f"embedding clients with {embedding.name}")
            reference = Reference([features[client.held_out] for client in data.clients], ["kid", "recall", "coverage"])
            text = f"embedding {public.name} with {embedding.name}"
            theirs = summarize(embed(embedding, public.inputs, description=text, cache=FeatureCache(CACHE)))
            self._sides.append((embedding, reference, theirs))
        self.floor = self.score(data.examples.inputs[torch.cat([client.train for client in data.clients])])

    def score(self, images: Tensor) -> dict[str, dict[str, float]]:
        """TITLES of images uint8 [m, C, H, W], by embedding."""
        found = {}
        for embedding, reference, server in self._sides:
            features = embed(embedding, images, description=f"embedding samples with {embedding.name}")
            values = {score.name: score.values for score in reference.score(features, errors=False)}
            found[embedding.name] = {
                KID_AVG: values["kid"]["avg"],
                KID_ALL: values["kid"]["all"],
                RECALL: values["recall"]["all"],
                COVERAGE: values["coverage"]["all"],
                FID_SERVER: frechet_distance(summarize(features), server)[0],
            }
        return found


class _Still(nn.Module):
    """A generator whose noise is constant, so that its images are a function of latents alone."""

    def __init__(self, network: StyleGAN2Generator) -> None:
        super().__init__()
        self.network = network

    def forward(self, latents: Tensor) -> Tensor:
        return self.network(latents, noise="const")


def drifts(
    styles: TruncatedStyles, data: FederatedDataModule, embedding: Embedding, batch: int, seed: int
) -> dict[str, list[float]]:
    """`local_drift` after 1, 2, ... steps from the network, in float32, by how far the first step goes."""
    exact = StyleGAN2Generator(**(styles.network.settings | {"half_resolutions": 0}))
    exact.load_state_dict(styles.network.state_dict())
    still = _Still(exact.train())
    parts = [data.examples.inputs[client.train] for client in data.clients]
    objective = EmbeddedLoss(MMD2Loss(aggregate="own"), [embedding]).set_references(parts)
    latents = styles.latents(STEPS * batch, generator(seed, "drift")).view(STEPS, batch, -1)
    objective.start_turn(None)
    weights = [parameter for parameter in still.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(objective(still(latents[0])), weights, allow_unused=True)
    unit = _norm(weights) / _norm([gradient for gradient in gradients if gradient is not None])
    sizes = [float(len(part)) for part in parts]
    return {f"{move:g}": local_drift(still, objective, sizes, latents, move * unit) for move in MOVES}


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([tensor.detach().norm() for tensor in tensors]).norm())


COLUMNS = 14  # latents in the picture of samples
ALIKE = 1e-9  # of KID's gap between avg and all: rounding leaves less
GRID = "mmd2_samples.png"
STYLES = {
    CONTROL: {"color": "0.35", "marker": "x"},
    EXACT: {"color": "#1f5fa8", "marker": "o"},
    LOCAL: {"color": "#3a8a3a", "marker": "s"},
    MESSAGE: {"color": "#c4560b", "marker": "^"},
    REAL_IMAGES: REAL,
}
PANELS = (KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE)


def mmd2_finetune(**options: Any) -> None:
    """Fine-tunes a StyleGAN2 towards twelve clients by distributed MMD^2, in three forms and with weight 0.

    With the kit's own network an hour and a half on one core. The paper's settings are --network ffhq.safetensors
    --server_data FOLDER --centres ... --embedding inception-v3-compat --judge dinov2-vit-b14 --rounds 100 --iterations
    156, and a GPU.
    """
    choice = Mmd2Choice(**options)
    styles = read_styles(choice.network, choice.device)
    network, recipe = styles.fingerprint(), trainings.fingerprints([choice.recipes / RECIPE])
    study = choice.study("mmd2-finetune", network=network, recipe=recipe)
    runs = Mmd2Runs(choice, styles.network.image_shape, study.folder, network)
    measure(study, runs, styles)
    places = {arm: runs.states(arm, choice.seed) for arm in ARMS}
    found = scored(study.numbers["scores"], places, choice)
    if not study.path(GRID).exists():
        draw_samples(runs, study.path(GRID))
    tables = [*tables_of(study.numbers, found, choice), *outcomes(found, choice)]
    tables += [f"centres of seed {seed}: {study.numbers['centres'][str(seed)]}" for seed in choice.seeds_of]
    tables.append(f"samples: {study.path(GRID)}")
    study.report(tables, draw_curves(found, choice, study.figure))


def measure(study: Study, runs: Mmd2Runs, styles: TruncatedStyles) -> None:
    choice, seeds = runs.choice, {str(seed): seed for seed in runs.choice.seeds_of}
    if not study.missing("drift"):
        return
    # the server's images, 10,000 at most: what centres show, FID and landmarks are found by them
    described = choice.server(styles.network.image_shape)
    server = import_by_path(described["class_path"])(**described["init_args"]).load("train")
    public = server.subset(torch.randperm(len(server), generator=generator(choice.seed, "server's images"))[:PUBLIC])
    judge = load_embedding(choice.judge, weights=choice.weights).to(choice.device)
    embedding = load_embedding(choice.embedding).to(choice.device)
    centres = study.each("centres", seeds, lambda seed: find_centres(choice, styles, public, seed), "seeds")
    for name, seed in seeds.items():
        write_clients(choice, styles, centres[name], seed, runs.clients(seed))
    trainings.train_all([runs.training(arm, seed) for seed in seeds.values() for arm in ARMS], choice.parallel)

    def scored(seed: int) -> dict[str, Any]:
        scores = HeldOutScores(runs.data(seed), public, [judge, embedding])
        # the arms of a seed share their start
        states = {_key(arm, shown): path for arm in ARMS for shown, path in runs.states(arm, seed).items()}
        made = {name: images_of(path, choice.num_images, seed, choice.device) for name, path in states.items()}
        return {"floor": scores.floor} | {state: scores.score(images) for state, images in made.items()}

    found = study.each("scores", seeds, scored, "seeds")
    study.step("floor", lambda: {name: own["floor"] for name, own in found.items()})
    last = {arm: list(runs.states(arm, choice.seed).values())[-1] for arm in FORMS}
    study.step("traffic", lambda: {arm: asdict(Traffic(**read_checkpoint(own)[TRAFFIC])) for arm, own in last.items()})
    data, batch = runs.data(choice.seed), images_of(choice.network, choice.batch, choice.seed, choice.device)

    def message_errors() -> list[dict[str, Any]]:
        known = embed(embedding, public.inputs, cache=FeatureCache(CACHE))
        features = embed(embedding, data.examples.inputs)
        sizes = [size for size in SIZES if isinstance(size, Sketches) or size.number <= len(known)]
        clients = [features[client.train] for client in data.clients]
        return approximation_errors(sizes, clients, embed(embedding, batch), known)

    study.step("messages", message_errors)
    study.step("drift", lambda: drifts(styles, data, embedding, choice.batch, choice.seed))


def _key(arm: str, shown: int) -> str:
    return f"{arm if shown else START}, {shown} images"


def scored(scores: Numbers, places: Mapping[str, Iterable[int]], choice: Mmd2Choice) -> ScoredArms:
    by_state = {f"{seed}, {state}": one for seed, own in scores.items() for state, one in own.items()}
    arms: dict[str, Iterable[int]] = {START: [0], **places}
    states = states_in(by_state, arms, choice.seeds_of, lambda arm, seed, shown: f"{seed}, {_key(arm, shown)}")
    floors = [scores[str(seed)]["floor"] for seed in choice.seeds_of]
    used, beside = dict.fromkeys(FORMS, (choice.embedding,)), dict.fromkeys(FORMS, (CONTROL, None))
    return ScoredArms(states, floors, TITLES, used, beside, lambda _, embedding, own: SAME if embedding in own else "")


def tables_of(numbers: Numbers, found: ScoredArms, choice: Mmd2Choice) -> list[Table | str]:
    lines = [(("clients",), REAL_IMAGES), *(((arm,), arm) for arm in (START, *ARMS))]
    about = f"{choice.num_images:,} images to held-out ones, mean of {choice.seeds} seed(s)"
    note = "clients: their own training images, scored as if generated"
    tables: list[Table | str] = [
        found.table(f"{name}, {about}", name, ["generator"], lines, CONTROL, [note])
        for name in (choice.judge, choice.embedding)
    ]
    sent = []
    for arm, own in numbers["traffic"].items():
        asked = f"{own['questions']:,}" if own["questions"] else f"{choice.rounds} rounds"
        sent.append((arm, in_bytes(own["down"]), in_bytes(own["up"]), asked))
    title = f"sent in a run, {choice.clients} clients together"
    tables.append(make_table(title, ("form", "to the clients", "from the clients", "questions"), sent))
    headings = ("summary", "from the clients", "value off by", "gradient off by", "cosine of gradients")
    errors = [
        (row["summary"], in_bytes(row["up"]), f"{row['value']:.1%}", f"{row['gradient']:.1%}", f"{row['cosine']:.4f}")
        for row in numbers["messages"]
    ]
    tables.append(make_table("one message against asking at every step: a batch at the start", headings, errors))
    steps = len(next(iter(numbers["drift"].values())))
    drift = [f"drift of (b) from (a) after 1 to {steps} local steps of SGD, as a share of the way:"]
    for move, values in numbers["drift"].items():
        shown = ", ".join(f"{value:.2g}" for value in values)
        drift.append(f"  a first step of {move} of the weights' norm: {shown}")
    return [*tables, "\n".join(drift)]


def outcomes(found: ScoredArms, choice: Mmd2Choice) -> list[str]:
    judge, own, lines = choice.judge, choice.embedding, []
    for arm in FORMS:
        for where, how in ((judge, "that nothing was trained on"), (own, "trained on")):
            lines.append(found.verdict(f"{arm}: KID-avg in {where}, {how}, falls", arm, where, KID_AVG, "less"))
        for score in (RECALL, COVERAGE):
            text = f"{arm}: {score} of the clients in {judge} does not fall"
            lines.append(found.verdict(text, arm, judge, score, "not less"))
        own_fid, control, gone = (found.values(name, judge, FID_SERVER) for name in (arm, CONTROL, REAL_IMAGES))
        ways = [(value - start) / (end - start) for value, start, end in zip(own_fid, control, gone)]
        text = f"{arm}: FID-all to the server's images in {judge} goes {statistics.mean(ways):.1%} of the way from"
        text += f" {CONTROL} to the clients' own images (at most {max(ways):.1%})"
        lines.append(expectation(text, max(ways) < 0.5))
    states = [state for arm in ARMS for state in found.states[arm].values()]
    gaps = [[state[k][judge][KID_AVG] - state[k][judge][KID_ALL] for state in states] for k in range(choice.seeds)]
    spread = max((max(each) - min(each)) / abs(statistics.mean(each)) for each in gaps)
    text = f"KID-avg - KID-all is one number for all generators of a seed, to {spread:.1e} of it"
    lines.append(expectation(text, spread < ALIKE))
    return lines + ([by_chance(4 * len(FORMS))] if choice.seeds > 1 else [])


def draw_samples(runs: Mmd2Runs, path: Path) -> Path:
    choice, seed = runs.choice, runs.choice.seed
    data = runs.data(seed)
    chosen = [int(client.train[k]) for k in range(COLUMNS) for client in data.clients if k < len(client.train)]
    rows = {"clients": data.examples.inputs[chosen[:COLUMNS]]}
    rows[START] = images_of(choice.network, COLUMNS, seed, choice.device)
    for arm in ARMS:
        rows[arm] = images_of(list(runs.states(arm, seed).values())[-1], COLUMNS, seed, choice.device)
    return draw_images({"one client image of each client in turn; then one latent a column": rows}, path)


def draw_curves(found: ScoredArms, choice: Mmd2Choice, path: Path) -> Path:
    """A row an embedding, a panel a score, over thousands of images shown: each seed, and their mean."""

    def panel(embedding: str, score: str) -> ArmPanel:
        real = found.mean(REAL_IMAGES, embedding, score)
        note = f"\nthe clients' training images: {real:.2f}" if score == COVERAGE else ""
        used = "MMD² minimised in it" if embedding == choice.embedding else "nothing trained on it"
        return found.panel(
            ARMS,
            embedding,
            score,
            unit=1000,
            title=TITLES[score] + note,
            label=f"{embedding}\n{used}" if score == PANELS[0] else "",
            # of these two the clients' images lie far above all others, whose lines they would leave flat
            levels={} if score in (COVERAGE, FID_SERVER) else {REAL_IMAGES: [real]},
        )

    panels = [[panel(embedding, score) for score in PANELS] for embedding in (choice.judge, choice.embedding)]
    about = f"{choice.network.stem} towards {choice.clients} clients; scores to their held-out images"
    title = f"{about}; {REAL_IMAGES}: the clients' training images"
    return draw_panels(panels, STYLES, path, title, "thousands of images")


SEARCHED = 20_000  # latents, at most, among which centres are looked for
PUBLIC = 10_000  # of the server's images, at most, that are compared with
NEIGHBOURS = 5  # a centre's nearest images, which must all have the attribute
STAMP = ".made"  # in the clients' folder: what they were made of


def find_centres(choice: Mmd2Choice, styles: TruncatedStyles, known: Examples, seed: int) -> list[int]:
    """Numbers of latents whose images show the attribute, as their nearest server's images do: the first ones."""
    if choice.centres is not None:
        return list(choice.centres)
    if choice.attribute not in known.classes:
        names = ", ".join(known.classes) or "none"
        raise ValueError(
            f"attribute={choice.attribute!r} is no class of {known.name}, which has {names}; or give --centres"
        )
    embedding = load_embedding(choice.embedding).to(choice.device)
    text = f"embedding {known.name} with {embedding.name}"
    features = embed(embedding, known.inputs, description=text, cache=FeatureCache(CACHE))
    has = known.labels == known.classes.index(choice.attribute)
    found: list[int] = []
    for start in track(range(0, SEARCHED, BATCH), f"looking for {choice.attribute}", SEARCHED // BATCH, "batches"):
        numbers = range(start, start + BATCH)
        latents = torch.cat([latent(styles, seed, k) for k in numbers])
        images = styles.make(styles.mean, 1.0, latents, generator(0, "noise of centres"))
        near = torch.cdist(embed(embedding, images).double(), features.double()).topk(NEIGHBOURS, largest=False).indices
        shows = has[near].all(dim=1)
        found += [number for number, yes in zip(numbers, shows.tolist()) if yes]
        if len(found) >= choice.clients:
            return found[: choice.clients]
    raise ValueError(
        f"of {SEARCHED:,} images of {choice.network} {len(found)} show {choice.attribute!r}, and {choice.clients} are"
        " needed; choose another attribute, fewer clients, or give --centres"
    )


def latent(styles: TruncatedStyles, seed: int, number: int) -> Tensor:
    return styles.latents(1, generator(seed, "centre", number))


def write_clients(choice: Mmd2Choice, styles: TruncatedStyles, centres: list[int], seed: int, root: Path) -> Path:
    """A folder of PNGs for every client below a root, unless it is there; made anew if it is of something else."""
    made_of: dict[str, Any] = {"network": styles.fingerprint(), "centres": centres, "seed": seed}
    made_of |= {"images": choice.client_images, "truncation": choice.client_truncation}
    stamp = root / STAMP
    if stamp.is_file() and read_json(stamp) == made_of:
        return root
    shutil.rmtree(root, ignore_errors=True)
    for client, centre in enumerate(track(centres, f"making clients of seed {seed}", len(centres), "clients")):
        folder = root / f"client-{client:02d}"
        folder.mkdir(parents=True)
        path = "images of the client around", centre
        middle = styles.centre(seed, centre)
        images = styles.batches(middle, choice.client_truncation, choice.client_images, seed, *path)
        for number, image in enumerate(chain.from_iterable(images)):
            save_png(folder / f"{number:05d}.png", image)
    stamp.write_text(json.dumps(made_of))  # last: what was cut short has none
    return root
