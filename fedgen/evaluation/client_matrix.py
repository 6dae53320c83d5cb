"""The cross-client matrix: each client's own model on each client's images.

Its diagonal holds what each client's own model scores on that client's images. What lies beside it says how far the own
models are made for their own clients alone: whether others would be served as well, or better, by another's model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.own_models import OwnModels, Personal, own_in_place
from fedgen.evaluation.reference import Found
from fedgen.evaluation.runs.rebuild import load_weights, personal_tensors
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import MATRIX
from fedgen.evaluation.tables.table import format_value, new_table
from fedgen.io.files import write_json
from fedgen.progress import track
from fedgen.scores import FederatedScore


@dataclass(frozen=True, eq=False)
class ClientMatrix:
    """One score of M clients' own models on K clients' images.

    Args:
        score: its name, such as "fid".
        split: the images', such as "train".
        embedding: in which images are compared.
        reference: the images in words.
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
        of_others = f"{float(self.values[others].mean()):.4g}" if others.any() else "none"
        if not own:
            return f"{self.score} of own models on images of clients that never train: {of_others} on average"
        mean = sum(float(self.values[place]) for place in own) / len(own)
        fit = sum(self.best[column] == row for row, column in own)
        return (
            f"{self.score} on a client's own images {mean:.4g}, on others' {of_others} on average;"
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
            "a matrix is of clients' own models, and here all have one: train with FedAvgStrategy(personal=[...]) of"
            " tensors that images depend on, or with --local_only"
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
    details: dict[str, Any] = {"models": tuple(models), "round": round, "checkpoint": checkpoint}
    return [_joined(evaluator, *key, own, **details) for key, own in rows.items()]


def _joined(
    evaluator: Evaluator, place: str, embedding: str, name: str, rows: Sequence[FederatedScore], **details: Any
) -> ClientMatrix:
    """The matrix of the models' scores on every client of a split."""
    split = next(split for split in evaluator.splits if split.name == place)
    errors = [row.client_errors for row in rows if row.client_errors is not None]
    return ClientMatrix(
        score=name,
        split=place,
        embedding=embedding,
        reference=split.reference,
        clients=split.client_names,
        values=torch.stack([row.per_client for row in rows]).double().cpu(),
        errors=torch.stack(errors).double().cpu() if len(errors) == len(rows) else None,
        higher_is_better=rows[0].higher_is_better,
        num_generated=evaluator.num_generated,
        **details,
    )


def matrix_of_run(
    run: Run | str | Path, module: LightningModule, evaluator: Evaluator, round: int | None = None
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
        text = format_value(value, known) if errors else f"{value:.3g}"
        return f"[bold]{text}[/bold]" if best[column] == row else text

    for row, name in enumerate(matrix.models):
        table.add_row(escape(name), *(cell(row, column) for column in range(len(matrix.clients))))
    return table
