"""Generators that need no training, as recipes: a class, a mixture of classes, an image's neighbourhood."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

KINDS = ("class", "mixture", "neighbourhood")
SHARES = (0.25, 0.5, 0.75)  # of the first of two classes
REACH = (1, 2, 4, 8, 16)  # images that a neighbourhood stores, in units of those drawn
ANCHORS = 2  # neighbourhoods of each reach around images of each class
MIXED = 10  # of more classes neither mixtures nor neighbourhoods are made


@dataclass(frozen=True)
class Recipe:
    """A recipe for making a generator.

    Args:
        kind: one of KINDS.
        shares: of a class or mixture: the part of the images drawn that each class has.
        anchor: of a neighbourhood: its image's place among the stored ones.
        count: of a neighbourhood: the images that it stores, the anchor being one.
    """

    kind: str
    shares: Mapping[str, float] = field(default_factory=dict)
    anchor: int = 0
    count: int = 0


def class_recipes(classes: Sequence[str]) -> dict[str, Recipe]:
    """Each class alone, by its name."""
    return {name: Recipe("class", {name: 1.0}) for name in classes}


def mixture_recipes(classes: Sequence[str], shares: Sequence[float] = SHARES) -> dict[str, Recipe]:
    """Each two classes with each share, and equal parts of each three, of all but one and of all: each once."""
    parts: list[dict[str, float]] = []
    for first, second in combinations(classes, 2):
        parts += [{first: share, second: 1 - share} for share in shares]
    sizes = sorted({size for size in (3, len(classes) - 1, len(classes)) if 3 <= size <= len(classes)})
    parts += [dict.fromkeys(some, 1 / size) for size in sizes for some in combinations(classes, size)]
    return {", ".join(f"{share:.0%} {name}" for name, share in part.items()): Recipe("mixture", part) for part in parts}


def neighbourhood_recipes(anchors: Mapping[str, Sequence[int]], counts: Sequence[int]) -> dict[str, Recipe]:
    """An image and its nearest others, of each anchor and count.

    Args:
        anchors: places of images among the stored ones, by the class that they are of.
        counts: images that a neighbourhood stores.
    """
    return {
        f"{count:,} nearest to {name} {anchor}": Recipe("neighbourhood", {}, anchor, count)
        for name, places in anchors.items()
        for anchor in places
        for count in counts
    }


def spread_out(names: Sequence[str], count: int) -> list[str]:
    """`count` of the names, evenly spaced from the first to the last; all of them if there are no more."""
    if count >= len(names):
        return list(names)
    last = max(1, count - 1)
    return [names[round(place * (len(names) - 1) / last)] for place in range(count)]
