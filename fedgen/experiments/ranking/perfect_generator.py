"""Checkpoints against generators that are perfect for one class: FID-avg and FID-all disagree, KID's two agree.

The paper's pair is a DDPM and the images of airplanes, over ten clients of one CIFAR-10 class each: FID-all prefers the
DDPM (63.99 to 72.13), FID-avg the airplanes (126.05 to 119.06).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import chosen
from fedgen.experiments.engine.rankings import (
    BOTH,
    RankingStudy,
    Rows,
    ScoredRows,
    best_of,
    better_than_real,
    column,
    draw_ranking,
)
from fedgen.experiments.engine.scored_checkpoints import (
    PCA,
    Checkpoint,
    Trained,
    TrainedChoice,
    checkpoints_of,
    title_of,
)
from fedgen.experiments.engine.study import Study, expectation, make_table, panels
from fedgen.images import save_png, tile
from fedgen.reports.figures.aggregate_panels import show_picture

PAPER = {"all": math.log(63.99 / 72.13), "avg": math.log(126.05 / 119.06)}  # checkpoint over class
KERNELS = ("kid", "kid-rbf")
CLASS, REAL = "images of ", "real images of all classes"
SIDE = 6  # images along a grid
SIDES = ("checkpoint", "class")
CLASS_COLOUR = "#c4560b"
MARKERS = ("o", "^")  # of the kinds of generators
PAIR_COLOURS = ("#c0203a", "#7a4fa0")


def perfect_generator(
    output: Path | None = None, overlap: bool = False, kinds: tuple[str, ...] | None = None, **options: Any
) -> None:
    """Scores checkpoints of federated generators, and as many real images of one class, over clients of a class each.

    Trains the runs of wgan-gp-checkpoints, and a DDPM by its recipe, if they are not there. All generators give the
    same number of images, that of the smallest class, so that FID's bias is alike. A DDPM draws them in 20 steps of
    DPM-Solver++; results.json says so.

    Args:
        output: folder of results.json, perfect_generator.png and two grids of images for each kind.
        overlap: takes the classes' images, and the real ones beside them, from those that clients train on, as the
            paper did.
        kinds: of generators: wgan-gp, ddpm; both by default.
    """
    choice = TrainedChoice(by_network=True, output=output, **options)
    names = [one.name for one in choice.series(kinds)]
    study = Study("perfect-generator", output, {**choice.settings(kinds), "overlap": overlap, "kinds": names})
    grids = [study.path(grid_of(name, side)) for name in names for side in SIDES]
    if study.missing("pairs") or not all(grid.exists() for grid in grids):
        measure(study, choice, overlap, kinds)
    numbers, tables, lines = study.numbers, [], []
    for name, pair in numbers["pairs"].items():
        own, found = of_kind(numbers, name), numbers["found"][name]
        counts = len(made_by(numbers, name)), len(classes_of(own.clients))
        about = "{}: pairs of one of {} checkpoints and one of {} classes".format(name, *counts)
        ranking = RankingStudy(own, {score: title_of(score, choice.components) for score in found}, about)
        tables += [pair_table(own.clients, pair, overlap), ranking.table(found)]
        lines += [f"{name}:", *expected(found, pair), *ranking.lines(found)]
    rows = ScoredRows(numbers["scores"]).clients
    classes = {name: rows[name] for name in classes_of(rows)}
    better = better_than_real(classes, rows[REAL], "one-class generators", f"as many {REAL}", named=True)
    study.report([*tables, *lines, *better], draw(rows, numbers["pairs"], study))


def measure(study: Study, choice: TrainedChoice, overlap: bool, kinds: tuple[str, ...] | None) -> None:
    """The steps: trains what is missing, scores checkpoints, classes and real images, and compares."""
    planned = choice.planned(kinds)
    trained = choice.train(planned)
    stored, images = class_images(trained, overlap)
    kept, scorers = checkpoints_of(planned), choice.scorers(trained, KERNELS)

    def score(made: Checkpoint | Tensor) -> dict[str, Any]:
        if isinstance(made, Checkpoint):
            return scorers.score(trained.features(made, images))
        return scorers.score(trained.source.features[made])

    study.step("images", lambda: images)
    study.step(
        "checkpoints",
        lambda: {name: one.described() | {"sampling": trained.sampling(one)} for name, one in kept.items()},
    )
    generators: dict[str, Checkpoint | Tensor] = {**kept, **stored}
    study.each("scores", generators, score, "generators")
    names = list(dict.fromkeys(run.series for run in planned))
    made = {name: (of_kind(study.numbers, name), len(made_by(study.numbers, name))) for name in names}
    found = study.step("found", lambda: {name: compare_groups(*one) for name, one in made.items()})
    pairs = {name: disagreements(rows.clients, found[name]["fid"], count) for name, (rows, count) in made.items()}
    for name, pair in pairs.items():
        shown = {"checkpoint": trained.images(kept[pair["checkpoint"]], min(images, SIDE**2))}
        shown["class"] = trained.source.examples.inputs[stored[pair["class"]][: SIDE**2]]
        for side, pictures in shown.items():
            save_png(study.path(grid_of(name, side)), tile(pictures, SIDE, min_side=32))
    study.step("pairs", lambda: pairs)


def made_by(numbers: Mapping[str, Any], kind: str) -> list[str]:
    return [name for name, one in numbers["checkpoints"].items() if one["series"] == kind]


def of_kind(numbers: Mapping[str, Any], kind: str) -> ScoredRows:
    """Scores of a kind's checkpoints, then of the classes and of the real images."""
    own = set(made_by(numbers, kind))
    scores = numbers["scores"].items()
    return ScoredRows({name: row for name, row in scores if name in own or name not in numbers["checkpoints"]})


def class_images(trained: Trained, overlap: bool) -> tuple[dict[str, Tensor], int]:
    """Positions of each one-class generator's images and of the real floor's, all as many; and how many."""
    labels, own = trained.source.examples.labels, {}
    for client in trained.data.clients:
        if len(labels[client.train].unique()) > 1:
            raise ValueError(f"{client.name} holds several classes; this experiment wants clients of one class each")
        own[client.name] = client.train if overlap else client.held_out
    images = min(len(positions) for positions in own.values())
    if images < 2:
        raise ValueError(f"a client holds out {images} image(s); give it more, or take --overlap true")
    found = {f"{CLASS}{name}": chosen(part, images, trained.seed, "class", name) for name, part in own.items()}
    found[REAL] = chosen(torch.cat(list(own.values())), images, trained.seed, "real")
    return found, images


def classes_of(rows: Rows) -> list[str]:
    return [name for name in rows if name.startswith(CLASS)]


def compare_groups(scored: ScoredRows, checkpoints: int) -> dict[str, Any]:
    """`compare` of every score between the checkpoints, which come first, and the classes, which follow."""
    groups = range(checkpoints), range(checkpoints, checkpoints + len(classes_of(scored.clients)))
    return scored.compared(between=groups)


def disagreements(rows: Rows, found: dict[str, Any], checkpoints: int) -> dict[str, Any]:
    """Return which way FID-avg and FID-all disagree about checkpoints and classes, and the pair to show.

    Keys: "paper" (FID-all prefers the checkpoint, FID-avg the class) and "other", each {"pairs", "beyond error"};
    "checkpoint", "class", "way" ("" where no pair disagrees) and "clear" (beyond errors, and in no control). Shown is a
    clear pair if there is one, the paper's way if there is one, and of these the one whose two ratios of scores are
    nearest the paper's; without any, the last checkpoint and FID-avg's best class.
    """
    names, evidence = list(rows), {tuple(pair) for pair in found["evidence"]}
    ranked = []
    for first, second in found["inverted"]:  # the one that avg prefers, the one that all prefers
        sign = 1 if second < checkpoints else -1
        pair = names[min(first, second)], names[max(first, second)]
        fids = [rows[name]["fid"] for name in pair]
        far = sum((math.log(fids[0][how] / fids[1][how]) - sign * ratio) ** 2 for how, ratio in PAPER.items())
        ranked.append(((first, second) not in evidence, sign < 0, far, *pair))
    counts = {
        way: {
            "pairs": sum(other == is_other for _, other, *_ in ranked),
            "beyond error": sum(other == is_other and not unclear for unclear, other, *_ in ranked),
        }
        for way, is_other in (("paper", False), ("other", True))
    }
    if not ranked:
        best = best_of({name: rows[name] for name in classes_of(rows)}, "fid", "avg")
        return {"checkpoint": names[checkpoints - 1], "class": best, "way": "", "clear": False, **counts}
    unclear, other, _, checkpoint, of_class = min(ranked)
    way = "other" if other else "paper"
    return {"checkpoint": checkpoint, "class": of_class, "way": way, "clear": not unclear, **counts}


def expected(found: Mapping[str, Any], pair: Mapping[str, Any]) -> list[str]:
    """Say whether the paper's outcomes were seen, a line each.

    A pair is counted as clear as `disagreements` has it: beyond errors, and inverted in no control.
    """
    pairs = {way: f"{pair[way]['pairs']} pairs, {pair[way]['beyond error']} of them so" for way in ("paper", "other")}
    clear = "beyond errors" + (" and not over IID clients" if found["fid"]["control inverted"] else "")
    return [
        expectation(f"FID-avg and FID-all disagree about a checkpoint and a class, {clear}", pair["clear"]),
        expectation(
            f"as in the paper, FID-all prefers the checkpoint and FID-avg the class ({pairs['paper']}; the other way"
            f" round {pairs['other']})",
            pair["paper"]["beyond error"] > 0,
        ),
    ]


def grid_of(kind: str, side: str) -> str:
    return f"{kind.lower()}-{side}.png"


def pair_table(rows: Rows, pair: Mapping[str, Any], overlap: bool = False) -> Table:
    """The pair's scores and the real floor's, avg and all, with the one of the pair that each prefers.

    With overlap real images, the floor's too, are among those that clients are scored by.
    """
    made, stored = rows[pair["checkpoint"]], rows[pair["class"]]
    floor = (
        "some of those that clients train on, below what new images score" if overlap else "a perfect generator's score"
    )
    cells = []
    for score, how in ((score, how) for score in made for how in ("all", "avg")):
        sides = [f"{row[score][how]:.4g} ± {row[score]['errors'][how]:.1g}" for row in (made, stored)]
        better = "A" if made[score][how] < stored[score][how] else "B"
        name = "FID, PCA" if score == PCA else title_of(score)
        cells.append([f"{name} {how}", *sides, better, rows[REAL][score][how]])
    return make_table(
        f"A: {pair['checkpoint']}; B: {pair['class']}",
        ("score", "A", "B", "prefers", "real"),
        cells,
        names=("score", "prefers"),
        notes=f"± standard error over generated images; real: {REAL}, as many: {floor}",
    )


def draw(rows: Rows, pairs: Mapping[str, Mapping[str, Any]], study: Study) -> Path:
    """Each kind's pair of images over its four scores; avg against all of every generator, in FID and KID."""
    path, settings, about = study.figure, study.settings, study.numbers["checkpoints"]
    title = (
        f"Checkpoints of federated {' and '.join(f'{kind}s' for kind in pairs)}, and images of one class,"
        f" {study.numbers['images']} images each, over a client for each class\n{settings['data']},"
        f" {settings['embedding']}"
    )
    with panels(path, (9.5, 8.8) if len(pairs) == 1 else (13, 9.4), rows=0, title=title) as (figure, _):
        above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        for part, (kind, pair) in zip(above.subfigures(1, len(pairs), squeeze=False)[0], pairs.items()):
            for axes, side in zip(part.subplots(1, 2), SIDES):
                _draw_grid(axes, study.path(grid_of(kind, side)), pair[side], [rows[pair[one]] for one in SIDES], rows)
        scatters = below.subplots(1, 2)
        for axes, score in zip(scatters, ("fid", "kid")):
            points = _draw_scatter(axes, rows, pairs, about, score)
        below.colorbar(points, ax=list(scatters), label="share of the checkpoint's training", aspect=30)
    return path


def _draw_grid(axes: Any, file: Path, name: str, sides: Sequence[Mapping[str, Any]], rows: Rows) -> None:
    """Images, and the scores below: in bold where the score prefers this one of the two sides."""
    show_picture(axes, file, name.replace(", seed", ",\nseed"), fontsize=10)
    own = rows[name]
    for place, (score, how) in enumerate((score, how) for score in ("fid", "kid") for how in ("all", "avg")):
        best = own[score][how] == min(side[score][how] for side in sides)
        axes.text(
            0.02 + 0.5 * (place % 2), -0.04 - 0.075 * (place // 2), f"{score.upper()}-{how}  {own[score][how]:.4g}",
            transform=axes.transAxes, va="top", fontsize=10, weight="bold" if best else "normal",
        )  # fmt: skip


def _draw_scatter(
    axes: Any, rows: Rows, pairs: Mapping[str, Mapping[str, Any]], about: Mapping[str, Any], score: str
) -> Any:
    """avg against all: checkpoints by how far they are trained, classes, real images; each pair joined by a line."""
    for marker, colour, (kind, pair) in zip(MARKERS, PAIR_COLOURS, pairs.items()):
        made = {name: rows[name] for name, one in about.items() if one["series"] == kind}
        iterations = [about[name]["iterations"] for name in made]
        shares = [one / max(iterations) for one in iterations]
        points = draw_ranking(axes, made, score, title_of(score), colours=shares, marker=marker, errors=False)
        points.set_clim(0, 1)
        axes.scatter([], [], marker=marker, s=16, color="0.4", label=f"{kind} checkpoints")
        ends = [[rows[pair[side]][score][how] for side in SIDES] for how in BOTH]
        axes.plot(*ends, color=colour, linewidth=1.4, zorder=6, marker="o", markersize=9, fillstyle="none",
                  label=f"the pair of the {kind}")  # fmt: skip
    classes = {name: rows[name] for name in classes_of(rows)}
    sides = [column(classes, score, how) for how in BOTH]
    axes.scatter(*sides, marker="s", s=26, color=CLASS_COLOUR, zorder=4, label="images of one class")
    axes.scatter(*([rows[REAL][score][how]] for how in BOTH), marker="*", s=80, color="black", zorder=5,
                 label="real images")  # fmt: skip
    axes.legend(fontsize=8)
    return points
