"""What goes wrong when nothing but FID is left to say what a digit is, and whether the score says so.

Fig. 7 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) shows images of a Glow trained on
likelihood and FID, and of a GAN whose critic is removed after a while: artefacts, at a low FID. Here the same on
digits, each beside its control: the Glow on its likelihood alone, the GAN that keeps its critic for as many steps.

Between the two GANs lies more than the critic: the one without it goes on from the moving average of the other's
weights, with Adam's moments at zero, and FID has the weight 1 in place of one that follows the adversarial loss.
"""

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.embeddings import load_embedding
from fedgen.experiments.artifact_arms import (
    FAMILIES,
    FLOW,
    FLOW_FID,
    GAN,
    OPTIMISED,
    QUICK,
    REMOVED,
    Arms,
    Family,
    Lengths,
)
from fedgen.experiments.artifact_figure import GRID, draw, grid_of
from fedgen.experiments.comparison import expectation
from fedgen.experiments.image_scores import SCORES, TITLES
from fedgen.experiments.paired import paired_difference
from fedgen.experiments.runs import train_all
from fedgen.experiments.study import Study
from fedgen.images import save_png, tile

HIGHER = ("recall", "coverage")  # of which more is better


def fid_loss_artifacts(
    output: Path | None = None,
    embedding: str = "efficientnet-lite0-32",
    weights: Path | None = None,
    seeds: int = 3,
    recipes: Path = Path("recipes"),
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Trains four generators of digits, with FID in pixels as a loss, and scores what they make in another embedding.

    The GAN with a FID loss with its critic and, from a point on, without it; a Glow with and without a FID loss. Needs
    the extra `flows`. Finished runs are kept in the folder and not run again; stopped ones go on.

    Args:
        output: folder of results.json, the runs and fid_loss_artifacts.png; checkpoints/fid-loss-artifacts by default.
        embedding: the one that no loss used; another than pixels.
        weights: a local file of its weights.
        seeds: runs of each arm, with seeds from `seed` on; 1 with --quick.
        recipes: folder of the recipes.
        parallel: runs at once.
        seed: of the first runs, the held-out images and the samples.
        quick: takes less than a minute, to see that it runs.

    Raises:
        ValueError: for no seeds, or pixels as the other embedding.
    """
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: train at least one run of each arm; two or more say how sure a difference is")
    if embedding == OPTIMISED:
        raise ValueError(f"embedding={embedding!r} is the one that FID is optimised in; name another to judge by")
    unrelated = load_embedding(embedding, weights=weights)
    seeds, lengths = (1, QUICK) if quick else (seeds, Lengths())
    settings = {
        "data": "digits", "embedding": embedding, "weights": None if weights is None else str(weights),
        "seeds": seeds, "seed": seed, "quick": quick, "lengths": asdict(lengths),
    }  # fmt: skip
    study = Study("fid-loss-artifacts", output, settings)
    arms = Arms(study.path("runs"), recipes, lengths, seed)
    numbers = list(range(seed, seed + seeds))
    names = [name for family in FAMILIES for name in (family, f"floor of {family}")]
    if study.missing(*names, "bits per dimension") or not all(study.path(grid_of(arm)).exists() for arm in _arms()):
        # the GANs without their critic start from those with it
        for some in ((GAN, FLOW, FLOW_FID), (REMOVED,)):
            train_all([arms.training(arm, number) for arm in some for number in numbers], parallel)
        for name in FAMILIES:
            _measure(study, arms, Family(arms, name, seed, unrelated), name, numbers)
    compared = study.step("compared", lambda: _compare(study.numbers, numbers, embedding))
    tables = [_table(name, compared[name], study.numbers, embedding) for name in FAMILIES]
    lines = [] if seeds < 2 else _expectations(compared, study.numbers["bits per dimension"], embedding)
    note = "* in the embedding that FID was optimised in, on the images it was optimised for: proves little"
    study.report([*tables, note, *lines], draw(study, arms, numbers, embedding))


def _arms() -> list[str]:
    return [arm for pair in FAMILIES.values() for arm in pair]


def _measure(study: Study, arms: Arms, family: Family, name: str, seeds: list[int]) -> None:
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


def _compare(numbers: Mapping[str, Any], seeds: list[int], embedding: str) -> dict[str, Any]:
    """Of each family, embedding and score: both arms' values by seed, and from two seeds on their paired difference."""
    found: dict[str, Any] = {}
    for name, (control, treated) in FAMILIES.items():
        found[name] = {}
        for where in (OPTIMISED, embedding):
            rows = found[name][where] = {}
            for score in SCORES:
                values = {
                    arm: [last_of(numbers[name], arm, seed)[where][score] for seed in seeds]
                    for arm in (control, treated)
                }
                pairs = paired_difference(values[control], values[treated]) if len(seeds) > 1 else {}
                rows[score] = {"values": values, **pairs}
    return found


def _table(name: str, compared: Mapping[str, Any], numbers: Mapping[str, Any], embedding: str) -> Table:
    """A family's last checkpoints: means over seeds, paired differences, and real images beside."""
    control, treated = FAMILIES[name]
    floor = numbers[f"floor of {name}"]
    count = len(compared[OPTIMISED]["fid"]["values"][control])
    table = Table(
        title=f"{name}: {treated} beside {control}, mean of {count} seed{'s' * (count > 1)}",
        caption=f"{floor['samples']} samples each; real: {floor['real']} real images, scored against as many others",
        caption_justify="left",
    )
    for heading in ("embedding", "score", control, treated, "difference (95 %)", "real"):
        table.add_column(heading, justify="left" if heading in ("embedding", "score") else "right")
    for where in (OPTIMISED, embedding):
        for score in SCORES:
            row = compared[where][score]
            means = [f"{statistics.mean(row['values'][arm]):.3g}" for arm in (control, treated)]
            mark = " *" if where == OPTIMISED and score == "fid" else ""
            real = f"{floor['scores'][where][score]:.3g}"
            table.add_row(where if score == "fid" else "", TITLES[score] + mark, *means, _difference(row), real)
        table.add_section()
    bits = _bits(numbers["bits per dimension"])
    if control in bits:
        means = [f"{statistics.mean(bits[arm]):.3g}" for arm in (control, treated)]
        pair = paired_difference(bits[control], bits[treated]) if count > 1 else {}
        table.add_row("", "bits per dimension, held-out images", *means, _difference(pair))
    return table


def _difference(row: Mapping[str, Any]) -> str:
    """The mean difference with its interval; nothing for one seed."""
    return "{:+.3g} ({:+.3g} to {:+.3g})".format(row["difference"], *row["interval"]) if "interval" in row else ""


def _bits(found: Mapping[str, float]) -> dict[str, list[float]]:
    """Bits per dimension of the flows, by arm, in the seeds' order."""
    return {arm: [value for key, value in found.items() if key.startswith(f"{arm}, seed")] for arm in FAMILIES["Glow"]}


def _expectations(compared: Mapping[str, Any], bits: Mapping[str, float], embedding: str) -> list[str]:
    """What the paper's figure says, as far as numbers can: better or not beyond the interval of paired seeds."""
    lines = []
    for name, (control, treated) in FAMILIES.items():
        text = f"{name}, {treated}: FID in {OPTIMISED}, which is optimised, is not above that of {control}"
        lines.append(expectation(text, compared[name][OPTIMISED]["fid"]["interval"][0] <= 0))
        for score in ("fid, held out", *HIGHER):
            low, high = compared[name][embedding][score]["interval"]
            text = f"{name}, {treated}: in {embedding} {TITLES[score]} is worse than that of {control}, beyond doubt"
            lines.append(expectation(text, high < 0 if score in HIGHER else low > 0))
    by_arm = _bits(bits)
    low, _ = paired_difference(by_arm[FLOW], by_arm[FLOW_FID])["interval"]
    lines.append(expectation("Glow: FID costs likelihood: more bits per dimension of held-out images", low > 0))
    return lines
