"""Faults of images when nothing but FID is left to say what a digit is, and whether the score says so.

Fig. 7 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) on digits: a Glow on likelihood and
FID beside one on likelihood, a GAN whose critic is removed beside one that keeps it for as many steps. The former goes
on from the moving average of the latter's weights, with Adam's moments at zero, and FID's weight is 1.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import load_embedding
from fedgen.evaluation.image_sampling import draw_images, sampler_of
from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.runs.rebuild import load_weights, rebuild
from fedgen.experiments.engine import scored_arms
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_panels
from fedgen.experiments.engine.paired_seeds import Claim, Row, by_chance, change_of, compare_pairs, mean_shown, verdict
from fedgen.experiments.engine.scored_checkpoints import kept_checkpoints
from fedgen.experiments.engine.study import Numbers, ScoredArmsChoice, Study, make_table
from fedgen.experiments.engine.trainings import Training, fingerprints, kept_rounds, slug, start_of, train_all
from fedgen.images import from_uint8, save_png, tile
from fedgen.models.glow import require_normflows
from fedgen.seeds import isolated

GAN, REMOVED, FLOW, FLOW_FID = "critic stays", "critic removed", "likelihood", "likelihood + FID"
FAMILIES = {"WGAN-GP + FID": (GAN, REMOVED), "Glow": (FLOW, FLOW_FID)}  # control and treated
GLOW = "glow_digits_fid.yaml"
RECIPES = {GAN: "wgan_gp_digits_fid.yaml", REMOVED: "fid_alone_digits.yaml", FLOW: GLOW, FLOW_FID: GLOW}
OPTIMISED = "pixels"


@dataclass(frozen=True)
class Lengths:
    """Rounds of the arms, and how many lie between kept checkpoints."""

    before: int = 900  # of the GAN until the critic goes
    after: int = 600  # from then on, with and without it
    gan_every: int = 300  # between the GAN's checkpoints; a divisor of `before`
    removed_every: int = 120  # between those without the critic
    flow: int = 200  # of both flows
    flow_every: int = 50  # between theirs
    # samples to score, and real ones of each kind, at most; as many as clients hold out if None
    images: int | None = None


USUAL = Lengths()
QUICK = Lengths(before=20, after=20, gan_every=20, removed_every=20, flow=2, flow_every=2, images=200)


@dataclass(frozen=True)
class ArtifactChoice(ScoredArmsChoice):
    """Options of fid-loss-artifacts; its fields are options of the command.

    Args:
        embedding: the one that no loss used; another than pixels.
        seed: of the first runs, the held-out images and the samples.
        quick: less than a minute, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1}

    embedding: str = "efficientnet-lite0-32"

    def __post_init__(self) -> None:
        super().__post_init__()
        scored_arms.require_unrelated(self.embedding, [OPTIMISED], "digits")

    @property
    def lengths(self) -> Lengths:
        return QUICK if self.quick else USUAL

    def resolved(self) -> dict[str, Any]:
        recipes = fingerprints(self.recipes / name for name in RECIPES.values())
        return {"data": "digits", "lengths": asdict(self.lengths), "recipes": recipes}

    def training(self, arm: str, seed: int) -> Training:
        """One arm's run; that without the critic starts from a checkpoint of the one with it."""
        long = self.lengths
        every = {GAN: long.gan_every, REMOVED: long.removed_every}.get(arm, long.flow_every)
        more: dict[str, Any] = {}
        if arm == REMOVED:
            more["model.init_args.generator"] = self.run_folder(GAN, seed) / checkpoint_name(long.before - 1)
        if arm == FLOW:
            more["model.init_args.generator_losses"] = None
        settings = kept_rounds(self.rounds(arm), every, self.seed, more=more)
        return Training(self.recipes / RECIPES[arm], self.run_folder(arm, seed), seed, settings)

    def rounds(self, arm: str) -> int:
        long = self.lengths
        return {GAN: long.before + long.after, REMOVED: long.after}.get(arm, long.flow)

    def run_folder(self, arm: str, seed: int) -> Path:
        """E.g. "glow_digits_fid-likelihood-split0-rounds200-seed0"; the one without the critic names its start."""
        name = f"{RECIPES[arm].removesuffix('.yaml')}-{slug(arm).lower()}-split{self.seed}-rounds{self.rounds(arm)}"
        if arm == REMOVED:  # a GAN trained anew by another recipe is another start
            name += f"-after{self.lengths.before}-of-{start_of(self.recipes / RECIPES[GAN])}"
        return self.folder / f"{name}-seed{seed}"

    def steps(self, arm: str, round: int) -> int:
        """Rounds that a generator has had: those before the critic went count for both GANs."""
        return round + 1 + (self.lengths.before if arm == REMOVED else 0)

    def checkpoints(self, arm: str, seed: int) -> dict[int, Path]:
        kept = kept_checkpoints(self.run_folder(arm, seed))
        return {self.steps(arm, round): path for round, path in kept.items()}


ARMS = [arm for pair in FAMILIES.values() for arm in pair]
BITS = "bits per dimension"
GRID = 8  # images across and down
CONTROL_STYLE, TREATED_STYLE = ({"color": colour, "marker": "o"} for colour in ("#1f5fa8", "#c4560b"))
STYLES = {arm: style for pair in FAMILIES.values() for arm, style in zip(pair, (CONTROL_STYLE, TREATED_STYLE))}


def fid_loss_artifacts(**options: Any) -> None:
    """Trains four generators of digits, with FID in pixels as a loss, and scores what they make in another embedding.

    The GAN with a FID loss with its critic and, from a point on, without it; a Glow with and without a FID loss. Needs
    the extra `flows`.
    """
    choice = ArtifactChoice(**options)
    require_normflows()
    load_embedding(choice.embedding, weights=choice.weights)  # refused before any training
    study = choice.study("fid-loss-artifacts")
    names = [name for family in FAMILIES for name in (family, f"floor of {family}")]
    if study.missing(*names, BITS) or not all(study.path(grid_of(arm)).exists() for arm in ARMS):
        # the GANs without their critic start from those with it
        for some in ((GAN, FLOW, FLOW_FID), (REMOVED,)):
            train_all([choice.training(arm, seed) for arm in some for seed in choice.seeds_of], choice.parallel)
        for name in FAMILIES:
            _measure(study, choice, name)
    found = {name: scored(study.numbers, name, choice) for name in FAMILIES}
    rows = {name: {arm: own.rows(arm) for arm in FAMILIES[name]} for name, own in found.items()}
    study.step("compared", lambda: rows)
    bits, tables = bits_of(study.numbers[BITS]), list[Table | str]()
    for name, own in found.items():
        floor = study.numbers[f"floor of {name}"]
        tables += [_table(name, own, floor, embedding) for embedding in own.floor[0]]
    row = (*map(mean_shown, bits.values()), change_of(bits[FLOW_FID]))
    tables.append(make_table(f"{BITS}, held-out images", [*bits, "difference (95 %)"], [row], left=0))
    lines = outcomes(found, bits, choice.embedding) if choice.seeds > 1 else []
    study.report([*tables, *lines], draw(study, found, choice))


def _measure(study: Study, choice: ArtifactChoice, name: str) -> None:
    """Scores a family's checkpoints, real images and the flows' bits, and draws the first seed's last samples."""
    models: dict[str, Any] = {arm: rebuild(choice.run_folder(arm, choice.seed))[0] for arm in FAMILIES[name]}
    runs = list(product(FAMILIES[name], choice.seeds_of))
    embeddings = [load_embedding(OPTIMISED), load_embedding(choice.embedding, weights=choice.weights)]
    folders = [choice.run_folder(*run) for run in runs]
    scores, held_out = scored_arms.real_side(folders, embeddings, choice.lengths.images)
    count = len(held_out)

    def images(arm: str, path: Path, number: int) -> Tensor:
        load_weights(models[arm], path)  # of the same latents at every checkpoint
        return draw_images(sampler_of(models[arm]), number, choice.seed, 0, description=f"sampling {arm}")

    def bits_per_dim(arm: str, path: Path) -> float:
        load_weights(models[arm], path)
        with isolated():
            torch.manual_seed(choice.seed)
            return float(models[arm].bits_per_dim(from_uint8(held_out)).mean())

    study.step(f"floor of {name}", lambda: {"samples": count, "real": count, "scores": scores.floor})
    kept = {run: choice.checkpoints(*run) for run in runs}
    found = {key_of(*run, steps): (run[0], path) for run, own in kept.items() for steps, path in own.items()}
    study.each(name, found, lambda one: scores.score(images(*one, count)), "checkpoints")
    last = {run: list(own.values())[-1] for run, own in kept.items()}
    if FLOW in FAMILIES[name]:
        items = {f"{arm}, seed {seed}": (arm, path) for (arm, seed), path in last.items()}
        study.each(BITS, items, lambda one: bits_per_dim(*one), "checkpoints")
    for arm in FAMILIES[name]:
        picture = tile(images(arm, last[arm, choice.seed], GRID**2), GRID, min_side=24)
        save_png(study.path(grid_of(arm)), picture)


def key_of(arm: str, seed: int, steps: int) -> str:
    return f"{arm}, seed {seed}, {steps} rounds"


def scored(numbers: Numbers, name: str, choice: ArtifactChoice) -> scored_arms.ScoredArms:
    control, treated = FAMILIES[name]
    places: dict[str, list[int]] = {}
    for arm in FAMILIES[name]:
        start = f"{arm}, seed {choice.seed}, "
        places[arm] = sorted(int(key.removeprefix(start).split()[0]) for key in numbers[name] if key.startswith(start))
    states = scored_arms.states_in(numbers[name], places, choice.seeds_of, key_of)
    used = {arm: (OPTIMISED,) for arm in FAMILIES[name] if arm != FLOW}
    return scored_arms.ScoredArms(
        states, [numbers[f"floor of {name}"]["scores"]], scored_arms.TITLES, used, {treated: (control, None)}
    )


def _table(name: str, found: scored_arms.ScoredArms, floor: Numbers, embedding: str) -> Table:
    control, treated = FAMILIES[name]
    count = len(found.at(control))
    note = f"{floor['samples']} samples each; real: {floor['real']} real images, scored against as many others"
    title = f"{name}, {embedding}: {treated} beside {control}, mean of {count} seed{'s' * (count > 1)}"
    lines = [((arm,), arm) for arm in (scored_arms.REAL_IMAGES, control, treated)]
    return found.table(title, embedding, ["generator"], lines, control, [note])


def bits_of(found: Mapping[str, float]) -> dict[str, Row]:
    """Bits per dimension of the flows, by arm, as `compare_pairs` gives them."""
    usual, own = ([value for key, value in found.items() if key.startswith(f"{arm}, seed")] for arm in (FLOW, FLOW_FID))
    return {FLOW: {"values": usual}, FLOW_FID: compare_pairs(usual, own)}


def outcomes(found: Mapping[str, scored_arms.ScoredArms], bits: Mapping[str, Row], judge: str) -> list[str]:
    lines = []
    for name, (control, treated) in FAMILIES.items():
        text = f"{name}, {treated}: FID in {OPTIMISED}, which is optimised, is not above that of {control}"
        lines.append(found[name].verdict(text, treated, OPTIMISED, "fid", "not more"))
        for score in (scored_arms.HELD_OUT, *scored_arms.HIGHER):
            text = f"{name}, {treated}: in {judge} {scored_arms.TITLES[score]} is worse than that of {control}"
            worse: Claim = "less" if score in scored_arms.HIGHER else "more"
            lines.append(found[name].verdict(text, treated, judge, score, worse))
    text = "Glow: FID costs likelihood: more bits per dimension of held-out images"
    lines.append(verdict(text, bits[FLOW_FID], "more"))
    return [*lines, by_chance(len(lines))]


def grid_of(arm: str) -> str:
    return f"{slug(arm).lower()}.png"


def draw(study: Study, found: Mapping[str, scored_arms.ScoredArms], choice: ArtifactChoice) -> Path:
    parting = choice.lengths.before

    def panel(name: str, embedding: str) -> ArmPanel:
        own = found[name]
        if REMOVED in own.states:  # its curves part from the control's
            whole = {parting: own.at(GAN, parting), **own.states[REMOVED]}
            own = replace(own, states={**own.states, REMOVED: whole})
        how = "optimised" if embedding == OPTIMISED else "unrelated"
        return own.panel(FAMILIES[name], embedding, scored_arms.HELD_OUT, title=f"{name}\n{embedding} ({how})", log="y")

    panels = [[panel(name, embedding) for name in FAMILIES for embedding in (OPTIMISED, choice.embedding)]]
    pictures = [(study.path(grid_of(arm)), arm, STYLES[arm]["color"]) for arm in ARMS]
    path, title = study.figure, "FID to held-out images; below: samples"
    return draw_panels(panels, STYLES | {scored_arms.REAL_IMAGES: REAL}, path, title, "rounds", (3.0, 3.0), pictures)
