"""A hundred generators of known kind against clients that hold a class each: how FID and KID rank them in two ways.

Generators whose order means something, had without training: classes that no client holds, mixtures of these, and an
image with its nearest neighbours; or the classes of other data, as in the papers CIFAR-100's for clients of CIFAR-10's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from fedgen.data import Examples
from fedgen.embeddings import load_embedding
from fedgen.experiments.engine import features
from fedgen.experiments.engine.rankings import BOTH, CLIENTS, FLAT, RankingStudy, ScoredRows, best_of, gap_of
from fedgen.experiments.engine.scored_checkpoints import title_of
from fedgen.experiments.engine.study import Study, at_least, expectation, make_table
from fedgen.experiments.ranking.sample_size import REAL
from fedgen.models import EmpiricalGenerator
from fedgen.models.empirical import nearest
from fedgen.scores import FrechetReference, KernelReference
from fedgen.seeds import generator
from fedgen.statistics import Projection

KINDS = ("class", "mixture", "neighbourhood")
SHARES = (0.25, 0.5, 0.75)  # of the first of two classes
REACH = (1, 2, 4, 8, 16)  # images that a neighbourhood stores, in units of those drawn
ANCHORS = 2  # neighbourhoods of each reach around images of each class
MIXED = 10  # of more classes neither mixtures nor neighbourhoods are made


@dataclass(frozen=True)
class Recipe:
    kind: str  # one of KINDS
    # of a class or mixture: the part of the images drawn that each class has
    shares: Mapping[str, float] = field(default_factory=dict)
    anchor: int = 0  # of a neighbourhood: its image's place among the stored ones
    count: int = 0  # of a neighbourhood: the images that it stores, the anchor being one


def mixture_recipes(classes: Sequence[str], shares: Sequence[float] = SHARES) -> dict[str, Recipe]:
    """Each two classes with each share, and equal parts of each three, of all but one and of all: each once."""
    parts: list[dict[str, float]] = []
    for first, second in combinations(classes, 2):
        parts += [{first: share, second: 1 - share} for share in shares]
    sizes = sorted({size for size in (3, len(classes) - 1, len(classes)) if 3 <= size <= len(classes)})
    parts += [dict.fromkeys(some, 1 / size) for size in sizes for some in combinations(classes, size)]
    return {", ".join(f"{share:.0%} {name}" for name, share in part.items()): Recipe("mixture", part) for part in parts}


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
class ClassChoice(features.ImageChoice):
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

    def resolved(self) -> dict[str, Any]:
        return {"classes": self.classes and tuple(map(str, self.classes))}  # on the command line `[0, 1]` are numbers


class ClassFederation:
    """The images of a choice: which are clients', which generators', which public, for floor and projection."""

    def __init__(self, choice: ClassChoice) -> None:
        self.choice = choice
        self.clients = choice.source()
        other = choice.generators not in (None, choice.data)
        self.makers = self.clients
        if other:
            data = features.open_data(str(choice.generators), choice.root)
            self.makers = features.Source(data, "train", self.clients.embedding)
        self._nearness = None if choice.neighbours == choice.embedding else load_embedding(choice.neighbours)
        known = with_images(self.clients.examples)
        half = known if other else known[: (len(known) + 1) // 2]
        self.classes = features.pick_classes(choice.resolved()["classes"], known, half)
        if len(self.classes) < 2:
            raise ValueError(f"classes={list(self.classes)}: avg and all of one client are the same; give at least 2")
        left = [name for name in with_images(self.makers.examples) if other or name not in self.classes]
        if not left:
            raise ValueError(f"{self.makers.examples.name}: the clients hold every class; leave some to generators")
        self.public, self._kept = self.clients, None  # and which images of the train split are clients' and generators'
        if "test" in self.clients.data.splits:
            self.public = features.Source(self.clients.data, "test", self.clients.embedding)
        else:  # a fifth of each class at random
            self._kept = torch.ones(len(self.clients.examples), dtype=torch.bool)
            for name in known:
                own = self.clients.positions(name)
                self._kept[features.chosen(own, len(own) // PUBLIC, choice.seed, "public", name)] = False
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
    def federation(self) -> features.FeatureFederation:
        return features.FeatureFederation(self.clients.features, self._positions, self.classes)

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
        recipe, draws = self.recipes[name], generator(self.choice.seed, "class generators", name)
        points = replace(self.makers.examples, inputs=self.makers.features)  # which are not copied
        if recipe.kind == "neighbourhood":
            own = self._stock[nearest(self._near, recipe.anchor, recipe.count - 1)]
            made = EmpiricalGenerator(points, [own])
        else:
            groups = [self._of(self.makers, name) for name in recipe.shares]
            made = EmpiricalGenerator(points, groups, list(recipe.shares.values()))
        return made.sample(self.num_images, draws)

    def floor(self) -> Tensor:
        """Features [num_images, D] of real images of the clients' classes, held out, with the clients' shares."""
        return self.public.features[self._floor]

    def describe(self, number: int | None = None) -> str:
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

    def _of(self, source: features.Source, name: str) -> Tensor:
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
        return features.chosen(own, count, self.choice.seed, "client", name)

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
        found = {name: Recipe("class", {name: 1.0}) for name in classes}
        if alone:
            return found
        found |= mixture_recipes(classes, SHARES)
        counts = [self.num_images * reach for reach in REACH if self.num_images * reach <= len(self._stock)]
        labels = self.makers.examples.labels[self._stock]
        for name in classes:
            own = (labels == list(self.makers.examples.classes).index(name)).nonzero().flatten()
            anchors = features.chosen(own, min(len(own), ANCHORS), self.choice.seed, "anchor", name).tolist()
            for anchor, number in product(anchors, counts):
                found[f"{number:,} nearest to {name} {anchor}"] = Recipe("neighbourhood", {}, anchor, number)
        return found

    @cached_property
    def _floor(self) -> Tensor:
        counts = torch.tensor([len(part) for part in self._positions], dtype=torch.float64)
        ends = (counts.cumsum(0) / counts.sum() * self.num_images).round().long()
        numbers = ends.diff(prepend=ends.new_zeros(1)).tolist()
        own = {name: (self._public_of(name), number) for name, number in zip(self.classes, numbers)}
        return torch.cat([features.chosen(*one, self.choice.seed, "floor", name) for name, one in own.items()])

    @cached_property
    def _near(self) -> Tensor:
        """The images that neighbourhoods are made of, in the features in which near is near."""
        source = self.makers if self._nearness is None else self.makers.with_embedding(self._nearness)
        return source.features[self._stock]


def with_images(examples: Examples) -> list[str]:
    return [name for name, count in zip(examples.classes, examples.label_counts().tolist()) if count]


def measure_all(
    study: Study,
    choice: ClassChoice,
    titles: Mapping[str, str],
    first: str,
    make: Callable[[ClassFederation, dict[str, features.FeatureFederation]], Any],
    controls: int,
    count: int | None = None,
) -> RankingStudy:
    """Steps "generators", `first` and "scores" of a measure; where all numbers are known no data is read."""
    about: dict[str, Any] | None = study.numbers.get("generators")
    if about is None or len(study.numbers.get("scores", {})) < 1 + len(about["kinds"]):  # and real images
        places = ClassFederation(choice)
        names = spread_out(list(places.recipes), count or len(places.recipes))
        if len(names) < 2:
            raise ValueError(f"{places.describe()}: a ranking needs two generators")
        kinds = {name: places.recipes[name].kind for name in names}
        own: dict[str, Any] = {"heading": places.describe(len(names)), "kinds": kinds}
        about = study.step("generators", lambda: own)
        measure = make(places, places.federation.with_iid(choice.seed, controls))
        study.step(first, measure.once)

        def run(name: str) -> dict[str, Any]:
            return measure(places.floor() if name == REAL else places.draw(name))

        study.each("scores", {name: name for name in (REAL, *names)}, run, "generators")
    scores, kinds = study.numbers["scores"], about["kinds"]
    rows = ScoredRows({name: scores[name] for name in kinds})
    return RankingStudy(rows, titles, about["heading"], scores[REAL][CLIENTS], kinds)


SCORES = ("fid", features.PCA, features.CORRECTED, "kid")


def class_generators(controls: int = 3, **options: Any) -> None:
    """Scores the generators by FID, FID on few components and KID, avg and all; prints and draws how they are ranked.

    The papers' settings are `--data cifar10 --generators cifar100` and `--data imagenet32 --generators cifar100`, with
    `--embedding inception-v3-compat`.

    Args:
        controls: IID splits of the clients' images.
    """
    choice = ClassChoice(total_images=CLIENTS_IMAGES, **options)
    controls = choice.smaller(controls, 1)
    at_least(1, controls=controls, components=choice.components)
    study = choice.study("class-generators", controls=controls)
    titles = {score: title_of(score, choice.components) for score in SCORES}
    ranking = measure_all(study, choice, titles, "kernel", ClassMeasure, controls)
    ranking = replace(ranking, titles={score: titles[score] for score in SCORES if score in ranking.rows.scores})
    found, kernel = study.step("found", lambda: summarise(ranking)), study.numbers["kernel"]["mean"]
    mean = found["mean term"]
    text = f"FID's mean term has one gap for all generators, to {mean['spread'] / mean['mean']:.1e} of it: the rest is"
    tables: list[Table | str] = [
        ranking.table(found["scores"]),
        floor_table(ranking),
        *ranking.lines(found["scores"], kernel),
        expectation(f"{text} the covariances'", mean["spread"] < FLAT * mean["mean"]),
    ]
    study.report(tables, ranking.draw(found["scores"], study.figure))


class ClassMeasure:
    def __init__(self, places: ClassFederation, sides: Mapping[str, features.FeatureFederation]) -> None:
        self.projection = places.projection
        projected = self.projection.project(sides[CLIENTS].features)
        few = {where: replace(side, features=projected).parts() for where, side in sides.items()}
        self.few = {where: features.component_reference(parts, places.num_images) for where, parts in few.items()}
        self.frechet = {where: FrechetReference.from_features(side.parts()) for where, side in sides.items()}
        self.kernel = KernelReference.from_features(sides[CLIENTS].parts())

    def once(self) -> dict[str, float]:
        """The mean kernel within the pool, and KID's gap, which are one number for all generators."""
        return {"mean": self.kernel.within_pool, "gap": self.kernel.gap}

    def __call__(self, generated: Tensor) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of generated features."""
        reduced = self.projection.project(generated)
        clients = features.rows_of([self.frechet[CLIENTS].score(generated), self.kernel.score(generated)])
        found = {}
        for where, few in self.few.items():
            plain = clients
            if where != CLIENTS:  # avg is computed; all, and the errors of both, are those of the clients' pool: to
                # first order an IID client is the pool, and errors cost three times the distance (within 1 percent)
                iid, whole = self.frechet[where], clients["fid"]
                avg, error = float(iid.weights @ iid.per_client(generated)), whole["errors"]["all"]
                plain = {"fid": {"avg": avg, "all": whole["all"], "errors": {"avg": error, "all": error}}}
            found[where] = plain | features.rows_of(features.component_scores(few, reduced))
        return found


def summarise(ranking: RankingStudy) -> dict[str, Any]:
    rows, kinds = ranking.rows.clients, list((ranking.kinds or {}).values())
    found = ranking.rows.compared(ranking.titles)
    means = {name: {"mean term": row["fid"]["terms"]["mean"]} for name, row in rows.items()}
    whose: dict[str, dict[str, int]] = {}
    for score in (score for score in ("fid", features.PCA, features.CORRECTED) if score in found):
        pairs = [sorted((kinds[i], kinds[j]), key=KINDS.index) for i, j in found[score]["evidence"]]
        titles = [" and ".join(dict.fromkeys(pair)) for pair in pairs]
        whose[score] = {title: titles.count(title) for title in sorted(set(titles))}
    return {"scores": found, "mean term": gap_of(means, "mean term"), "kinds": whose}


def floor_table(ranking: RankingStudy) -> Table:
    rows, lines = ranking.rows.clients, []
    for score, title in ranking.titles.items():
        best = [(how, best_of(rows, score, how)) for how in BOTH]
        its = [cell for how, name in best for cell in (name, rows[name][score][how])]
        lines.append([title, *(ranking.real[score][how] for how in BOTH), *its])
    headings = ("score", "real avg", "real all", "best by avg", "its avg", "best by all", "its all")
    title = "held-out images of the clients' classes, and the best of the generators"
    return make_table(title, headings, lines, names=("score", "best by avg", "best by all"))
