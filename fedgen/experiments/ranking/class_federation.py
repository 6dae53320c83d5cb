"""Clients that hold a class each, and generators made of other classes without training.

What the papers' comparison of avg with all needs many of, generators whose order means something, is had for nothing:
images of classes that no client holds, mixtures of such classes, and an image with its nearest neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.features import FeatureFederation, ImageChoice, Source, chosen, open_source, pick_classes
from fedgen.experiments.engine.rankings import CLIENTS, RankingStudy, ScoredRows
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.sample_size import REAL
from fedgen.models import EmpiricalGenerator
from fedgen.models.empirical import nearest
from fedgen.seeds import generator
from fedgen.statistics import Projection

KINDS = ("class", "mixture", "neighbourhood")
SHARES = (0.25, 0.5, 0.75)  # of the first of two classes
REACH = (1, 2, 4, 8, 16)  # images that a neighbourhood stores, in units of those drawn
ANCHORS = 2  # neighbourhoods of each reach around images of each class
MIXED = 10  # of more classes neither mixtures nor neighbourhoods are made


@dataclass(frozen=True)
class Recipe:
    """A recipe for making a generator."""

    kind: str  # one of KINDS
    # of a class or mixture: the part of the images drawn that each class has
    shares: Mapping[str, float] = field(default_factory=dict)
    anchor: int = 0  # of a neighbourhood: its image's place among the stored ones
    count: int = 0  # of a neighbourhood: the images that it stores, the anchor being one


def class_recipes(classes: Sequence[str]) -> dict[str, Recipe]:
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
    """An image and its nearest others, of each anchor and count."""
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


IMAGES = 1000  # that a generator draws, if not told otherwise and if there are as many
CLIENTS_IMAGES = 50_000  # KID takes the square of all clients' images
PUBLIC = 5  # of data without a test split one in so many images is no client's and no generator's
SHARED = 0.01  # of the images of two data sets: published ones may share a few
QUICK_IMAGES = 200
QUICK_CLIENT = 500
QUICK_GENERATORS = 24


@dataclass(frozen=True)
class ClassChoice(ImageChoice):
    """Options common to experiments on class generators; its fields are options of their commands.

    Args:
        classes: whose images the clients hold, one each; the first half by default, all with --generators.
        generators: data each class of which is a generator; by default what can be made of classes no client holds.
        num_images: that each generator draws, none twice; 1,000, or as many as the smallest class and the public
            images, of which as many are the real floor, allow.
        client_images: of each client; by default all of its class, up to 50,000 of all clients, of wasserstein 10,000.
        neighbours: embedding in whose features near is near; another one than the scores'.
        components: principal components of public images, which are not the real floor's: for a second FID, or for all
            that wasserstein measures, where 0 is all features, as in the papers.
        total_images: of all clients together, where client_images is None.
    """

    APART: ClassVar[tuple[str, ...]] = ("total_images",)

    classes: tuple[str | int, ...] | None = None
    generators: str | None = None
    num_images: int | None = None
    client_images: int | None = None
    neighbours: str = "pixels"
    components: int = 64
    total_images: int = CLIENTS_IMAGES

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes asked for, as names: on the command line `[0, 1]` are numbers."""
        return None if self.classes is None else tuple(map(str, self.classes))

    def resolved(self) -> dict[str, Any]:
        return {"classes": self.class_names}


class ClassFederation:
    """The images of a choice: which are clients', which generators', which public, for floor and projection.

    Public ones are the test split; without one, a fifth of each class of the train split at random.
    """

    def __init__(self, choice: ClassChoice) -> None:
        self.choice = choice
        self.clients = choice.source()
        other = choice.generators not in (None, choice.data)
        self.makers = self.clients
        if other:
            self.makers = open_source(str(choice.generators), choice.root, "train", self.clients.embedding)
        self._nearness = None if choice.neighbours == choice.embedding else load_embedding(choice.neighbours)
        known = with_images(self.clients.examples)
        half = known if other else known[: (len(known) + 1) // 2]
        self.classes = pick_classes(choice.class_names, known, half)
        if len(self.classes) < 2:
            raise ValueError(f"classes={list(self.classes)}: avg and all of one client are the same; give at least 2")
        left = [name for name in with_images(self.makers.examples) if other or name not in self.classes]
        if not left:
            raise ValueError(f"{self.makers.examples.name}: the clients hold every class; leave some to generators")
        self.public, self._kept = self._divide()
        self._positions = tuple(self._of_client(name, len(self.classes)) for name in self.classes)
        self.num_images = self._number(left)
        if other:
            self._require_comparable()
        if len(self.public_positions) - self.num_images <= choice.components:
            raise ValueError(
                f"{choice.components} components need more than the {len(self.public_positions) - self.num_images} "
                "public images left beside the real floor; give fewer --components"
            )
        self._stock = torch.cat([self._of(self.makers, name) for name in left]).sort().values
        recipes = self._recipes(left, alone=other or len(left) > MIXED)
        names = spread_out(list(recipes), QUICK_GENERATORS) if choice.quick else list(recipes)
        self.recipes = {name: recipes[name] for name in names}

    @cached_property
    def federation(self) -> FeatureFederation:
        return FeatureFederation(self.clients.features, self._positions, self.classes)

    @cached_property
    def projection(self) -> Projection:
        """The principal components of public images that are not the real floor's."""
        kept = torch.ones(len(self.public.examples), dtype=torch.bool)
        kept[self._floor] = False
        rest = self.public_positions[kept[self.public_positions]]
        name = self.public.examples.name
        return Projection.fit(self.public.features[rest], self.choice.components, self.public.embedding.name, name)

    def draw(self, name: str) -> Tensor:
        """Features [num_images, D] of the images that a generator draws, the same at every call."""
        draws = generator(self.choice.seed, "class generators", name)
        return self._made(self.recipes[name]).sample(self.num_images, draws)

    def floor(self) -> Tensor:
        """Features [num_images, D] of real images of the clients' classes, held out, with the clients' shares."""
        return self.public.features[self._floor]

    def about(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what tables and figures say of some of the generators: a "heading", and the "kinds" of each."""
        return {"heading": self.describe(len(names)), "kinds": {name: self.recipes[name].kind for name in names}}

    def describe(self, number: int | None = None) -> str:
        """A line on clients and generators, of which `number` are used, for a title."""
        counts = sorted({len(part) for part in self._positions})
        sizes = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        whose = ", ".join(self.classes) if len(self.classes) <= 10 else f"{len(self.classes)} classes"
        return (
            f"clients: {self.clients.examples.name}, {whose}, {sizes} images each; generators: "
            f"{number or len(self.recipes)} of {self.makers.examples.name}, {self.num_images:,} images each"
        )

    def _require_comparable(self) -> None:
        """Refuses generators' images of another length of features, or most of which some client may hold."""
        sides = self.clients, self.makers
        shapes = [tuple(side.examples.inputs.shape[1:]) for side in sides]
        if shapes[0] != shapes[1]:
            dims = [side.embedding(side.examples.inputs[:1]).shape[1] for side in sides]
            if dims[0] != dims[1]:
                raise ValueError(
                    f"{self.clients.embedding.name} gives {dims[0]} features for {self.clients.examples.name} and "
                    f"{dims[1]} for {self.makers.examples.name}; choose another --embedding, or images of one size"
                )
            return
        held = {hash(image.tobytes()) for image in self.clients.examples.inputs.numpy()}
        shared = sum(hash(image.tobytes()) in held for image in self.makers.examples.inputs.numpy())
        if shared > SHARED * min(len(self.makers.examples), len(self.clients.examples)):
            raise ValueError(
                f"{shared} images of {self.makers.examples.name} are in {self.clients.examples.name} too: clients "
                "would hold what generators draw; give other --generators"
            )

    def _divide(self) -> tuple[Source, Tensor | None]:
        """The source of public images, and which images of the train split are left to clients and generators."""
        if "test" in self.clients.data.splits:
            return Source(self.clients.data, "test", self.clients.embedding), None
        kept = torch.ones(len(self.clients.examples), dtype=torch.bool)
        for name in with_images(self.clients.examples):
            own = self.clients.positions(name)
            kept[chosen(own, len(own) // PUBLIC, self.choice.seed, "public", name)] = False
        return self.clients, kept

    def _of(self, source: Source, name: str) -> Tensor:
        """Positions of a class's images that are not public."""
        found = source.positions(name)
        return found if self._kept is None or source is not self.clients else found[self._kept[found]]

    @cached_property
    def public_positions(self) -> Tensor:
        return torch.arange(len(self.public.examples)) if self._kept is None else (~self._kept).nonzero().flatten()

    def _public_of(self, name: str) -> Tensor:
        found = self.public.positions(name)
        return found if self._kept is None else found[~self._kept[found]]

    def _of_client(self, name: str, clients: int) -> Tensor:
        own, asked = self._of(self.clients, name), self.choice.client_images
        count = min(len(own), self.choice.total_images // clients) if asked is None else asked
        if not 2 <= count <= len(own):
            raise ValueError(
                f"client_images={count}: class {name!r} of {self.clients.examples.name} has {len(own)}; a client needs "
                "2 at least"
            )
        count = min(count, QUICK_CLIENT) if self.choice.quick else count
        return chosen(own, count, self.choice.seed, "client", name)

    def _number(self, makers: Sequence[str]) -> int:
        """Images that each generator draws: as asked, or as many as the smallest class and the floor allow."""
        asked = self.choice.num_images
        limits = {f"class {name!r} of {self.makers.examples.name}": len(self._of(self.makers, name)) for name in makers}
        total = sum(map(len, self._positions))
        for name, own in zip(self.classes, self._positions):
            real = int(max(0, len(self._public_of(name)) - 1) * total / len(own))
            limits[f"the real floor, for public images of class {name!r},"] = real
        who, most = min(limits.items(), key=lambda item: item[1])
        count = min(IMAGES, most) if asked is None else asked
        if not 2 <= count <= most:
            raise ValueError(f"num_images={count}: {who} allows {most}; give --num_images 2 to {most}")
        return min(count, QUICK_IMAGES) if self.choice.quick else count

    def _recipes(self, classes: Sequence[str], alone: bool) -> dict[str, Recipe]:
        found = class_recipes(classes)
        if alone:
            return found
        found |= mixture_recipes(classes, SHARES)
        counts = [self.num_images * reach for reach in REACH if self.num_images * reach <= len(self._stock)]
        labels = self.makers.examples.labels[self._stock]
        anchors = {}
        for name in classes:
            own = (labels == list(self.makers.examples.classes).index(name)).nonzero().flatten()
            anchors[name] = chosen(own, min(len(own), ANCHORS), self.choice.seed, "anchor", name).tolist()
        return found | neighbourhood_recipes(anchors, counts)

    @cached_property
    def _floor(self) -> Tensor:
        counts = torch.tensor([len(part) for part in self._positions], dtype=torch.float64)
        ends = (counts.cumsum(0) / counts.sum() * self.num_images).round().long()
        numbers = ends.diff(prepend=ends.new_zeros(1)).tolist()
        return torch.cat(
            [
                chosen(self._public_of(name), number, self.choice.seed, "floor", name)
                for name, number in zip(self.classes, numbers)
            ]
        )

    @cached_property
    def _points(self) -> Examples:
        """All images of the generators' data as points in the embedding's features, which are not copied."""
        return replace(self.makers.examples, inputs=self.makers.features)

    @cached_property
    def _near(self) -> Tensor:
        """The images that neighbourhoods are made of, in the features in which near is near."""
        source = self.makers if self._nearness is None else self.makers.with_embedding(self._nearness)
        return source.features[self._stock]

    def _made(self, recipe: Recipe) -> EmpiricalGenerator:
        if recipe.kind == "neighbourhood":
            own = self._stock[nearest(self._near, recipe.anchor, recipe.count - 1)]
            return EmpiricalGenerator(self._points, [own])
        groups = [self._of(self.makers, name) for name in recipe.shares]
        return EmpiricalGenerator(self._points, groups, list(recipe.shares.values()))


def with_images(examples: Examples) -> list[str]:
    return [name for name, count in zip(examples.classes, examples.label_counts().tolist()) if count]


def measure_all(
    study: Study,
    choice: ClassChoice,
    titles: Mapping[str, str],
    first: str,
    make: Callable[[ClassFederation, dict[str, FeatureFederation]], Any],
    controls: int,
    count: int | None = None,
) -> RankingStudy:
    """Steps "generators", `first` and "scores" of a measure: its `once()`, and its scores of generated features.

    Where all numbers are known no data is read.
    """
    about: dict[str, Any] | None = study.numbers.get("generators")
    if about is None or len(study.numbers.get("scores", {})) < 1 + len(about["kinds"]):  # and real images
        places = ClassFederation(choice)
        names = spread_out(list(places.recipes), count or len(places.recipes))
        if len(names) < 2:
            raise ValueError(f"{places.describe()}: a ranking needs two generators")
        about = study.step("generators", lambda: places.about(names))
        measure = make(places, places.federation.dealt(choice.seed, controls))
        study.step(first, measure.once)

        def run(name: str) -> dict[str, Any]:
            return measure(places.floor() if name == REAL else places.draw(name))

        study.each("scores", {name: name for name in (REAL, *names)}, run, "generators")
    scores, kinds = study.numbers["scores"], about["kinds"]
    rows = ScoredRows({name: scores[name] for name in kinds})
    return RankingStudy(rows, titles, about["heading"], scores[REAL][CLIENTS], kinds)
