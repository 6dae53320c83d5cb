"""The generators of `fid-loss-artifacts`: how its four arms are trained, and the checkpoints that they leave."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation.checkpoints import checkpoint_name, list_checkpoints, load_weights
from fedgen.evaluation.rebuild import rebuild
from fedgen.evaluation.sampling import draw_images, sampler_of
from fedgen.experiments.image_scores import ImageScores
from fedgen.experiments.runs import Training
from fedgen.images import from_uint8
from fedgen.seeds import isolated

GAN, REMOVED, FLOW, FLOW_FID = "critic stays", "critic removed", "likelihood", "likelihood + FID"
FAMILIES = {"WGAN-GP + FID": (GAN, REMOVED), "Glow": (FLOW, FLOW_FID)}  # control and treated
RECIPES = {
    GAN: "wgan_gp_digits_fid.yaml",
    REMOVED: "fid_alone_digits.yaml",
    FLOW: "glow_digits_fid.yaml",
    FLOW_FID: "glow_digits_fid.yaml",
}
HELD_OUT = 0.5  # of every client's images, so that there are as many to score against as were trained on
OPTIMISED = "pixels"


@dataclass(frozen=True)
class Lengths:
    """Rounds of the arms, and how many lie between kept checkpoints.

    Args:
        before: of the GAN until the critic goes.
        after: from then on, with and without it.
        gan_every: between the GAN's checkpoints; a divisor of `before`.
        removed_every: between those without the critic.
        flow: of both flows.
        flow_every: between theirs.
        images: samples to score, at most; as many as there are training images if None.
    """

    before: int = 900
    after: int = 600
    gan_every: int = 300
    removed_every: int = 120
    flow: int = 200
    flow_every: int = 50
    images: int | None = None


QUICK = Lengths(before=20, after=20, gan_every=20, removed_every=20, flow=2, flow_every=2, images=200)


@dataclass(frozen=True)
class Arms:
    """The runs of all arms, one of each a seed.

    Args:
        folder: of the runs.
        recipes: folder of the recipes.
        lengths: rounds.
        split_seed: of the clients' held-out images, which all runs of a family share.
    """

    folder: Path
    recipes: Path
    lengths: Lengths
    split_seed: int

    def training(self, arm: str, seed: int) -> Training:
        """One arm's run; that without the critic starts from a checkpoint of the one with it."""
        long = self.lengths
        rounds = {GAN: long.before + long.after, REMOVED: long.after}.get(arm, long.flow)
        every = {GAN: long.gan_every, REMOVED: long.removed_every}.get(arm, long.flow_every)
        kept = [{"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": every}}]
        given: dict[str, Any] = {
            "--trainer.max_epochs": rounds,
            "--trainer.callbacks": json.dumps(kept),
            "--trainer.logger": "false",
            "--data.init_args.held_out": HELD_OUT,
            "--data.init_args.seed": self.split_seed,
        }
        if arm == REMOVED:
            start = self.run_folder(GAN, seed) / checkpoint_name(long.before - 1)
            given["--model.init_args.generator"] = start
        if arm == FLOW:
            given["--model.init_args.generator_losses"] = "null"
        settings = tuple(str(text) for pair in given.items() for text in pair)
        return Training(self.recipes / RECIPES[arm], self.run_folder(arm, seed), seed, settings)

    def run_folder(self, arm: str, seed: int) -> Path:
        """E.g. "runs/critic-removed-0"."""
        return self.folder / f"{arm.replace(' + ', '-').replace(' ', '-').lower()}-{seed}"

    def steps(self, arm: str, round: int) -> int:
        """Rounds that a generator has had: those before the critic went count for both GANs."""
        return round + 1 + (self.lengths.before if arm == REMOVED else 0)

    def checkpoints(self, arm: str, seed: int) -> dict[int, Path]:
        """A run's kept checkpoints by `steps`.

        Raises:
            FileNotFoundError: if it has none.
        """
        folder = self.run_folder(arm, seed)
        kept = list_checkpoints(folder)
        if not kept:
            raise FileNotFoundError(f"{folder} holds no checkpoint; remove it, and it is trained again")
        return {self.steps(arm, round): path for round, path in kept.items()}


class Family:
    """The real images of a family's clients, and samples of its checkpoints.

    Args:
        arms: finished runs.
        name: of FAMILIES.
        seed: whose runs give clients (all seeds have the same) and of samples.
        unrelated: the embedding that nothing was trained on.
    """

    def __init__(self, arms: Arms, name: str, seed: int, unrelated: Embedding) -> None:
        self.arms, self.seed = arms, seed
        self._models = {arm: rebuild(arms.run_folder(arm, seed)) for arm in FAMILIES[name]}
        data = self._models[FAMILIES[name][0]][1]
        inputs = data.examples.inputs
        training, held_out = (inputs[data.pooled(part)] for part in ("train", "held_out"))
        count = min(len(training), arms.lengths.images or len(training))
        self.num_images, self.held_out = count, held_out
        self.scores = ImageScores(training, held_out, [load_embedding(OPTIMISED), unrelated])
        self.floor = {"samples": count, "real": len(training), "scores": self.scores.floor}

    def images(self, arm: str, path: Path, count: int | None = None) -> Tensor:
        """Samples uint8 [count, C, H, W] of a checkpoint, the same latents at every one; `num_images` by default."""
        model, _ = self._models[arm]
        load_weights(model, path)
        return draw_images(sampler_of(model), count or self.num_images, self.seed, 0, description=f"sampling {arm}")

    def bits_per_dim(self, arm: str, path: Path) -> float:
        """Mean bits per dimension of the held-out images under a flow's checkpoint."""
        model: Any = self._models[arm][0]
        load_weights(model, path)
        with isolated():
            torch.manual_seed(self.seed)
            return float(model.bits_per_dim(from_uint8(self.held_out)).mean())
