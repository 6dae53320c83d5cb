"""KID of random subsets beside KID of all images, on real features: how a table comes to order pairs in two ways.

Packages print the mean of KID over random subsets. Each client's, and the pool's, are other subsets, so avg and all
carry noise of their own, and what is one constant for all images is one no more.
"""

from pathlib import Path

import torch
from rich.table import Table

from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.reports.figures.aggregate_panels import draw_aggregates, draw_gap
from fedgen.scores import KernelReference, inversions, mmd2_subsets

SUBSETS = 100  # as torch-fidelity, of fewer images than its 1,000, as clients have no more
SIZE = 100
KINDS = {"exact": "all images", "rounded": "all images, rounded to 3 digits", "subsets": f"{SUBSETS} random subsets"}


def measure(study: Study, seed: int, quick: bool) -> dict[str, dict[str, list[float]]]:
    """avg and all of KID by way of computing it, over generators made of digits; clients hold five of the ten.

    Args:
        study: keeps each generator's values.
        seed: of clients and generators.
        quick: fewer generators.
    """
    choice = ClassChoice("digits", embedding="pixels", components=8, seed=seed, quick=quick)
    places = ClassFederation(choice)
    names = {name: name for name in places.recipes}
    if len(study.numbers.get("subsets", {})) < len(names):
        parts = places.federation.parts()
        reference, pool = KernelReference.from_features(parts), torch.cat(parts)

        def score(name: str) -> dict[str, dict[str, float]]:
            generated = places.draw(name)
            exact = reference.score(generated, errors=False).values
            own = torch.tensor([subset_kid(generated, part) for part in parts], dtype=torch.float64)
            subsets = {"avg": float(reference.weights @ own), "all": subset_kid(generated, pool)}
            return {"exact": {key: exact[key] for key in ("avg", "all")}, "subsets": subsets}

        study.each("subsets", names, score, "generators")
    rows = [study.numbers["subsets"][name] for name in names]
    found = {kind: {key: [row[kind][key] for row in rows] for key in ("avg", "all")} for kind in ("exact", "subsets")}
    found["rounded"] = {key: [round(value, 3) for value in values] for key, values in found["exact"].items()}
    return {kind: found[kind] for kind in KINDS}


def subset_kid(generated: torch.Tensor, real: torch.Tensor) -> float:
    """KID as torch-fidelity prints it, but of smaller subsets where images are fewer."""
    size = min(SIZE, len(generated), len(real))
    return mmd2_subsets(generated, real, subsets=SUBSETS, size=size)[0]


def inverted(columns: dict[str, list[float]]) -> list[list[int]]:
    """The pairs that avg and all order differently."""
    return [[pair.first, pair.second] for pair in inversions(columns["avg"], columns["all"])]


def table_of(found: dict[str, dict[str, list[float]]]) -> Table:
    """Inverted pairs and gap by way of computing KID."""
    count = len(found["exact"]["avg"])
    table = Table(
        title=f"{count} generators made of digits, {count * (count - 1) // 2} pairs, five clients of one digit each"
    )
    for heading in ("KID of", "inverted", "tied", "avg - all, least", "largest"):
        table.add_column(heading, justify="left" if heading == "KID of" else "right")
    for kind, columns in found.items():
        gaps = [a - b for a, b in zip(columns["avg"], columns["all"])]
        ties = sum(a == b for place, a in enumerate(columns["all"]) for b in columns["all"][place + 1 :])
        table.add_row(KINDS[kind], str(len(inverted(columns))), str(ties), f"{min(gaps):.8f}", f"{max(gaps):.8f}")
    return table


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> Path:
    """avg against all, and the gap, of all images (left) and of subsets (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6.6), layout="constrained")
    panels = figure.subplots(2, 2)
    for column, kind in enumerate(("exact", "subsets")):
        avg, all = found[kind]["avg"], found[kind]["all"]
        pairs = inverted(found[kind])
        draw_aggregates(panels[0][column], avg, all, "KID", inverted=pairs)
        panels[0][column].set_title(f"{KINDS[kind]}: {len(pairs)} pairs inverted", fontsize=10)
        draw_gap(panels[1][column], all, [a - b for a, b in zip(avg, all)], "KID", "KID all")
    gaps = [a - b for a, b in zip(found["subsets"]["avg"], found["subsets"]["all"])]
    for panel in panels[1]:
        panel.set_ylim(min(gaps) - 0.1 * (max(gaps) - min(gaps)), max(gaps) + 0.1 * (max(gaps) - min(gaps)))
    return save_figure(figure, path)
