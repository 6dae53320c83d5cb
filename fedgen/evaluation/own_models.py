"""Scores of clients' own models: where tensors are personal, each participating client is scored with its own model.

A client's own model is the server's with the client's personal tensors after its last turn; without a turn so far, it
is the server's. A few examples show whether personal tensors change what a score uses. If only the critic is personal,
all clients share one generator: scores of images have both aggregates, while scores of the model itself, such as its
loss, are still each client's own. If images depend on personal tensors, each client's images are compared with its own
real images, so there is no aggregate all. The cross-client matrix scores each own model on each client's images.

A moving average follows the server's weights at the end of each round, so its copies of personal tensors are averages
of tensors that no client trains. In a client's own model the average therefore has the personal tensors as they are.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from fedgen.data.lazy_examples import join_inputs
from fedgen.data.optional_attributes import optional
from fedgen.evaluation.evaluate import Evaluation, Evaluator
from fedgen.evaluation.image_sampling import DescribedSampler, Sample
from fedgen.evaluation.marks import GAPS
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.records import MODEL, grouped, say_number
from fedgen.evaluation.reference import Found
from fedgen.evaluation.runs.rebuild import load_weights, personal_tensors, tensors_in_place
from fedgen.evaluation.runs.run_folder import Run, RunLike
from fedgen.evaluation.runs.scores_file import MATRIX
from fedgen.evaluation.score_choice import with_further
from fedgen.evaluation.splits import Split
from fedgen.evaluation.tables.table import new_table
from fedgen.io.files import write_json
from fedgen.models.ema import with_averages
from fedgen.progress import track
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import resolve_weights, without_pool
from fedgen.scores.definition import BY_CLASS
from fedgen.seeds import generator, isolated, seed_all

OWN_NOTE = "each participating client's own model"
EXAMPLES = 8  # on which it is tried whether clients' tensors change anything
PROBE = "own models"  # names the draws of such a trial
MOVE = 0.1  # standard deviation of what is added to tensors to see what depends on them

Tensors = Mapping[str, Tensor]
Personal = Mapping[int, Tensors]  # clients' tensors by name, by their numbers among the clients that train


class SingleClients:
    """Scores each client's own model in turn, then all aggregates but 'all', which needs one model."""

    def __init__(self, evaluator: Evaluator, splits: Sequence[Split], panels: Sequence[Panel]) -> None:
        self.evaluator, self.splits, self.panels = evaluator, splits, panels
        places = [(split, place) for split in splits for place in range(len(split.client_names))]
        self.places = grouped(places, lambda one: one[0].client_names[one[1]])
        self._ones: dict[tuple[str, int], Evaluator] = {}
        self._found: dict[tuple[str, str, str], dict[int, FederatedScore]] = {}

    def score(self, client: str, model: nn.Module, round: int) -> Tensor:
        """Keep the scores of a client's own model; return its images of the first split that has the client."""
        own, sample = [split for split, _ in self.places[client]], self.evaluator.sampler_of(model)
        first = torch.empty(0)
        for made in self.evaluator.embed_generated(sample, round, lambda s, panel: s in own and panel in self.panels):
            first = first if len(first) else made.images
            for split, place in self.places[client]:
                if (split.name, place) not in self._ones:
                    self._ones[split.name, place] = self.evaluator.of_one(split, place, self.panels)
                    self._ones[split.name, place].prepare()
                one = self._ones[split.name, place]
                features = {key: made.features[key] for key in one.plan.places if key in made.features}
                for key, scores in one.real.scores(replace(made, features=features), **one.asked_of(model)).items():
                    for score in scores:
                        self._found.setdefault((*key, score.name), {})[place] = score
        return first

    def take(self) -> Found:
        """The scores over all clients, each of which was scored since the last call, by split and embedding."""
        found, self._found, plan = self._found, {}, self.evaluator.plan
        joined: Found = {}
        for split in self.splits:
            weights = resolve_weights(self.evaluator.weights, split.counts)
            for panel in self.panels:
                for choice in plan.choices(split, panel):
                    of_each = found[split.name, panel.embedding.name, choice.name]
                    values = torch.tensor([of_each[place].values["avg"] for place in range(len(split.counts))])
                    score = without_pool(choice.name, values.double(), weights, choice.higher_is_better)
                    score = with_further(score, choice, plan.aggregates, weights)
                    joined.setdefault((split.name, panel.embedding.name), []).append(score)
        return joined


class OwnModels:
    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._splits = [one for one in evaluator.splits if set(evaluator.trained or ()) & set(one.client_names)]
        self._scored = {name for split in self._splits for name in split.client_names}
        self._singles: dict[tuple[str, ...], SingleClients] = {}

    def evaluate(
        self, module: nn.Module, sample: Sample, personal: Personal, own: Sequence[Panel], round: int, **details: Any
    ) -> Evaluation:
        """The scores of a model whose clients' tensors change those in some embeddings, as `check` found."""
        evaluator, asked = self.evaluator, self.evaluator.asked_of(module)
        evaluator.prepare()
        found, first = Found(), torch.empty(0)
        for made in evaluator.embed_generated(sample, round, lambda s, p: s not in self._splits or p not in own):
            found |= evaluator.real.scores(made, **asked)
            first = first if len(first) else made.images
        names = tuple(panel.embedding.name for panel in own)
        singles = self._singles.get(names) or self._singles.setdefault(
            names, SingleClients(evaluator, self._splits, own)
        )
        trained = evaluator.trained or []
        by_name = {trained[number]: tensors for number, tensors in personal.items()}
        each, drawn = -(-evaluator.num_images // len(singles.places)), []
        for client in track(list(singles.places), "scoring clients' own models", len(singles.places), "clients"):
            with own_in_place(module, by_name.get(client, {})):
                drawn.append(singles.score(client, module, round)[:each])
        # images of the clients in turn
        mine, images = singles.take(), join_inputs(drawn).unflatten(0, (len(drawn), -1)).transpose(0, 1).flatten(0, 1)
        details |= {"round": round, "sampling": dict(optional(sample, DescribedSampler, "sampling"))}
        whole = {key: scores for key, scores in found.items() if key[1] not in names}
        mine |= {key: scores for key, scores in found.items() if key[1] in names}
        records = evaluator.real.records(whole, MODEL, evaluator.num_generated, **details)
        records += evaluator.real.records(mine, MODEL, evaluator.num_generated, **{**details, "note": OWN_NOTE})
        return Evaluation(records, images if len(images) else first)

    def check(self, module: nn.Module, personal: Personal) -> list[Panel]:
        """The embeddings in which some scored client's own model differs from the server's."""
        trained = self.evaluator.trained or []
        known = {number: own for number, own in personal.items() if number < len(trained)}
        scored = [own for number, own in known.items() if trained[number] in self._scored]
        others = [own for number, own in personal.items() if number not in known]
        found = self._changed(module, [*scored, *others])
        if found and others:
            raise ValueError(
                f"scores depend on tensors that clients keep, client {max(personal)} among them, and the evaluation"
                f" knows {len(trained)} clients that train: evaluate over the FederatedDataModule of its training"
            )
        self.refuse(found)
        return found

    def hanging_on(self, module: nn.Module, tensors: Tensors) -> list[Panel]:
        """The embeddings whose scores change when tensors move a little: what to expect before training moves them."""
        with isolated():
            seed_all(self.evaluator.seed, "moved")
            floats = {name: own for name, own in tensors.items() if own.is_floating_point() or own.is_complex()}
            moved = {name: own.detach() + MOVE * torch.randn_like(own) for name, own in floats.items()}
        return self._changed(module, [moved])

    def refuse(self, own: Sequence[Panel]) -> None:
        """Raise ValueError if a score needs one model's images where each client has its own."""
        if not all(panel.on_model for panel in own):
            whole = dict.fromkeys(BY_CLASS, "images by class")
            whole["held out"] = "images beside two sets of each client's"
            self.evaluator.plan.refuse(whole, "where clients keep tensors that images depend on there is none")

    def column_names(self, own: Sequence[Panel]) -> list[str]:
        places = {split.name for split in self._splits}
        places |= {gap for gap, sides in GAPS.items() if places & set(sides)}
        name = self.evaluator.plan.columns.score
        scores = {name(p, panel.embedding.name, one.name) for p in places for panel in own for one in panel.choices}
        return [column for column in self.evaluator.column_names() if column.removesuffix("_all") not in scores]

    def _changed(self, module: nn.Module, models: Sequence[Tensors]) -> list[Panel]:
        """The embeddings in which some model differs from the server's by more than two runs of that differ."""
        found = []
        for on_model in (False, True):
            panels = [panel for panel in self.evaluator.panels if panel.on_model == on_model]
            if not (panels and models):
                continue
            server, again = self._answer(module, {}, on_model), self._answer(module, {}, on_model)
            reaches = [4 * float((a - b).abs().nan_to_num().max()) for a, b in zip(server, again)]
            answers = (zip(self._answer(module, own, on_model), server, reaches) for own in models)
            alike = (torch.allclose(a, b, rtol=0, atol=reach, equal_nan=True) for own in answers for a, b, reach in own)
            if not all(alike):
                found += panels
        return found

    def _answer(self, module: nn.Module, own: Tensors, on_model: bool) -> list[Tensor]:
        """Images and density, or answers, of a client's own model on a few examples, as scores use them."""
        evaluator = self.evaluator
        (images, labels), asked = evaluator.splits[0].first(EXAMPLES), evaluator.asked_of(module)
        with isolated(), own_in_place(module, own):
            seed_all(evaluator.seed, PROBE)
            if on_model:
                found = asked["answers"].try_out(images, labels)
            else:
                with torch.no_grad():
                    draws, sample = generator(evaluator.seed, PROBE), evaluator.sampler_of(module)
                    found = [sample(EXAMPLES, draws)] if evaluator.needs_images else []
                if asked["density"] is not None:
                    found.append(asked["density"].log_prob(images[:].double()))
        return [part.detach().cpu().double() for part in found]


def own_in_place(module: nn.Module, own: Tensors) -> AbstractContextManager[None]:
    """The module as one client's own model while the context lasts."""
    return tensors_in_place(module, with_averages(module, own))


@dataclass(frozen=True, eq=False)
class ClientMatrix:
    """One score of M clients' own models on K clients' images.

    Args:
        score: its name, such as "fid".
        split: the images', such as "train".
        embedding: the embedding that images are compared in.
        reference: description of the images.
        models: the clients whose models stand in the rows.
        clients: the clients whose images stand in the columns.
        values: float64 [M, K].
        errors: standard errors float64 [M, K], of generated and real images; None where the score has none.
        higher_is_better: whether a better model scores higher.
        num_generated: images that each model made.
        round: after which these were the models.
        checkpoint: file name of their checkpoint; None if there is none.
    """

    score: str
    split: str
    embedding: str
    reference: str
    models: tuple[str, ...]
    clients: tuple[str, ...]
    values: Tensor
    errors: Tensor | None
    higher_is_better: bool
    num_generated: int
    round: int
    checkpoint: str | None = None

    def __repr__(self) -> str:
        size = f"{len(self.models)} models on {len(self.clients)} clients"
        return f"ClientMatrix({self.score} in {self.embedding}, {self.split}: {size})"

    @property
    def own(self) -> list[tuple[int, int]]:
        """Row and column of each client's own model on its own images; none of clients that never train."""
        columns = {name: column for column, name in enumerate(self.clients)}
        return [(row, columns[name]) for row, name in enumerate(self.models) if name in columns]

    @property
    def best(self) -> list[int]:
        """The row of the best model for each client's images, the first of equal ones; without regard to errors."""
        return (self.values.argmax(0) if self.higher_is_better else self.values.argmin(0)).tolist()

    @property
    def words(self) -> str:
        """The matrix in one line: the means on own and on others' images, and whom the own model fits best.

        Of clients that never train: the mean over all.
        """
        others = torch.ones_like(self.values, dtype=torch.bool)
        own = self.own
        for place in own:
            others[place] = False
        of_others = say_number(float(self.values[others].mean())) if others.any() else "none"
        if not own:
            return f"{self.score} of own models on images of clients that never train: {of_others} on average"
        mean = sum(float(self.values[place]) for place in own) / len(own)
        fit = sum(self.best[column] == row for row, column in own)
        return (
            f"{self.score} on a client's own images {say_number(mean)}, on others' {of_others} on average;"
            f" the own model is the best one for {fit} of {len(own)} clients"
        )

    def to_json(self) -> dict[str, Any]:
        """All as plain values, rows of the matrix as lists."""
        plain = {**vars(self), "models": list(self.models), "clients": list(self.clients)}
        values, errors = plain.pop("values"), plain.pop("errors")
        return {**plain, "values": values.tolist(), "errors": None if errors is None else errors.tolist()}


def client_matrices(
    module: nn.Module, evaluator: Evaluator, personal: Personal, round: int = 0, checkpoint: str | None = None
) -> list[ClientMatrix]:
    """The matrix of each score, on each of an evaluation's splits and in each of its embeddings.

    The rows are the clients of the first split; who has had no turn yet has the module as it is. All models' images are
    drawn at the same seeds, those of the usual scores: a cell of the diagonal is the client's own score.

    Args:
        module: the server's model.
        evaluator: of the FederatedDataModule of the training.
        personal: the clients' own tensors, by their number among the clients that train.
        round: after which these are the models.
        checkpoint: file name of their checkpoint.

    Raises:
        ValueError: if clients keep no tensors, or none that changes a score, or a score needs one model for all, or
            the evaluation knows too few clients.
    """
    trained = evaluator.trained or []
    panels = OwnModels(evaluator).check(module, personal)
    if not panels:
        raise ValueError(
            "a matrix compares clients' own models, and here all clients share one: train with"
            " FedAvgStrategy(personal=[...]), naming tensors that images depend on, or with --local_only"
        )
    kept = {trained[number]: tensors for number, tensors in personal.items()}
    rows: dict[tuple[str, str, str], list[FederatedScore]] = {}
    evaluator.prepare()
    models = [name for name in evaluator.splits[0].client_names if name in trained]
    for name in track(models, "scoring clients' own models", len(models), "clients"):
        with own_in_place(module, kept.get(name, {})):
            sample, asked = evaluator.sampler_of(module), evaluator.asked_of(module)
            found = Found()
            for made in evaluator.embed_generated(sample, round, lambda split, panel: panel in panels):
                found |= evaluator.real.scores(made, **asked)
        for (place, embedding), scores in found.items():
            for score in scores:
                rows.setdefault((place, embedding, score.name), []).append(score)
    splits, matrices = {split.name: split for split in evaluator.splits}, list[ClientMatrix]()
    for (place, embedding, name), own in rows.items():
        errors = [row.client_errors for row in own if row.client_errors is not None]
        matrix = ClientMatrix(
            score=name,
            split=place,
            embedding=embedding,
            reference=splits[place].reference,
            models=tuple(models),
            clients=splits[place].client_names,
            values=torch.stack([row.per_client for row in own]).double().cpu(),
            errors=torch.stack(errors).double().cpu() if len(errors) == len(own) else None,
            higher_is_better=own[0].higher_is_better,
            num_generated=evaluator.num_generated,
            round=round,
            checkpoint=checkpoint,
        )
        matrices.append(matrix)
    return matrices


def matrix_of_run(
    run: RunLike, module: LightningModule, evaluator: Evaluator, round: int | None = None
) -> list[ClientMatrix]:
    """The matrices of one of a run's checkpoints, which are written into its folder too (`client_matrix.json`).

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the checkpoint's weights.
        evaluator: of the run's clients.
        round: of the checkpoint; the last one by default.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
    """
    run = run if isinstance(run, Run) else Run(run)
    ((number, path),) = run.checkpoints_of(None if round is None else [round], only_last=True).items()
    personal = personal_tensors(module, load_weights(module, path))
    evaluator.try_out(evaluator.sampler_of(module), **evaluator.asked_of(module))
    found = client_matrices(module, evaluator, personal, number, path.name)
    write_json(run.folder / MATRIX, {"version": 1, "matrices": [matrix.to_json() for matrix in found]})
    return found


def matrix_table(matrix: ClientMatrix, errors: bool = True) -> Table:
    """A row for each client's own model, a column for each client's images; the best of a column is bold."""
    title = f"{matrix.score} of each client's own model, round {matrix.round}: {matrix.num_generated} images of each"
    place = f"against {matrix.reference}, embedding {matrix.embedding}"
    table = new_table(f"{title}\n{place}", ("model of", *matrix.clients), left=("model of",), fold=("model of",))
    table.caption = escape(matrix.words)
    best = matrix.best

    def cell(row: int, column: int) -> str:
        value = float(matrix.values[row, column])
        known = None if matrix.errors is None else float(matrix.errors[row, column])
        text = say_number(value, known if errors else None)
        return f"[bold]{text}[/bold]" if best[column] == row else text

    for row, name in enumerate(matrix.models):
        table.add_row(escape(name), *(cell(row, column) for column in range(len(matrix.clients))))
    return table
