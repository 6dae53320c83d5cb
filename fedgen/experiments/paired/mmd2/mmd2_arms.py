"""Options and runs of `mmd2_finetune`: a control and three forms of the objective, for every repetition."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.panels import require_device
from fedgen.experiments.engine.arms.arms_choice import ArmsChoice
from fedgen.experiments.engine.recipe_file import component, embedded_loss, start_of
from fedgen.experiments.engine.trainings import Training, kept_rounds
from fedgen.experiments.engine.unrelated import require_unrelated
from fedgen.experiments.ranking.truncation.truncated_styles import TruncatedStyles, read_styles
from fedgen.experiments.ranking.truncation.truncation_choice import NETWORK
from fedgen.losses.distributed import Traffic
from fedgen.models.checkpoint_file import read_checkpoint, read_generator
from fedgen.models.distributed_fine_tuning import TRAFFIC

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
        centres: numbers of the centres' latents, one a client, in place of looking for the attribute; those that were
            found are printed.
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

    Raises:
        ValueError: for numbers out of range, a judge that the objective uses, or a device that is not there.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "clients": 3, "client_images": 24, "rounds": 4, "iterations": 2, "batch": 16, "num_images": 100, "seeds": 1,
        "centres": lambda centres: centres and centres[:3], "local_steps": 1, "parallel": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)
    LEAST: ClassVar[Mapping[str, int]] = {
        **ArmsChoice.LEAST, "clients": 2, "client_images": 24, "rounds": CHECKPOINTS, "iterations": 1, "batch": 1,
        "local_steps": 1,
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
        if self.client_truncation < 0 or self.weight <= 0 or self.local_lr <= 0:
            raise ValueError(
                f"client_truncation={self.client_truncation} lies from 0 on; weight={self.weight} and"
                f" local_lr={self.local_lr} above 0"
            )
        require_device(self.device)

    def server(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """The server's data as recipes have it.

        Args:
            shape: of the network's images, (C, H, W).

        Raises:
            ValueError: for what is neither a known name nor a folder.
        """
        if self.server_data == "fashion-mnist":
            return component("fedgen.data.FashionMNIST", pad_to=shape[1])
        if not Path(self.server_data).is_dir():
            raise ValueError(f"server_data={self.server_data!r}: give fashion-mnist, or a folder of images")
        return component("fedgen.data.ImageFolder", root=self.server_data, size=shape[1], channels=shape[0])

    def resolved(self) -> dict[str, Any]:
        """Return what stands for the network beside its weights."""
        return {"data": self.network.stem}


@dataclass(frozen=True)
class Mmd2Runs:
    """The runs of all arms.

    Args:
        choice: how long they are.
        shape: of the network's images, (C, H, W).
        root: folder of the clients' folders and of the runs.
        fingerprint: of the network, for the runs' names.
    """

    choice: Mmd2Choice
    shape: tuple[int, ...]
    root: Path
    fingerprint: str

    @property
    def recipe(self) -> Path:
        """The recipe that all arms start from."""
        return self.choice.recipes / RECIPE

    def clients(self, seed: int) -> Path:
        """The folder of a repetition's clients."""
        return self.root / f"clients-seed{seed}"

    def training(self, arm: str, seed: int) -> Training:
        """An arm's run of a repetition."""
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
    """Return what a run had sent when it saved a checkpoint."""
    return Traffic(**read_checkpoint(path)[TRAFFIC])
