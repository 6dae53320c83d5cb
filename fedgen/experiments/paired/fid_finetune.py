"""A trained generator fine-tuned on FID alone, its critic gone: what becomes of its images, and of scores of them.

Section 3 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) fine-tunes BigGAN so (Fig. 2). Here
a federated WGAN-GP: all layers on FID in pixels, the first layer alone, and all layers on two embeddings in balance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import load_embedding
from fedgen.evaluation.names import LAST, checkpoint_name
from fedgen.experiments.engine import scored_arms, trainings
from fedgen.experiments.engine.arm_panels import REAL, draw_images, draw_panels
from fedgen.experiments.engine.features import CACHE
from fedgen.experiments.engine.paired_seeds import by_chance, verdict_on
from fedgen.experiments.engine.scored_checkpoints import TrainedChoice
from fedgen.experiments.engine.study import ScoredArmsChoice, Study
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
    recipe: str
    judge: str  # an embedding that nothing is trained on, and that was not trained on the clients' images
    first: tuple[str, ...]  # shell patterns of the first layer's parameters, its BatchNorm included
    steps: int  # of the arms whose embedding costs nothing
    steps_both: int  # of the arm with a network among its embeddings


TUNINGS = {
    "digits": Tuning("finetune_digits.yaml", "classifier-mnist5k", ("body.0.*", "body.1.*"), 400, 48),
    "mnist5k": Tuning("finetune_mnist5k.yaml", "inception-v3-compat", ("body.0.*", "body.2.*"), 80, 40),
}


@dataclass(frozen=True)
class TuningChoice(ScoredArmsChoice):
    """Options of fid-finetune; its fields are options of the command.

    Args:
        data: digits or mnist5k.
        embedding: to score in besides pixels and efficientnet-lite0-32, trained neither on nor with the clients'
            images: classifier-mnist5k for digits; for mnist5k inception-v3-compat, whose weights are downloaded.
        seeds: generators, each with fine-tunings of its own.
        steps: of fine-tuning in pixels; 400 for digits, 80 for mnist5k, a tenth with --quick.
        steps_both: with two embeddings, where a step costs a hundred times as much; 48 for digits, 40 for mnist5k.
        precision: of the fine-tuning: bf16-mixed, or 16-mixed on a GPU; full by default.
        seed: of the first generator, the clients' held-out images and the images scored.
        quick: about a minute, to see that it runs: generators of a twentieth of the rounds, small batches.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "parallel": lambda _: 2}
    APART: ClassVar[tuple[str, ...]] = ("embedding", "steps_both")

    data: str = "digits"
    steps: int | None = None
    steps_both: int | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data not in TUNINGS:
            raise ValueError(f"no fine-tuning for data {self.data!r}; choose one of {', '.join(TUNINGS)}")
        scored_arms.require_unrelated(self.judge, (PIXELS, NETWORK), self.data)
        if self.precision not in (None, *get_args(Precision)):
            raise ValueError(f"precision={self.precision!r}: give one of {', '.join(get_args(Precision))}, or none")
        for arm in ARMS:
            if self.length(arm) < self.checkpoints:
                raise ValueError(
                    f"{arm}: {self.length(arm)} step(s) of fine-tuning; at least {self.checkpoints}, one a checkpoint"
                )

    @property
    def tuning(self) -> Tuning:
        return TUNINGS[self.data]

    @property
    def judge(self) -> str:
        return self.embedding or self.tuning.judge

    def resolved(self) -> dict[str, Any]:
        steps = {arm: self.length(arm) for arm in ARMS}
        return {"unrelated": self.judge, "steps": steps, "recipes": trainings.fingerprints(self.files())}

    @property
    def checkpoints(self) -> int:
        return QUICK_CHECKPOINTS if self.quick else CHECKPOINTS

    def length(self, arm: str) -> int:
        """Steps of an arm, a multiple of its checkpoints."""
        own = self.tuning
        asked, usual = (self.steps_both, own.steps_both) if arm == BOTH else (self.steps, own.steps)
        steps = (usual // 10 if self.quick else usual) if asked is None else asked
        return steps // self.checkpoints * self.checkpoints

    @cached_property
    def bases(self) -> list[trainings.TrainedRun]:
        """The GANs whose generators are fine-tuned, which other experiments share; one a seed."""
        protocol = trainings.protocol_of(self.data)
        series = replace(protocol.series[0], intervals=protocol.series[0].intervals[:1])
        kept = TrainedChoice.QUICK["checkpoints"] if self.quick else protocol.checkpoints
        return trainings.runs_of(series, protocol.held_out, self, kept, self.quick)

    def training(self, arm: str, base: trainings.TrainedRun) -> trainings.Training:
        own, held_out = self.tuning, trainings.protocol_of(self.data).held_out
        losses = trainings.embedded_loss(trainings.component("fedgen.losses.FastFIDLoss"), ARMS[arm], cache=str(CACHE))
        given: dict[str, Any] = {
            "model.init_args.generator": base.folder / LAST,
            "model.init_args.layers": own.first if arm == FIRST else ["*"],
            "model.init_args.generator_losses": losses,
            "data.init_args.iterations": self.length(arm) // self.checkpoints,
        }
        if self.precision is not None:
            given["trainer.precision"] = self.precision
        if self.quick:
            sizes = {"batch": 200, "chunk": 50, "fixed_latents": 200}
            given |= {f"model.init_args.{name}": size for name, size in sizes.items()}
        settings = trainings.kept_rounds(self.checkpoints, 1, self.seed, given, held_out)
        # the base by its place and by what its recipe says: one trained anew by another recipe is another start
        name = [own.recipe.removesuffix(".yaml"), arm.replace(" ", "-"), f"steps{self.length(arm)}"]
        name += [*([self.precision] if self.precision else []), base.folder.name, trainings.start_of(self.files()[0])]
        return trainings.Training(self.recipes / own.recipe, self.folder / "-".join(name), base.seed, settings)

    def files(self) -> list[Path]:
        return [self.recipes / name for name in (trainings.protocol_of(self.data).series[0].recipe, self.tuning.recipe)]

    def states(self, arm: str, base: trainings.TrainedRun) -> dict[int, Path]:
        """The checkpoints of a finished run by steps of fine-tuning; 0 is what it started from."""
        each, folder = self.length(arm) // self.checkpoints, self.training(arm, base).folder
        later = {each * (k + 1): folder / checkpoint_name(k) for k in range(self.checkpoints)}
        return {0: base.folder / LAST} | later


def images_of(path: Path, count: int, seed: int) -> Tensor:
    """Images uint8 [count, C, H, W] of a checkpoint's generator: of the same latents whatever the checkpoint."""
    network: Any = read_generator(path)
    latents = torch.randn(count, network.latent_dim, generator=generator(seed, "latents of fid-finetune"))
    return to_uint8(decode(network, latents, batch_size=250))


def tracked(states: Mapping[int, Path], rows: int, columns: int, seed: int) -> dict[str, Tensor]:
    """Images of the same latents, uint8 [columns, C, H, W], of evenly spaced states, by steps."""
    steps = list(states)
    places = [round(k * (len(steps) - 1) / (rows - 1)) for k in range(rows)]
    return {str(steps[place]): images_of(states[steps[place]], columns, seed) for place in dict.fromkeys(places)}


START = "start"
ROWS, COLUMNS = 5, 12  # of an arm's grid of tracked images
GRID = "tracked_images.png"
STYLES = {
    ALL: {"color": "#1f5fa8", "marker": "o"},
    FIRST: {"color": "#3a8a3a", "marker": "s"},
    BOTH: {"color": "#c4560b", "marker": "^"},
    scored_arms.REAL_IMAGES: REAL,
}
PANELS = {"fid, held out": "FID to held-out images", "coverage": "coverage of held-out images"}


def fid_finetune(**options: Any) -> None:
    """Fine-tunes trained generators on FID alone in three ways and scores them before, on the way and after.

    With digits a quarter of an hour on one core, beside the generators themselves: two minutes each, shared with other
    experiments.
    """
    choice = TuningChoice(**options)
    study = choice.study("fid-finetune")
    states = {  # the arms of a seed share their start
        _key(arm, base.seed, steps): path
        for base in choice.bases
        for arm in ARMS
        for steps, path in choice.states(arm, base).items()
    }
    if study.missing("floor") or len(study.numbers.get("scores", {})) < len(states):
        measure(study, choice, states)
    places = {arm: choice.states(arm, choice.bases[0]) for arm in ARMS}
    if not study.path(GRID).exists():
        rows = {arm: tracked(places[arm], ROWS, COLUMNS, choice.seed) for arm in ARMS}
        blocks = {f"{arm}: FID in {' and '.join(ARMS[arm])}": own for arm, own in rows.items()}
        draw_images(blocks, study.path(GRID), "steps", [STYLES[arm]["color"] for arm in ARMS])
    known = scored_arms.states_in(study.numbers["scores"], {START: [0], **places}, choice.seeds_of, _key)
    beside = dict.fromkeys(ARMS, (START, None))
    found = scored_arms.ScoredArms(known, [study.numbers["floor"]], scored_arms.TITLES, ARMS, beside)
    tables: list[Table | str] = [table_of(found, name) for name in study.numbers["floor"]]
    tables += [*outcomes(found, choice.judge), f"tracked images: {study.path(GRID)}"]
    study.report(tables, draw_curves(found, study.figure))


def measure(study: Study, choice: TuningChoice, states: Mapping[str, Path]) -> None:
    judge = load_embedding(choice.judge, weights=choice.weights)
    embeddings = [load_embedding(PIXELS), load_embedding(NETWORK), judge]
    trainings.train_runs(choice.bases, choice)
    tunings = [choice.training(arm, base) for base in choice.bases for arm in ARMS]
    trainings.train_all(tunings, choice.parallel)
    folders = [base.folder for base in choice.bases] + [one.folder for one in tunings]
    scores, held_out = scored_arms.real_side(folders, embeddings)
    count = len(held_out)
    study.step("images", lambda: count)
    study.step("floor", lambda: scores.floor)
    study.each("scores", states, lambda path: scores.score(images_of(path, count, choice.seed)), "generators")


def _key(arm: str, seed: int, steps: int) -> str:
    return f"{arm if steps else START}, seed {seed}, step {steps}"


def table_of(found: scored_arms.ScoredArms, embedding: str) -> Table:
    lines: list[scored_arms.Line] = [((name,), name) for name in (scored_arms.REAL_IMAGES, START)]
    lines += [((f"{arm}, {max(found.states[arm])} steps",), arm) for arm in ARMS]
    title = f"{embedding}, mean of {len(found.at(START))} seed(s)"
    return found.table(title, embedding, ["generator"], lines, "the start")


def outcomes(found: scored_arms.ScoredArms, judge: str) -> list[str]:
    lines: list[str] = []
    for arm, (own, *_) in ARMS.items():
        steps = list(found.states[arm])
        middle, (real,) = steps[len(steps) // 2], found.values(scored_arms.REAL_IMAGES, own, "fid")
        ends, trace = found.values(arm, own, "fid"), found.mean(arm, judge, "trace")
        below = f"{arm}: to {found.mean(arm, own, 'fid'):.3g}, below the {real:.3g} of held-out real images"
        rise = f"{arm}: from step {middle} on FID to held-out images in {judge} rises"
        spread = f"{arm}: images spread less than at the start, trace in {judge} {trace:.3g} of the data's"
        lines += [
            found.verdict(f"{arm}: FID to training images in {own}, trained on, falls", arm, own, "fid", "less"),
            verdict_on(below, ([real] * len(ends), ends), "less"),
            found.verdict(f"{arm}: it falls from step {middle} on too", arm, own, "fid", "less", middle),
            found.verdict(rise, arm, judge, scored_arms.HELD_OUT, "more", middle),
            found.verdict(spread, arm, judge, "trace", "less"),
        ]
    return lines + ([by_chance(len(lines))] if len(found.at(START)) > 1 else [])


def draw_curves(found: scored_arms.ScoredArms, path: Path) -> Path:
    def note(embedding: str) -> str:
        used = [arm for arm in ARMS if embedding in ARMS[arm]]
        all_or_none = "nothing trained on it" if not used else "all trained on it" if len(used) == len(ARMS) else ""
        return f"{embedding}\n{all_or_none or 'trained on: ' + ', '.join(used)}"

    embeddings = list(found.floor[0])
    steps = {arm: max(found.states[arm]) for arm in ARMS}
    panels = [
        [
            found.panel(
                ARMS,
                embedding,
                score,
                unit=steps,
                title=note(embedding) if score == scored_arms.HELD_OUT else "",
                label=label if embedding == embeddings[0] else "",
                styles={arm: {"linestyle": "-" if embedding in ARMS[arm] else "--"} for arm in ARMS},
                bottom=0,
            )
            for embedding in embeddings
        ]
        for score, label in PANELS.items()
    ]
    title = f"Generators fine-tuned on FID alone: {', '.join(f'{arm} {count} steps' for arm, count in steps.items())}"
    return draw_panels(panels, STYLES, path, title, "part of the steps")
