"""Options, runs and measures of `mmd2_finetune`: a control and three forms of the objective, for every repetition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.data import Examples
from fedgen.embeddings import Embedding, FeatureCache, embed
from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.panels import require_device
from fedgen.evaluation.reference import Reference
from fedgen.experiments.engine.features import CACHE
from fedgen.experiments.engine.scored_arms import require_unrelated
from fedgen.experiments.engine.study import ArmsChoice
from fedgen.experiments.engine.trainings import Training, component, embedded_loss, kept_rounds, start_of
from fedgen.experiments.ranking.styles import NETWORK, TruncatedStyles, read_styles
from fedgen.losses import EmbeddedLoss, MMD2Loss
from fedgen.losses.distributed import Traffic
from fedgen.losses.one_message import Nystrom, Sketches, approximation_errors, local_drift
from fedgen.models.checkpoint_file import read_checkpoint, read_generator
from fedgen.models.distributed_fine_tuning import TRAFFIC
from fedgen.models.stylegan2.generator import StyleGAN2Generator
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
        server_data: the images that the server has and the network was trained on: fashion-mnist, or a folder, with a
            folder for each class unless centres are given.
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
            return component("fedgen.data.FashionMNIST", pad_to=shape[1])
        if not Path(self.server_data).is_dir():
            raise ValueError(f"server_data={self.server_data!r}: give fashion-mnist, or a folder of images")
        return component("fedgen.data.ImageFolder", root=self.server_data, size=shape[1], channels=shape[0])

    def resolved(self) -> dict[str, Any]:
        return {"data": self.network.stem}


@dataclass(frozen=True)
class Mmd2Runs:
    """The runs of all arms."""

    choice: Mmd2Choice  # how long they are
    shape: tuple[int, ...]  # of the network's images, (C, H, W)
    root: Path  # folder of the clients' folders and of the runs
    fingerprint: str  # of the network, for the runs' names

    @property
    def recipe(self) -> Path:
        return self.choice.recipes / RECIPE

    def clients(self, seed: int) -> Path:
        return self.root / f"clients-seed{seed}"

    def training(self, arm: str, seed: int) -> Training:
        choice, local = self.choice, arm == LOCAL
        # without weight the score is of no matter, and its images are those of the game: the cheapest will do
        embedding, weight = (["pixels"], 0.0) if arm == CONTROL else ([choice.embedding], choice.weight)
        (objective,) = embedded_loss(component("fedgen.losses.MMD2Loss"), embedding, weight=weight)
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
        if local:
            steps = component("fedgen.federated.FedAvgStrategy", communication_interval=choice.local_steps)
            lr = {"server_iterations": choice.iterations, "images": choice.batch, "lr": choice.local_lr}
            given |= {"trainer.strategy": steps, "model.init_args.local": lr}
        settings = kept_rounds(choice.rounds, choice.rounds // CHECKPOINTS, 0, more=given)
        return Training(self.recipe, self._folder(arm, seed), seed, settings)

    def _folder(self, arm: str, seed: int) -> Path:
        # runs of another network or recipe are others; of another choice, the study refuses the folder
        own = [arm.replace(" ", "-").strip("()").replace(")", ""), f"seed{seed}", self.fingerprint[:8]]
        own += [start_of(self.recipe), *(["quick"] if self.choice.quick else [])]
        return self.root / "runs" / "-".join(own)

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


def sent(path: Path) -> Traffic:
    return Traffic(**read_checkpoint(path)[TRAFFIC])


KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE = "kid avg", "kid all", "fid server", "recall", "coverage"
TITLES = {
    KID_AVG: "KID-avg",
    KID_ALL: "KID-all",
    RECALL: "recall",
    COVERAGE: "coverage",
    FID_SERVER: "FID-all to the server's images",
}
SIZES = (Sketches(250), Sketches(1000), Sketches(4000), Nystrom(128), Nystrom(512), Nystrom(2048))
MOVES = (1e-7, 1e-6, 1e-5)  # how far a first step of SGD goes, as a share of the norm of the weights, in the drift
STEPS = 8  # of SGD


@dataclass(frozen=True, eq=False)
class _Side:
    embedding: Embedding
    reference: Reference
    server: Gaussian


class HeldOutScores:
    """KID to the clients' held-out images, recall and coverage of their pool, and FID to the server's, by embedding."""

    def __init__(self, data: FederatedDataModule, public: Examples, embeddings: Sequence[Embedding]) -> None:
        self._sides = []
        for embedding in embeddings:
            features = embed(embedding, data.examples.inputs, description=f"embedding clients with {embedding.name}")
            reference = Reference([features[client.held_out] for client in data.clients], ["kid", "recall", "coverage"])
            text = f"embedding {public.name} with {embedding.name}"
            theirs = summarize(embed(embedding, public.inputs, description=text, cache=FeatureCache(CACHE)))
            self._sides.append(_Side(embedding, reference, theirs))
        training = torch.cat([client.train for client in data.clients])
        self.floor = self.score(data.examples.inputs[training])

    def score(self, images: Tensor) -> dict[str, dict[str, float]]:
        """TITLES of images uint8 [m, C, H, W], by embedding."""
        return {side.embedding.name: self._score(side, images) for side in self._sides}

    def _score(self, side: _Side, images: Tensor) -> dict[str, float]:
        features = embed(side.embedding, images, description=f"embedding samples with {side.embedding.name}")
        values = {score.name: score.values for score in side.reference.score(features, errors=False)}
        return {
            KID_AVG: values["kid"]["avg"],
            KID_ALL: values["kid"]["all"],
            RECALL: values["recall"]["all"],
            COVERAGE: values["coverage"]["all"],
            FID_SERVER: frechet_distance(summarize(features), side.server)[0],
        }


def message_errors(
    data: FederatedDataModule, public: Examples, images: Tensor, embedding: Embedding
) -> list[dict[str, Any]]:
    """Rows of `approximation_errors` for SIZES, of a batch of generated images in the objective's embedding."""
    known = embed(embedding, public.inputs, cache=FeatureCache(CACHE))
    features = embed(embedding, data.examples.inputs)
    sizes = [size for size in SIZES if isinstance(size, Sketches) or size.number <= len(known)]
    clients = [features[client.train] for client in data.clients]
    return approximation_errors(sizes, clients, embed(embedding, images), known)


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
