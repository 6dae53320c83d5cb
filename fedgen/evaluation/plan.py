"""Plans of evaluations: which scores on which split and embedding, checked before any long work."""

from collections.abc import Iterator, Mapping, Sequence

from fedgen.evaluation.aggregates import applies, check_aggregates, choose_aggregates
from fedgen.evaluation.gaps import AGGREGATES as GAP_AGGREGATES
from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.reference import check_clients_of, check_count
from fedgen.evaluation.real.splits import LEAST, Split, StandIn, name_clients
from fedgen.evaluation.real.three_splits import CONTROLS
from fedgen.evaluation.record_names import DISTRIBUTION, HELD_OUT, PART_TRAIN, PART_VAL, REPORT, UNPART
from fedgen.evaluation.records import FLOOR, Columns
from fedgen.evaluation.score_choice import ScoreChoice, check_distinct
from fedgen.own_code import warn
from fedgen.scores.aggregate import Weights
from fedgen.scores.definition import Needs


class EvaluationPlan:
    """The scores of an evaluation by split and embedding.

    Args:
        splits: the clients' images; the first is the one to select by.
        panels: embeddings with their scores.
        num_images: generated images a split.
        weights: of the clients.
        aggregates: beside avg, all and worst; those of the clients' distribution come with three-way splits.
        controls: whether all stand-ins are scored, or the floor alone.

    Raises:
        ValueError: for images that an embedding or a score cannot take, clients with too few images, missing labels,
            and repeated names.
    """

    def __init__(
        self,
        splits: Sequence[Split],
        panels: Sequence[Panel],
        num_images: int,
        weights: Weights = "examples",
        aggregates: Sequence[str] = (),
        controls: bool = False,
    ) -> None:
        self.controls = controls
        self.splits, self.panels, self.num_images, self.weights = list(splits), list(panels), num_images, weights
        three_way = any(split.name == UNPART for split in self.splits)
        self.aggregates = choose_aggregates([*aggregates, *(DISTRIBUTION if three_way else ())])
        self._left_out: set[tuple[str, str]] = set()  # split and score
        self._check()

    def _check(self) -> None:
        check_distinct("split", [split.name for split in self.splits])
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
        for score in self.asking("held out"):
            self._check_held_out(score)
        for score in self.asking("labels"):
            self._check_tested(score)
        self._check_classes()
        check_distinct("column", self.column_names())
        check_aggregates(self.aggregates, [choice for panel in self.panels for choice in panel.choices])

    def _check_images(self, split: Split) -> None:
        """Check the images, or points, that scores compare: all splits' are of one shape, which embeddings take."""
        shape = self.splits[0].shape
        if split.shape != shape:
            raise ValueError(f"split {split.name!r} has images {list(split.shape)}, the first {list(shape)}")
        for panel in self.panels:
            if split.kind == "texts" and not panel.on_model:
                raise ValueError(
                    f"score {panel.choices[0].name} compares images, and {split.source} has texts: measure the model's"
                    " own loss of them, scores=['loss']"
                )
            panel.embedding.check((2, *split.shape))

    def _check_scores(self, split: Split, panel: Panel) -> None:
        """Check sizes; of splits beside the first, scores that need more images than a client holds are left out with a
        warning.
        """
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

    def _check_held_out(self, score: str) -> None:
        held_out, first = self.held_out, self.splits[0]
        if held_out is None or held_out is first or held_out.client_names != first.client_names:
            why = (held_out and held_out.note) or f"there is no such split {REPORT!r}"
            raise ValueError(
                f"score {score} compares the images that clients train on (split {first.name!r}) with held-out"
                f" ones of the same clients, and {why}: let each client hold out at least two images (held_out of the"
                " data module, min_examples of the partition), or leave the score out"
            )

    def _check_tested(self, score: str) -> None:
        held_out = self.held_out
        if held_out is None:
            raise ValueError(
                f"score {score} tests a classifier on the clients' held-out images, and there is no split {REPORT!r}:"
                " let each client hold out at least two images (held_out of the data module), or leave the score out"
            )
        self._check_labels(score, (self.splits[0], held_out), held_out, 2)

    def _check_classes(self) -> None:
        """Check the classes of scores that compare images with their labels' prompts, on every split."""
        for choice in (choice for panel in self.panels for choice in panel.choices if choice.needs == "prompts"):
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

    def stand_ins(self, split: Split) -> dict[str, StandIn]:
        """Return what is scored in a generator's place on a split."""
        return {name: one for name, one in split.stand_ins.items() if self.controls or name == FLOOR}

    def asking(self, needs: Needs) -> list[str]:
        """The names of the scores with a need."""
        return [choice.name for panel in self.panels for choice in panel.choices if choice.needs == needs]

    def refuse(self, whole: Mapping[Needs, str], why: str) -> None:
        """Raise ValueError if a score needs one model.

        Args:
            whole: what such scores need, and what of the one model that is.
            why: there is no such model, as the end of a sentence.
        """
        for needs, what in whole.items():
            for score in self.asking(needs):
                raise ValueError(f"score {score} needs one model's {what}, and {why}; leave {score} out")

    def choices(self, split: Split, panel: Panel) -> list[ScoreChoice]:
        """The scores of a panel that are measured on a split."""
        where = {"held out": split is self.splits[0], "labels": split.name in HELD_OUT}
        return [
            choice
            for choice in panel.choices
            if where.get(choice.needs, True) and (split.name, choice.name) not in self._left_out
        ]

    def keep_aggregates(self, names: Sequence[str]) -> None:
        """Leave all other aggregates out: what they are made of is not to be known."""
        self.aggregates = tuple(name for name in self.aggregates if name in names)

    @property
    def columns(self) -> Columns:
        """The names of the evaluation's columns."""
        return Columns(self.splits[0].name, self.panels[0].embedding.name)

    def column_names(self) -> list[str]:
        """All columns that the evaluation fills, e.g. "fid_avg", "report/kid_all"."""
        return [name for name, _ in self._columns()]

    def directions(self) -> dict[str, bool]:
        """Return by column whether higher is better."""
        return dict(self._columns())

    def _columns(self) -> Iterator[tuple[str, bool]]:
        for split in self.splits:
            for panel in self.panels:
                for choice in self.choices(split, panel):
                    score = self.columns.score(split.name, panel.embedding.name, choice.name)
                    names = [name for name in self.aggregates if applies(name, choice)]
                    yield from ((f"{score}_{name}", choice.higher_is_better and name != "var") for name in names)
        for gap, sides in GAPS.items():
            for panel in self.panels:
                for choice in self._on_all(sides, panel):
                    score = self.columns.score(gap, panel.embedding.name, choice.name)
                    yield from ((f"{score}_{name}", False) for name in GAP_AGGREGATES)

    def _on_all(self, names: Sequence[str], panel: Panel) -> list[ScoreChoice]:
        """The scores of a panel that are measured on all of these splits."""
        splits = {split.name: split for split in self.splits}
        if not set(names) <= set(splits):
            return []
        found = [self.choices(splits[name], panel) for name in names]
        return [choice for choice in found[0] if all(choice in other for other in found[1:])]
