"""The generators of `fid_finetune`: what they start from, the three ways of fine-tuning, and their images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.checkpoints import LAST, checkpoint_name
from fedgen.experiments.runs import Training
from fedgen.experiments.sources import CACHE
from fedgen.experiments.trained import Plan, TrainedRun, protocol_of, runs_of
from fedgen.images import to_uint8
from fedgen.models.checkpoint_file import read_generator
from fedgen.models.sampling import decode
from fedgen.seeds import generator

PIXELS, NETWORK = "pixels", "efficientnet-lite0-32"
ALL, FIRST, BOTH = "all layers", "first layer", "two embeddings"
ARMS = {ALL: (PIXELS,), FIRST: (PIXELS,), BOTH: (PIXELS, NETWORK)}  # and the embeddings that they train on
CHECKPOINTS, QUICK_CHECKPOINTS = 8, 2  # kept of each run, evenly spaced


@dataclass(frozen=True)
class Tuning:
    """How a data set's generators are fine-tuned.

    Args:
        recipe: file name.
        first: shell patterns of the first layer's parameters, its BatchNorm included.
        steps: of the arms whose embedding costs nothing.
        steps_both: of the arm with a network among its embeddings.
    """

    recipe: str
    first: tuple[str, ...]
    steps: int
    steps_both: int


TUNINGS = {
    "digits": Tuning("finetune_digits.yaml", ("body.0.*", "body.1.*"), 400, 48),
    "mnist5k": Tuning("finetune_mnist5k.yaml", ("body.0.*", "body.2.*"), 80, 40),
}


@dataclass(frozen=True)
class Arms:
    """The runs of all arms: one of each for every generator that is fine-tuned.

    Args:
        data: a name in TUNINGS.
        plan: seeds of the generators and of their fine-tuning; folders.
        steps: as in `Tuning`; the data's own if None.
        steps_both: likewise.

    Raises:
        ValueError: for other data, or fewer steps than checkpoints.
    """

    data: str
    plan: Plan
    steps: int | None = None
    steps_both: int | None = None

    def __post_init__(self) -> None:
        if self.data not in TUNINGS:
            raise ValueError(f"no fine-tuning for data {self.data!r}; choose one of {', '.join(TUNINGS)}")
        for arm in ARMS:
            if self.length(arm) < self.checkpoints:
                raise ValueError(
                    f"{arm}: {self.length(arm)} step(s) of fine-tuning; at least {self.checkpoints}, one a checkpoint"
                )

    @property
    def checkpoints(self) -> int:
        """Kept of each run."""
        return QUICK_CHECKPOINTS if self.plan.quick else CHECKPOINTS

    def length(self, arm: str) -> int:
        """Steps of an arm, a multiple of its checkpoints."""
        own = TUNINGS[self.data]
        tenth = 10 if self.plan.quick else 1
        steps = (self.steps_both or own.steps_both // tenth) if arm == BOTH else (self.steps or own.steps // tenth)
        return steps // self.checkpoints * self.checkpoints

    def bases(self) -> list[TrainedRun]:
        """The GANs whose generators are fine-tuned, which other experiments share; one a seed.

        Raises:
            FileNotFoundError: if there is no such recipe.
        """
        protocol = protocol_of(self.data)
        series = replace(protocol.series[0], intervals=protocol.series[0].intervals[:1])
        return runs_of(series, protocol.held_out, self.plan)

    def training(self, arm: str, base: TrainedRun) -> Training:
        """An arm's run from the last checkpoint of a GAN."""
        own, protocol = TUNINGS[self.data], protocol_of(self.data)
        loss = {
            "class_path": "fedgen.losses.EmbeddedLoss",
            "init_args": {
                "loss": {"class_path": "fedgen.losses.FastFIDLoss"},
                "embeddings": list(ARMS[arm]),
                "cache": str(CACHE),
            },
        }
        kept = [{"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 1}}]
        given: dict[str, Any] = {
            "--model.init_args.generator": base.folder / LAST,
            "--model.init_args.layers": json.dumps(own.first if arm == FIRST else ["*"]),
            "--model.init_args.generator_losses": json.dumps([loss]),
            "--trainer.max_epochs": self.checkpoints,
            "--trainer.callbacks": json.dumps(kept),
            "--trainer.logger": "false",
            "--data.init_args.iterations": self.length(arm) // self.checkpoints,
            "--data.init_args.held_out": protocol.held_out,
            "--data.init_args.seed": self.plan.split_seed,
        }
        if self.plan.quick:
            sizes = {"batch": 200, "chunk": 50, "fixed_latents": 200}
            given |= {f"--model.init_args.{name}": size for name, size in sizes.items()}
        settings = tuple(str(text) for pair in given.items() for text in pair)
        return Training(self.plan.recipes / own.recipe, self._folder(arm, base), base.seed, settings)

    def _folder(self, arm: str, base: TrainedRun) -> Path:
        recipe = TUNINGS[self.data].recipe.removesuffix(".yaml")
        name = f"{recipe}-{arm.replace(' ', '-')}-steps{self.length(arm)}-{base.folder.name}"
        return self.plan.runs / name

    def states(self, arm: str, base: TrainedRun) -> dict[int, Path]:
        """The checkpoints of a finished run by steps of fine-tuning; 0 is what it started from."""
        each, folder = self.length(arm) // self.checkpoints, self._folder(arm, base)
        later = {each * (k + 1): folder / checkpoint_name(k) for k in range(self.checkpoints)}
        return {0: base.folder / LAST} | later


def images_of(path: Path, count: int, seed: int) -> Tensor:
    """Images uint8 [count, C, H, W] of a checkpoint's generator: of the same latents whatever the checkpoint."""
    network: Any = read_generator(path)
    latents = torch.randn(count, network.latent_dim, generator=generator(seed, "latents of fid-finetune"))
    return to_uint8(decode(network, latents, batch_size=250))


def tracked(states: Mapping[int, Path], rows: int, columns: int, seed: int) -> dict[int, Tensor]:
    """Images of the same latents, uint8 [columns, C, H, W], of evenly spaced states, by steps."""
    steps = list(states)
    places = [round(k * (len(steps) - 1) / (rows - 1)) for k in range(rows)]
    return {steps[place]: images_of(states[steps[place]], columns, seed) for place in dict.fromkeys(places)}
