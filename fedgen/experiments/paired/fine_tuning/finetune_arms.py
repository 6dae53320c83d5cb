"""The generators of `fid_finetune`: what they start from, the three ways of fine-tuning, and their images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedgen.evaluation.runs.checkpoint_names import LAST, checkpoint_name
from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.engine.recipe_file import component, embedded_loss, start_of
from fedgen.experiments.engine.trained_runs import Plan, TrainedRun, protocol_of, runs_of
from fedgen.experiments.engine.trainings import Training, kept_rounds
from fedgen.images import to_uint8
from fedgen.models.checkpoint_file import read_generator
from fedgen.models.sampling import decode
from fedgen.seeds import generator

PIXELS, NETWORK = "pixels", "efficientnet-lite0-32"
ALL, FIRST, BOTH = "all layers", "first layer", "two embeddings"
ARMS = {ALL: (PIXELS,), FIRST: (PIXELS,), BOTH: (PIXELS, NETWORK)}  # and the embeddings that they train on
CHECKPOINTS, QUICK_CHECKPOINTS = 8, 2  # kept of each run, evenly spaced
Precision = Literal["bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Tuning:
    """Options for fine-tuning a data set's generators.

    Args:
        recipe: file name.
        judge: an embedding that nothing is trained on, and that was not trained on the clients' images.
        first: shell patterns of the first layer's parameters, its BatchNorm included.
        steps: of the arms whose embedding costs nothing.
        steps_both: of the arm with a network among its embeddings.
    """

    recipe: str
    judge: str
    first: tuple[str, ...]
    steps: int
    steps_both: int


TUNINGS = {
    "digits": Tuning("finetune_digits.yaml", "classifier-mnist5k", ("body.0.*", "body.1.*"), 400, 48),
    "mnist5k": Tuning("finetune_mnist5k.yaml", "inception-v3-compat", ("body.0.*", "body.2.*"), 80, 40),
}


def tuning_of(data: str) -> Tuning:
    """Return how a data set's generators are fine-tuned.

    Raises:
        ValueError: for other data, listing those there are.
    """
    if data not in TUNINGS:
        raise ValueError(f"no fine-tuning for data {data!r}; choose one of {', '.join(TUNINGS)}")
    return TUNINGS[data]


@dataclass(frozen=True)
class TuningRuns:
    """The runs of all arms: one of each for every generator that is fine-tuned.

    Args:
        data: a name in TUNINGS.
        plan: seeds of the generators and of their fine-tuning; folders.
        steps: as in `Tuning`; the data's own if None.
        steps_both: likewise.
        precision: of the fine-tuning; full if None.

    Raises:
        ValueError: for other data, fewer steps than checkpoints, or another precision.
    """

    data: str
    plan: Plan
    steps: int | None = None
    steps_both: int | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        tuning_of(self.data)
        if self.precision not in (None, *get_args(Precision)):
            raise ValueError(f"precision={self.precision!r}: give one of {', '.join(get_args(Precision))}, or none")
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
        asked, usual = (self.steps_both, own.steps_both) if arm == BOTH else (self.steps, own.steps)
        steps = (usual // 10 if self.plan.quick else usual) if asked is None else asked
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
        losses = embedded_loss(component("fedgen.losses.FastFIDLoss"), ARMS[arm], cache=str(CACHE))
        given: dict[str, Any] = {
            "model.init_args.generator": base.folder / LAST,
            "model.init_args.layers": own.first if arm == FIRST else ["*"],
            "model.init_args.generator_losses": losses,
            "data.init_args.iterations": self.length(arm) // self.checkpoints,
        }
        if self.precision is not None:
            given["trainer.precision"] = self.precision
        if self.plan.quick:
            sizes = {"batch": 200, "chunk": 50, "fixed_latents": 200}
            given |= {f"model.init_args.{name}": size for name, size in sizes.items()}
        settings = kept_rounds(self.checkpoints, 1, self.plan.split_seed, protocol.held_out, given)
        return Training(self.plan.recipes / own.recipe, self._folder(arm, base), base.seed, settings)

    def recipes(self) -> list[Path]:
        """Those of the GANs and of their fine-tuning."""
        names = protocol_of(self.data).series[0].recipe, TUNINGS[self.data].recipe
        return [self.plan.recipes / name for name in names]

    def _folder(self, arm: str, base: TrainedRun) -> Path:
        # the base by its place and by what its recipe says: one trained anew by another recipe is another start
        own, steps = TUNINGS[self.data].recipe.removesuffix(".yaml"), f"steps{self.length(arm)}"
        how = [arm.replace(" ", "-"), steps, *([self.precision] if self.precision else [])]
        return self.plan.runs / "-".join([own, *how, base.folder.name, start_of(self.recipes()[0])])

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
