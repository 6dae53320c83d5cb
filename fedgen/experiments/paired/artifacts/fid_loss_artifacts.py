"""Faults of images when nothing but FID is left to say what a digit is, and whether the score says so.

Fig. 7 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) shows images of a Glow trained on
likelihood and FID, and of a GAN whose critic is removed after a while: artefacts, at a low FID. Here the same on
digits, each beside its control: the Glow on its likelihood alone, the GAN that keeps its critic for as many steps.

Between the two GANs lies more than the critic: the one without it goes on from the moving average of the other's
weights, with Adam's moments at zero, and FID has the weight 1 in place of one that follows the adversarial loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.embeddings import load_embedding
from fedgen.evaluation.marks import RELATED, SAME, say_marks
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.image_scores import HELD_OUT, HIGHER, SCORES, TITLES, compare_scores, mark_of
from fedgen.experiments.engine.paired_seeds import by_chance, change_of, compare_pairs, mean_shown, verdict
from fedgen.experiments.engine.recipe_file import fingerprints
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trained_runs import runs_folder
from fedgen.experiments.engine.trainings import train_all
from fedgen.experiments.engine.unrelated import require_unrelated
from fedgen.experiments.paired.artifacts.artifact_arms import (
    FAMILIES,
    FLOW,
    FLOW_FID,
    GAN,
    OPTIMISED,
    QUICK,
    RECIPES,
    REMOVED,
    ArtifactRuns,
    Family,
    Lengths,
)
from fedgen.images import save_png, tile
from fedgen.models.networks.glow import require_normflows
from fedgen.reports.figures.picture_panels import show_picture

USED = {arm: () if arm == FLOW else (OPTIMISED,) for pair in FAMILIES.values() for arm in pair}  # by losses
FIGURE = "fid_loss_artifacts.png"
GRID = 8  # images across and down
COLOURS = ("#1f5fa8", "#c4560b")  # control and treated


@quickly(seeds=1)
def fid_loss_artifacts(
    output: Path | None = None,
    embedding: str = "efficientnet-lite0-32",
    weights: Path | None = None,
    seeds: int = 3,
    runs: Path | None = None,
    recipes: Path = Path("recipes"),
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Trains four generators of digits, with FID in pixels as a loss, and scores what they make in another embedding.

    The GAN with a FID loss with its critic and, from a point on, without it; a Glow with and without a FID loss. Needs
    the extra `flows`. Finished runs are kept and not run again; stopped ones go on.

    Args:
        output: folder of results.json and fid_loss_artifacts.png; checkpoints/fid-loss-artifacts-... by default.
        embedding: the one that no loss used; another than pixels.
        weights: a local file of its weights.
        seeds: runs of each arm, with seeds from `seed` on; 1 with --quick.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        parallel: runs at once.
        seed: of the first runs, the held-out images and the samples.
        quick: takes less than a minute, to see that it runs.

    Raises:
        ValueError: for no seeds, or pixels as the other embedding.
        ModuleNotFoundError: without the extra.
    """
    if seeds < 1 or parallel < 1:
        raise ValueError(f"seeds={seeds}, parallel={parallel}: train at least one run of each arm, and one at a time")
    require_unrelated(embedding, [OPTIMISED], "digits")
    require_normflows()
    unrelated = load_embedding(embedding, weights=weights)
    lengths = QUICK if quick else Lengths()
    settings = {
        "data": "digits", "embedding": embedding, "weights": None if weights is None else str(weights),
        "seeds": seeds, "seed": seed, "quick": quick, "lengths": asdict(lengths),
        "recipes": fingerprints(recipes / name for name in RECIPES.values()),
    }  # fmt: skip
    study = Study("fid-loss-artifacts", output, settings)
    arms = ArtifactRuns(runs_folder(runs, output), recipes, lengths, seed)
    numbers = list(range(seed, seed + seeds))
    names = [name for family in FAMILIES for name in (family, f"floor of {family}")]
    if study.missing(*names, "bits per dimension") or not all(study.path(grid_of(arm)).exists() for arm in _arms()):
        # the GANs without their critic start from those with it
        for some in ((GAN, FLOW, FLOW_FID), (REMOVED,)):
            train_all([arms.training(arm, number) for arm in some for number in numbers], parallel)
        for name in FAMILIES:
            _measure(study, arms, Family(arms, name, numbers, unrelated), name, numbers)
    compared = study.step("compared", lambda: _compare(study.numbers, numbers))
    tables = [_table(name, compared[name], study.numbers) for name in FAMILIES]
    lines = [] if seeds < 2 else expectations(compared, study.numbers["bits per dimension"], embedding)
    study.report([*tables, *lines], draw(study, arms, numbers, embedding))


def _arms() -> list[str]:
    return [arm for pair in FAMILIES.values() for arm in pair]


def _measure(study: Study, arms: ArtifactRuns, family: Family, name: str, seeds: list[int]) -> None:
    """Scores of every kept checkpoint, the real floor, the flows' bits, and a grid of the first seed's last samples."""
    study.step(f"floor of {name}", lambda: family.floor)
    found = {
        key_of(arm, seed, steps): (arm, path)
        for arm in FAMILIES[name]
        for seed in seeds
        for steps, path in arms.checkpoints(arm, seed).items()
    }
    study.each(name, found, lambda one: family.scores.score(family.images(*one)), "checkpoints")
    last = {(arm, seed): list(arms.checkpoints(arm, seed).values())[-1] for arm in FAMILIES[name] for seed in seeds}
    if FLOW in FAMILIES[name]:
        items = {f"{arm}, seed {seed}": (arm, path) for (arm, seed), path in last.items()}
        study.each("bits per dimension", items, lambda one: family.bits_per_dim(*one), "checkpoints")
    for arm in FAMILIES[name]:
        picture = tile(family.images(arm, last[arm, seeds[0]], GRID**2), GRID, min_side=24)
        save_png(study.path(grid_of(arm)), picture)


def key_of(arm: str, seed: int, steps: int) -> str:
    """The name of a checkpoint in results.json."""
    return f"{arm}, seed {seed}, {steps} rounds"


def last_of(rows: Mapping[str, Any], arm: str, seed: int) -> Mapping[str, Any]:
    """Scores of a run's last checkpoint."""
    return rows[[key for key in rows if key.startswith(f"{arm}, seed {seed}, ")][-1]]


def _compare(numbers: Mapping[str, Any], seeds: list[int]) -> dict[str, Any]:
    """Return by family and arm: embedding -> score -> as `compare_scores` gives it, of the last checkpoints."""
    found = {}
    for name, (control, treated) in FAMILIES.items():
        usual, own = ([last_of(numbers[name], arm, seed) for seed in seeds] for arm in (control, treated))
        found[name] = {control: compare_scores(None, usual), treated: compare_scores(usual, own)}
    return found


def _table(name: str, compared: Mapping[str, Any], numbers: Mapping[str, Any]) -> Table:
    """A family's last checkpoints: means over seeds, paired differences, and real images beside."""
    pair, floor = FAMILIES[name], numbers[f"floor of {name}"]
    control, treated = pair
    count = len(compared[control][OPTIMISED]["fid"]["values"])
    caption = f"{floor['samples']} samples each; real: {floor['real']} real images, scored against as many others"
    table = Table(
        title=f"{name}: {treated} beside {control}, mean of {count} seed{'s' * (count > 1)}",
        caption="\n".join([caption, *say_marks({SAME, RELATED})]),
        caption_justify="left",
    )
    for heading in ("embedding", "score", *pair, "difference (95 %)", "real"):
        table.add_column(heading, justify="left" if heading in ("embedding", "score") else "right")
    for where, real in floor["scores"].items():
        for score in SCORES:
            rows = {arm: compared[arm][where][score] for arm in pair}
            means = (mean_shown(row, mark_of(score, where, USED[arm])) for arm, row in rows.items())
            first = where if score == "fid" else ""
            table.add_row(first, TITLES[score], *means, change_of(rows[treated]), f"{real[score]:.3g}")
        table.add_section()
    bits = _bits(numbers["bits per dimension"])
    if control in bits:
        means = (mean_shown(bits[arm]) for arm in pair)
        table.add_row("", "bits per dimension, held-out images", *means, change_of(bits[treated]))
    return table


def _bits(found: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Bits per dimension of the flows, by arm, as `compare_pairs` gives them."""
    usual, own = ([value for key, value in found.items() if key.startswith(f"{arm}, seed")] for arm in (FLOW, FLOW_FID))
    return {FLOW: {"values": usual}, FLOW_FID: compare_pairs(usual, own)}


def expectations(compared: Mapping[str, Any], bits: Mapping[str, float], embedding: str) -> list[str]:
    """Return what the paper's figure says, as far as numbers can, and whether it is so beyond the interval of paired
    seeds.
    """
    lines = []
    for name, (control, treated) in FAMILIES.items():
        rows = compared[name][treated]
        text = f"{name}, {treated}: FID in {OPTIMISED}, which is optimised, is not above that of {control}"
        lines.append(verdict(text, rows[OPTIMISED]["fid"], "not more"))
        for score in (HELD_OUT, *HIGHER):
            text = f"{name}, {treated}: in {embedding} {TITLES[score]} is worse than that of {control}"
            lines.append(verdict(text, rows[embedding][score], "less" if score in HIGHER else "more"))
    text = "Glow: FID costs likelihood: more bits per dimension of held-out images"
    lines.append(verdict(text, _bits(bits)[FLOW_FID], "more"))
    return [*lines, by_chance(len(lines))]


def grid_of(arm: str) -> str:
    """File name of an arm's samples."""
    return f"{arm.replace(' + ', '-').replace(' ', '-').lower()}.png"


def draw(study: Study, arms: ArtifactRuns, seeds: Sequence[int], embedding: str) -> Path:
    """Columns: the arms. Above: the last samples of the first seed. Below: a family's FID by rounds, in two embeddings.

    Curves are means over seeds, thin lines the seeds, dashes real images.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), layout="constrained")
    rows = figure.subplots(2, 4, height_ratios=(1.25, 1))
    for place, (name, pair) in enumerate(FAMILIES.items()):
        for side, arm in enumerate(pair):
            title = {"fontsize": 10, "color": COLOURS[side], "weight": "bold"}
            show_picture(rows[0][2 * place + side], study.path(grid_of(arm)), f"{name}:\n{arm}", **title)
        for side, where in enumerate((OPTIMISED, embedding)):
            axes = rows[1][2 * place + side]
            _draw_fid(axes, study.numbers[name], pair, seeds, where, arms.lengths.before)
            real = study.numbers[f"floor of {name}"]["scores"][where]["fid, held out"]
            axes.axhline(real, color="black", linestyle="--", linewidth=1, label="real images")
            axes.set_title(where + ("\n(optimised)" if where == OPTIMISED else "\n(unrelated)"), fontsize=9)
            if place == 0:
                axes.axvline(arms.lengths.before, color="0.6", linestyle=":", linewidth=1)
            axes.set_xlabel("rounds", fontsize=9)
            if not side:
                axes.set_ylabel("FID to held-out images", fontsize=9)
    return save_figure(figure, study.path(FIGURE))


def _draw_fid(
    axes: Any, rows: Mapping[str, Any], pair: Sequence[str], seeds: Sequence[int], where: str, parting: int
) -> None:
    for arm, colour in zip(pair, COLOURS):
        curves = [curve_of(rows, arm, seed, where) for seed in seeds]
        if arm == REMOVED:  # they part from the control's curves
            starts = [dict(curve_of(rows, GAN, seed, where))[parting] for seed in seeds]
            curves = [[(parting, start), *curve] for start, curve in zip(starts, curves)]
        for curve in curves:
            axes.plot(*zip(*curve), color=colour, linewidth=0.7, alpha=0.45)
        mean = [(places[0][0], sum(value for _, value in places) / len(places)) for places in zip(*curves)]
        axes.plot(*zip(*mean), color=colour, marker="o", markersize=3.5, linewidth=1.8, label=arm)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, which="both")
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7.5, framealpha=0.85)


def curve_of(rows: Mapping[str, Any], arm: str, seed: int, where: str) -> list[tuple[int, float]]:
    """(rounds, FID to held-out images) of a run's checkpoints, in order."""
    prefix = f"{arm}, seed {seed}, "
    own = {int(key.removeprefix(prefix).split()[0]): row for key, row in rows.items() if key.startswith(prefix)}
    return [(rounds, own[rounds][where]["fid, held out"]) for rounds in sorted(own)]
