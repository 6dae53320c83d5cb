"""KID of random subsets beside KID of all images, on real features: how a table comes to order pairs in two ways.

Packages print the mean of KID over random subsets. Each client's, and the pool's, are other subsets, so avg and all
carry noise of their own, and what is one constant for all images is one no more.
"""

import torch
from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import BOTH, CLIENTS, Rows, ScoredRows, column, expectation
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.rankings.ranking_study import RankingStudy
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.scores import KernelReference, mmd2_subsets

SUBSETS = 100  # as torch-fidelity, of fewer images than its 1,000, as clients have no more
SIZE = 100
FIGURE = "subset_kid.png"
EXACT, ROUNDED, DRAWN = "exact", "rounded", "subsets"  # ways of computing KID, in place of scores


def tell(study: Study, seed: int, quick: bool) -> list[Table | str]:
    """KID by way of computing it, over generators made of digits; clients hold five of the ten. Gives what to print.

    Args:
        study: keeps each generator's values.
        seed: of clients and generators.
        quick: fewer generators.
    """
    rows = measure(study, seed, quick)
    titles = {EXACT: "all images", ROUNDED: "all images, rounded to 3 digits", DRAWN: f"{SUBSETS} random subsets"}
    scored, count = ScoredRows({name: {CLIENTS: row} for name, row in rows.items()}), len(rows)
    found = scored.compared()
    inverted = {kind: len(row["inverted"]) for kind, row in found.items()}
    values = {kind: column(rows, kind, "all") for kind in found}
    ties = {kind: sum(a == b for place, a in enumerate(own) for b in own[place + 1 :]) for kind, own in values.items()}
    table = number_table(
        f"{count} generators made of digits, {count * (count - 1) // 2} pairs, five clients of one digit each",
        ("KID of", "inverted", "tied", "avg - all, least", "largest"),
        [
            [titles[kind], inverted[kind], ties[kind], *(f"{row['gap'][end]:.8f}" for end in ("min", "max"))]
            for kind, row in found.items()
        ],
        names=("KID of",),
    )
    shown = {kind: f"KID of {titles[kind]}," for kind in (EXACT, DRAWN)}
    gap = found[DRAWN]["gap"]  # whose noise is to be seen
    limits = gap["min"] - 0.1 * gap["spread"], gap["max"] + 0.1 * gap["spread"]
    figure = RankingStudy(scored, shown).draw(found, study.path(FIGURE), limits)
    return [
        table,
        expectation(f"all images invert {inverted[EXACT]} pairs by KID", inverted[EXACT] == 0),
        expectation(f"rounding alone inverts {inverted[ROUNDED]}", inverted[ROUNDED] == 0),
        expectation(f"random subsets invert {inverted[DRAWN]}", inverted[DRAWN] > 0),
        f"figure: {figure}",
    ]


def measure(study: Study, seed: int, quick: bool) -> Rows:
    """avg and all of every generator, with the exact ones rounded to three digits beside."""
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
            return {EXACT: {how: exact[how] for how in BOTH}, DRAWN: subsets}

        study.each("subsets", names, score, "generators")
    rows = {name: study.numbers["subsets"][name] for name in names}
    return {
        name: {EXACT: row[EXACT], ROUNDED: {how: round(row[EXACT][how], 3) for how in BOTH}, DRAWN: row[DRAWN]}
        for name, row in rows.items()
    }


def subset_kid(generated: torch.Tensor, real: torch.Tensor) -> float:
    """KID as torch-fidelity prints it, but of smaller subsets where images are fewer."""
    size = min(SIZE, len(generated), len(real))
    return mmd2_subsets(generated, real, subsets=SUBSETS, size=size)[0]
