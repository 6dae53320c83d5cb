"""The generators of `fid-loss-artifacts`: how its four arms are trained, and the checkpoints that they leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation.generation.image_sampling import draw_images, sampler_of
from fedgen.evaluation.runs.checkpoint_names import checkpoint_name
from fedgen.evaluation.runs.checkpoints import load_weights
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine.image_scores import real_side
from fedgen.experiments.engine.recipe_file import start_of
from fedgen.experiments.engine.run_images import kept_checkpoints
from fedgen.experiments.engine.trainings import Training, kept_rounds
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
        images: samples to score, and real ones of each kind, at most; as many as clients hold out if None.
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
class ArtifactRuns:
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
        every = {GAN: long.gan_every, REMOVED: long.removed_every}.get(arm, long.flow_every)
        more: dict[str, Any] = {}
        if arm == REMOVED:
            more["model.init_args.generator"] = self.run_folder(GAN, seed) / checkpoint_name(long.before - 1)
        if arm == FLOW:
            more["model.init_args.generator_losses"] = None
        settings = kept_rounds(self.rounds(arm), every, self.split_seed, more=more)
        return Training(self.recipes / RECIPES[arm], self.run_folder(arm, seed), seed, settings)

    def rounds(self, arm: str) -> int:
        """Return the rounds of an arm's runs; those before the critic goes are the GAN's."""
        long = self.lengths
        return {GAN: long.before + long.after, REMOVED: long.after}.get(arm, long.flow)

    def run_folder(self, arm: str, seed: int) -> Path:
        """E.g. "glow_digits_fid-likelihood-split0-rounds200-seed0".

        That without the critic names its start, by rounds and by what the GAN's recipe says: one trained anew by
        another recipe is another start.
        """
        recipe, slug = RECIPES[arm].removesuffix(".yaml"), arm.replace(" + ", "-").replace(" ", "-").lower()
        start = ""
        if arm == REMOVED:
            start = f"-after{self.lengths.before}-of-{start_of(self.recipes / RECIPES[GAN])}"
        name = f"{recipe}-{slug}-split{self.split_seed}-rounds{self.rounds(arm)}{start}-seed{seed}"
        return self.folder / name

    def steps(self, arm: str, round: int) -> int:
        """Rounds that a generator has had: those before the critic went count for both GANs."""
        return round + 1 + (self.lengths.before if arm == REMOVED else 0)

    def checkpoints(self, arm: str, seed: int) -> dict[int, Path]:
        """A run's kept checkpoints by `steps`.

        Raises:
            FileNotFoundError: if it has none.
        """
        kept = kept_checkpoints(self.run_folder(arm, seed))
        return {self.steps(arm, round): path for round, path in kept.items()}


class Family:
    """The real images of a family's clients, and samples of its checkpoints.

    Args:
        arms: finished runs.
        name: of FAMILIES.
        seeds: of the runs; the first one's is that of samples.
        unrelated: the embedding that nothing was trained on.

    Raises:
        ValueError: if two runs had other clients.
    """

    def __init__(self, arms: ArtifactRuns, name: str, seeds: Sequence[int], unrelated: Embedding) -> None:
        self.seed = seeds[0]
        self._models = {arm: rebuild(arms.run_folder(arm, self.seed))[0] for arm in FAMILIES[name]}
        folders = [arms.run_folder(arm, seed) for arm in FAMILIES[name] for seed in seeds]
        embeddings = [load_embedding(OPTIMISED), unrelated]
        self.scores, self.held_out = real_side(folders, embeddings, arms.lengths.images)
        count = len(self.held_out)
        self.floor = {"samples": count, "real": count, "scores": self.scores.floor}

    def images(self, arm: str, path: Path, count: int | None = None) -> Tensor:
        """Samples uint8 [count, C, H, W] of a checkpoint, of the same latents at every one; as many as real ones."""
        model = self._models[arm]
        load_weights(model, path)
        number = count or len(self.held_out)
        return draw_images(sampler_of(model), number, self.seed, 0, description=f"sampling {arm}")

    def bits_per_dim(self, arm: str, path: Path) -> float:
        """Mean bits per dimension of the held-out images under a flow's checkpoint."""
        model: Any = self._models[arm]
        load_weights(model, path)
        with isolated():
            torch.manual_seed(self.seed)
            return float(model.bits_per_dim(from_uint8(self.held_out)).mean())
