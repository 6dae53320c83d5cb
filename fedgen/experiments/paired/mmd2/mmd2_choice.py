"""What `mmd2_finetune` is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedgen.evaluation.device import require_device
from fedgen.experiments.engine.choice import Choice
from fedgen.experiments.engine.recipe_file import component
from fedgen.experiments.engine.unrelated import require_unrelated
from fedgen.experiments.ranking.truncation.truncation_choice import NETWORK

CHECKPOINTS = 4  # kept of each run, evenly spaced


@dataclass(frozen=True)
class Mmd2Choice(Choice):
    """What the experiment is asked for; its fields are options of its command.

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
        parallel: runs at once.
        device: where images are made and embedded to score them, e.g. cuda; runs take what the recipe says.
        seed: of the first repetition.
        quick: a minute, to see that it runs: one seed, 3 clients of 24 images, 4 rounds of 2 iterations.

    Raises:
        ValueError: for numbers out of range, a judge that the objective uses, or a device that is not there.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "clients": 3, "client_images": 24, "rounds": 4, "iterations": 2, "batch": 16, "num_images": 100, "seeds": 1,
        "centres": lambda centres: centres and centres[:3], "local_steps": 1, "parallel": 1,
    }  # fmt: skip
    APART: ClassVar[tuple[str, ...]] = ("network",)

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
    parallel: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unrelated(self.judge, [self.embedding])
        if self.clients < 2 or self.client_images < 24 or self.client_images % 2:
            raise ValueError(
                f"clients={self.clients}, client_images={self.client_images}: at least 2 clients of an even number of"
                " images from 24, half of which are held out"
            )
        if self.centres is not None and len(set(self.centres)) != self.clients:
            raise ValueError(f"centres={list(self.centres)}: give {self.clients} different ones, one a client")
        if self.rounds < CHECKPOINTS or self.rounds % CHECKPOINTS:
            raise ValueError(f"rounds={self.rounds}: a multiple of {CHECKPOINTS}, the checkpoints that are kept")
        if min(self.iterations, self.batch, self.local_steps, self.seeds, self.parallel) < 1:
            raise ValueError("iterations, batch, local_steps, seeds and parallel count from 1")
        if self.client_truncation < 0 or self.weight <= 0 or self.local_lr <= 0:
            raise ValueError(
                f"client_truncation={self.client_truncation} lies from 0 on; weight={self.weight} and"
                f" local_lr={self.local_lr} above 0"
            )
        require_device(self.device)

    @property
    def seeds_of(self) -> range:
        """The repetitions' seeds."""
        return range(self.seed, self.seed + self.seeds)

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
