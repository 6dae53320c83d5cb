"""Plans of evaluations: which scores on which split and embedding, checked before any long work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs, in_parts
from fedgen.embeddings import FeatureCache, NotFiniteError, embed
from fedgen.embeddings.base import say_example, say_samples
from fedgen.evaluation.marks import GAP_AGGREGATES, GAPS
from fedgen.evaluation.names import AGGREGATES, DISTRIBUTION, HELD_OUT, PART_TRAIN, PART_VAL, REPORT, UNPART
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.records import CONTROLS, FLOOR, Columns, ScoreRecord
from fedgen.evaluation.reference import Found, Reference, check_clients_of, check_count
from fedgen.evaluation.score_choice import ScoreChoice, applies, check_aggregates, check_distinct, choose_aggregates
from fedgen.evaluation.splits import LEAST, Split, StandIn, name_clients
from fedgen.own_code import warn
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import Weights, kept_influences, name_weights
from fedgen.scores.definition import Needs
from fedgen.scores.frechet.corrected import FewImagesError
from fedgen.seeds import subset

Place = tuple[str, str]  # the names of split and embedding
Device = torch.device | str
Counts = int | Mapping[Place, int]  # numbers of generated images, of all or by place


class EvaluationPlan:
    """The scores of an evaluation by split and embedding, in `places`; arguments as for `Evaluator`."""

    def __init__(
        self,
        splits: Sequence[Split],
        panels: Sequence[Panel],
        num_images: int,
        weights: Weights,
        aggregates: Sequence[str],
        controls: bool,
    ) -> None:
        check_distinct("split", [split.name for split in splits])
        self.controls = controls
        self.splits, self.panels, self.num_images, self.weights = list(splits), list(panels), num_images, weights
        three_way = any(split.name == UNPART for split in self.splits)
        self.aggregates = choose_aggregates([*aggregates, *(DISTRIBUTION if three_way else ())])
        self.all_choices = [choice for panel in panels for choice in panel.choices]
        self.columns = Columns(self.splits[0].name, self.panels[0].embedding.name)
        self._left_out: set[tuple[str, str]] = set()  # split and score
        self._check()
        scored = [(split, panel) for split, panel in product(self.splits, self.panels) if self.choices(split, panel)]
        self.places = {(split.name, panel.embedding.name): (split, panel) for split, panel in scored}

    def _check(self) -> None:
        if self.num_images < 2:
            raise ValueError(f"num_images={self.num_images}: scores need at least 2 generated images, better thousands")
        for split in self.splits:
            if not all(panel.on_model for panel in self.panels):
                with name_clients(split.images, self.splits):
                    self._check_images(split)
            for panel in self.panels:
                self._check_scores(split, panel)
        if self.controls:
            self._check_controls()
        self._check_held_out()
        self._check_classes()
        check_distinct("column", [name for name, _ in self.filled()])
        check_aggregates(self.aggregates, self.all_choices)

    def _check_images(self, split: Split) -> None:
        shape = self.splits[0].shape
        if split.shape != shape and split.kind != "texts":
            raise ValueError(f"split {split.name!r} has images {list(split.shape)}, the first {list(shape)}")
        for panel in self.panels:
            if not panel.on_model and not panel.embedding.takes(split.kind):
                raise ValueError(
                    f"score {panel.choices[0].name} compares features, and embedding {panel.embedding.name} takes"
                    f" {say_samples(panel.embedding.kind)}, got shape {[2, *split.shape]}: {split.source} has"
                    f" {split.kind}; take an embedding of these, such as {say_example(split.kind)}, or measure the"
                    " model's own loss, scores=['loss']"
                )
            panel.embedding.check((2, *split.shape))

    def _check_scores(self, split: Split, panel: Panel) -> None:
        names = [f"client {name!r} of split {split.name!r}" for name in split.client_names]
        check_count(panel.choices, self.num_images, "the generated set (num_images)")
        for choice in self.choices(split, panel):
            problems = [choice.definition.too_few(count, name) for count, name in zip(split.counts, names)]
            first = next(filter(None, problems), "")
            if first and split is not self.splits[0]:
                self._left_out.add((split.name, choice.name))
                warn(f"score {choice.name} is left out on split {split.name!r}: {first}")
            else:
                check_clients_of([choice], split.counts, names, self.weights)

    def _check_controls(self) -> None:
        """Controls of three-way splits that no image is left for are left out with a warning."""
        if not any(set(split.stand_ins) - {FLOOR} for split in self.splits):
            raise ValueError("controls are those of clients that never train; give the data module a `split`")
        first = self.splits[0]
        missing = [name for name in CONTROLS if first.name == PART_TRAIN and name not in first.stand_ins]
        if missing:
            warn(
                f"left out of the controls: {' and '.join(missing)}; fewer than {LEAST} images are left that are not"
                " scored. Score fewer clients (eval_clients of the split), raise its max_examples or leave it out,"
                " or hold out another share than half (held_out of the data module)"
            )

    def _check_held_out(self) -> None:
        held_out, first = self.held_out, self.splits[0]
        fits = held_out is not None and held_out is not first and held_out.client_names == first.client_names
        for score in () if fits else self.asking("held out"):
            why = (held_out and held_out.note) or f"there is no such split {REPORT!r}"
            raise ValueError(
                f"score {score} compares the images that clients train on (split {first.name!r}) with held-out"
                f" ones of the same clients, and {why}: let each client hold out at least two images (held_out of the"
                " data module, min_examples of the partition), or leave the score out"
            )
        for score in self.asking("labels"):
            if held_out is None:
                raise ValueError(
                    f"score {score} tests a classifier on the clients' held-out images, and there is no split"
                    f" {REPORT!r}: let each client hold out at least two images (held_out of the data module), or leave"
                    " the score out"
                )
            self._check_labels(score, (first, held_out), held_out, 2)

    def _check_classes(self) -> None:
        """Check the classes of scores of labels' classes and prompts, on every split."""
        for choice in (choice for choice in self.all_choices if choice.needs in ("classes", "prompts")):
            self._check_labels(choice.name, self.splits, self.splits[0], 1)
            try:
                choice.definition.check_classes(self.splits[0].classes)
            except ValueError as error:
                raise ValueError(f"score {choice.name}: {error}") from error

    @staticmethod
    def _check_labels(score: str, splits: Sequence[Split], model: Split, least: int) -> None:
        """Raise ValueError for splits without labels, of fewer classes than `least`, or of other classes than one's."""
        for split in splits:
            found = 0 if split.labels is None else len(split.labels.unique())
            if found < least:
                wanted = "two or more classes" if least > 1 else "known classes"
                raise ValueError(
                    f"score {score} needs images of {wanted}, and those of split {split.name!r}"
                    f" ({split.source}) have {found or 'no labels'}; leave the score out"
                )
            if split.classes != model.classes:
                raise ValueError(
                    f"score {score} needs one list of classes, but split {split.name!r} has"
                    f" {', '.join(split.classes)} and split {model.name!r} {', '.join(model.classes)}"
                )

    @property
    def held_out(self) -> Split | None:
        """The split of the training clients' held-out images, if there is one."""
        return next((split for split in self.splits if split.name in (REPORT, PART_VAL)), None)

    def stand_ins(self, split: Split, panel: Panel) -> dict[str, StandIn]:
        found = {} if panel.on_model else split.stand_ins
        return {name: one for name, one in found.items() if self.controls or name == FLOOR}

    def asking(self, needs: Needs) -> list[str]:
        return [choice.name for choice in self.all_choices if choice.needs == needs]

    def refuse(self, whole: Mapping[Needs, str], why: str) -> None:
        for needs, what in whole.items():
            for score in self.asking(needs):
                raise ValueError(f"score {score} needs one model's {what}, and {why}; leave {score} out")

    def choices(self, split: Split, panel: Panel) -> list[ScoreChoice]:
        """The scores of a panel that are measured on a split."""
        where = {"held out": split is self.splits[0], "labels": split.name in HELD_OUT}
        measured = [choice for choice in panel.choices if where.get(choice.needs, True)]
        return [choice for choice in measured if (split.name, choice.name) not in self._left_out]

    def leave_out(self, split: Split, panel: Panel, error: FewImagesError) -> None:
        """Measure scores that need many images no more on a split, whose clients have too few."""
        for choice in panel.choices:
            if choice.definition.least_images(1):
                self._left_out.add((split.name, choice.name))
                warn(f"score {choice.name} is left out on split {split.name!r}: {error}")
        if not self.choices(split, panel):
            del self.places[split.name, panel.embedding.name]

    def filled(self) -> Iterator[tuple[str, bool]]:
        """All columns that the evaluation fills, e.g. "report/kid_all", each with whether higher is better."""
        splits = {split.name: split for split in self.splits}
        for split, panel in product(self.splits, self.panels):
            for choice in self.choices(split, panel):
                score = self.columns.score(split.name, panel.embedding.name, choice.name)
                names = [name for name in self.aggregates if applies(name, choice)]
                yield from ((f"{score}_{name}", choice.higher_is_better and name != "var") for name in names)
        for (gap, sides), panel in product(GAPS.items(), self.panels):
            if set(sides) <= splits.keys():
                better, worse = (self.choices(splits[name], panel) for name in sides)
                for choice in (choice for choice in better if choice in worse and choice.definition.has_distribution):
                    score = self.columns.score(gap, panel.embedding.name, choice.name)
                    yield from ((f"{score}_{name}", False) for name in GAP_AGGREGATES)


def records_of(
    scores: Sequence[FederatedScore],
    client_names: Sequence[str],
    common: Mapping[str, Any],
    aggregates: Sequence[str] = AGGREGATES,
    choices: Sequence[ScoreChoice] = (),
    remarks: Mapping[str, str] | None = None,
) -> list[ScoreRecord]:
    """The records of scores, one an aggregate; avg carries the clients' own scores, where they are known."""
    settings, records = {choice.name: choice.settings for choice in choices}, list[ScoreRecord]()
    for score in scores:
        note = "; ".join(filter(None, [common.get("note", ""), (remarks or {}).get(score.name, ""), *score.notes]))
        details = {**common, "score_settings": settings.get(score.name, {}), "note": note}
        over_clients = score.errors_over_clients
        for aggregate in (name for name in aggregates if name in score.values):
            own = {"num_clients": len(client_names), **details, "error_over_clients": over_clients.get(aggregate)}
            if aggregate == "avg" and len(score.per_client):
                errors = [] if score.client_errors is None else score.client_errors.tolist()
                own |= {"per_client": score.per_client.tolist(), "per_client_errors": errors}
                own["client_names"] = list(client_names)
            if parts := score.real_influences.get(aggregate):
                own["real_influences"] = kept_influences(parts, score.error_parts["real"][aggregate])
            record = ScoreRecord(
                score=score.name,
                aggregate=aggregate,
                value=float(score.values[aggregate]),
                standard_error=score.errors.get(aggregate),
                error_parts={side: part[aggregate] for side, part in score.error_parts.items() if aggregate in part},
                terms={term: values[aggregate] for term, values in score.terms.items() if aggregate in values},
                higher_is_better=score.higher_is_better and aggregate != "var",
                **own,
            )
            records.append(record)
    return records


def remarks_by_score(
    choices: Sequence[ScoreChoice], dim: int, generated: float | None, clients: Sequence[float | None]
) -> dict[str, str]:
    """By score, its `remark` where there is one; arguments as there."""
    found = {choice.name: choice.definition.remark(choice.name, dim, generated, clients) for choice in choices}
    return {name: line for name, line in found.items() if line}


@dataclass(frozen=True, eq=False)
class StreamImages:
    """Generated images of one stream, and their features by split and embedding."""

    features: dict[Place, tuple[Tensor, Tensor | None]]  # or images, where scores take those, and the labels asked for
    images: Tensor


class RealSide:
    """The clients' side of a plan's scores, embedded once by `prepare`, and the records that they give."""

    def __init__(
        self, plan: EvaluationPlan, seed: int, cache: FeatureCache | None, batch_size: int, device: Device | None
    ) -> None:
        self.plan, self.seed, self.cache, self.batch_size, self.device = plan, seed, cache, batch_size, device
        self.references: dict[Place, Reference] = {}
        # features of the stand-ins' images, or those themselves, and labels, by split, embedding and name
        self.stand_ins: dict[tuple[str, str, str], tuple[Tensor | LazyInputs, Tensor | None]] = {}

    def prepare(self) -> None:
        """Embeds the clients' images of every split, and those of the stand-ins, once."""
        if self.references:
            return
        references: dict[Place, Reference] = {}
        for panel in self.plan.panels:
            self._check_sizes(panel)
            features = self._embed_real(panel)
            for split in self.plan.splits:
                if (reference := self._reference(split, panel, features)) is None:
                    continue
                key = split.name, panel.embedding.name
                references[key] = reference
                for name, stand_in in self.plan.stand_ins(split, panel).items():
                    labels = None if stand_in.labels is None else stand_in.labels[self._chosen(split, name)]
                    self.stand_ins[*key, name] = features[id(stand_in.images), name, split.stream], labels
        self.references = references

    def _check_sizes(self, panel: Panel) -> None:
        """Raises what a score will of too few images, before all are embedded: the smallest client is, first."""
        split = self.plan.splits[0]
        choices = [choice for choice in self.plan.choices(split, panel) if choice.definition.least_images(1)]
        if panel.on_images or not choices:
            return
        place = min(range(len(split.counts)), key=split.counts.__getitem__)
        own = torch.arange(split.counts[place]) + sum(split.counts[:place])
        images = split.images[own] if isinstance(split.images, Tensor) else split.images.view(own)
        features = self.embed(panel, images, "the smallest client with")
        few, dim = [], features.shape[1]
        for choice in choices:
            if self.plan.num_images < (least := choice.definition.least_images(dim)):
                whose, directions = f"the generated set (num_images) of score {choice.name}", min(dim, least - 2)
                raise FewImagesError(whose, self.plan.num_images, directions, least=least)
            few += [choice] if len(own) < least and choice.needs in ("features", "summaries") else []
        if not few:
            return
        try:
            Reference([features], few)
        except FewImagesError as error:
            raise error.of_client([f"client {split.client_names[place]!r} of split {split.name!r}"]) from None

    def _chosen(self, split: Split, name: str) -> Tensor:
        """The positions of a stand-in's images that are scored: as many as are generated."""
        return subset(len(split.stand_ins[name].images), self.plan.num_images, self.seed, name, split.stream)

    def _embed_real(self, panel: Panel) -> dict[Any, Any]:
        """Features of splits' images by the images' identity, which splits share, and of the stand-ins' chosen ones."""
        found: dict[Any, Any] = {}
        for split in self.plan.splits:
            if id(split.images) not in found:
                found[id(split.images)] = self._features(panel, split.images, split.reference, split)
        for split in self.plan.splits:
            for name, stand_in in self.plan.stand_ins(split, panel).items():
                if (place := (id(stand_in.images), name, split.stream)) in found:
                    continue
                known, chosen = found.get(id(stand_in.images)), self._chosen(split, name)
                own = stand_in.images if known is None else known
                rows = own[chosen] if isinstance(own, Tensor) else own.view(chosen)
                found[place] = self._features(panel, rows, f"{name} of {split.name}") if known is None else rows
        return found

    def _features(self, panel: Panel, images: Tensor | LazyInputs, what: str, split: Split | None = None) -> Any:
        """Features of images, a split's or a stand-in's; scores of the images themselves take those."""
        if panel.on_images:
            return images  # those on disk are read as they are compared
        try:
            with name_clients(images, self.plan.splits):
                return self.embed(panel, images, f"{what} with", self.cache)
        except NotFiniteError as error:
            client = f", client {split.client_of(error.place)!r}" if split else ""
            raise ValueError(f"{what}{client}: {error}") from error

    def _reference(self, split: Split, panel: Panel, features: Mapping[Any, Any]) -> Reference | None:
        plan, choices, counts = self.plan, self.plan.choices(split, panel), list(split.counts)
        if not choices:
            return None
        parts = in_parts(features[id(split.images)], counts)
        other = plan.held_out if any(choice.needs == "held out" for choice in choices) else None
        held_out = features[id(other.images)].split(list(other.counts)) if other else None
        labels = None if split.labels is None else split.labels.split(counts)
        texts = panel.embedding.text_features if panel.embedding.takes_texts else None
        more = held_out, labels, split.classes, texts
        try:
            with name_clients(split.images, [split]):
                return Reference(parts, choices, plan.weights, plan.aggregates, *more)
        except FewImagesError as error:
            named = error.of_client([f"client {name!r} of split {split.name!r}" for name in split.client_names])
            if split is plan.splits[0]:
                raise named from None
            plan.leave_out(split, panel, named)
            return self._reference(split, panel, features)

    def scores(self, made: StreamImages, **asked: Any) -> Found:
        """The scores of generated images, and of what is `asked` of their model."""
        found, places = made.features.items(), self.plan.places
        return {key: self.score(*places[key], features, labels=labels, **asked) for key, (features, labels) in found}

    def score(self, split: Split, panel: Panel, features: Tensor, **options: Any) -> list[FederatedScore]:
        """The scores of generated features on a split; none where none of the panel's is measured there."""
        reference = self.references.get((split.name, panel.embedding.name))
        with name_clients(split.images, [split]):
            return reference.score(features, **options) if reference else []

    def recorded_counts(self, split: Split) -> Sequence[float]:
        """The numbers of images that records may hold: each client's."""
        return split.counts

    def described(self, record: ScoreRecord) -> ScoreRecord:
        """A record with how clients gave their side of it: as it is, since their images are here."""
        return record

    def records(
        self, found: Found, generator: str, counts: Counts, used: Counts | None = None, **details: Any
    ) -> list[ScoreRecord]:
        """The records of scores and of gaps; the `counts` of generated images may differ by split and embedding.

        `used` are those with features, where some texts have none: models that differ in it compare all the same.
        """
        details, splits = {"generator": generator, **details}, {split.name: split for split in self.plan.splits}
        used = counts if used is None else used
        panels = {panel.embedding.name: panel for panel in self.plan.panels}
        records: list[ScoreRecord] = []
        for (name, embedding), scores in found.items():
            records += self._records(scores, panels[embedding], [splits[name]], counts, used, split=name, **details)
        for panel, (gap, sides) in product(self.plan.panels, GAPS.items()):
            better, worse = ({one.name: one for one in found.get((name, panel.embedding.name), ())} for name in sides)
            names = [choice.name for choice in panel.choices if choice.definition.has_distribution]
            if scores := [_gap(better[name], worse[name]) for name in names if name in better and name in worse]:
                both = [splits[side] for side in sides]
                records += self._records(scores, panel, both, counts, used, split=gap, **details)
        return [self.described(record) for record in records]

    def _records(
        self,
        scores: Sequence[FederatedScore],
        panel: Panel,
        sides: Sequence[Split],
        counts: Counts,
        used: Counts,
        **details: Any,
    ) -> list[ScoreRecord]:
        """The records of scores on a split, or of a gap between two, of which the worse comes last."""
        embedding, split, remarks = panel.embedding, sides[-1], dict[str, str]()
        names = [" - ".join(dict.fromkeys(pair[::-1])) for pair in zip(*[side.client_names for side in sides])]
        place = split.name, embedding.name
        made, left = (count if isinstance(count, int) else count[place] for count in (counts, used))
        if len(sides) == 1 and not panel.on_images:  # of a gap the sizes' bias cancels
            remarks = remarks_by_score(panel.choices, embedding.dim, left, self.recorded_counts(split))
        common = {
            "embedding": embedding.name,
            "embedding_fingerprint": embedding.fingerprint(),
            "embedding_settings": dict(embedding.settings),
            "reference": split.reference,
            "num_generated": made,
            "seed": self.seed,
            "weights": name_weights(self.plan.weights),
            **details,
            "note": "; ".join(dict.fromkeys(filter(None, [details.get("note"), *[side.note for side in sides]]))),
        }
        return records_of(scores, names, common, self.plan.aggregates, panel.choices, remarks)

    def embed(
        self, panel: Panel, images: Tensor | LazyInputs, what: str = "with", cache: FeatureCache | None = None
    ) -> Tensor:
        """Features of images, or for a panel of image scores the images, on the device."""
        if panel.on_images:
            images = images[:]
            return images if self.device is None else images.to(self.device)
        name = panel.embedding.name
        return embed(panel.embedding, images, self.batch_size, self.device, f"embedding {what} {name}", cache)


def _gap(better: FederatedScore, worse: FederatedScore) -> FederatedScore:
    """One score of one generated set on two splits of clients that are paired in their order and equally weighted."""
    sign = -1.0 if better.higher_is_better else 1.0
    mine, theirs = better.over_clients, worse.over_clients
    over_clients = theirs.minus(mine).times(sign) if mine is not None and theirs is not None else None
    return FederatedScore(
        better.name,
        (worse.per_client - better.per_client) * sign,
        {name: (worse.values[name] - better.values[name]) * sign for name in GAP_AGGREGATES if name in better.values},
        over_clients.errors() if over_clients else {},
        over_clients=over_clients,
    )
