"""The runs of `mmd2_finetune`: a control and three forms of the objective, for every repetition."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.runs.checkpoint_names import checkpoint_name
from fedgen.experiments.engine.recipe_file import component, embedded_loss, start_of
from fedgen.experiments.engine.trainings import Training, kept_rounds
from fedgen.experiments.paired.mmd2.mmd2_choice import CHECKPOINTS, Mmd2Choice
from fedgen.experiments.ranking.truncation.truncated_styles import TruncatedStyles, read_styles
from fedgen.losses.distributed.distributed import Traffic
from fedgen.models.checkpoint_file import read_checkpoint, read_generator
from fedgen.models.fine_tuning.distributed_fine_tuning import TRAFFIC

CONTROL = "weight 0"
EXACT, LOCAL, MESSAGE = "(a) exact", "(b) local", "(c) one message"
FORMS = {EXACT: "exact", LOCAL: "local", MESSAGE: "message"}
ARMS = (CONTROL, *FORMS)
START = "start"
RECIPE = "mmd2_fashion_mnist.yaml"


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
    """What a run had sent when it saved a checkpoint."""
    return Traffic(**read_checkpoint(path)[TRAFFIC])
