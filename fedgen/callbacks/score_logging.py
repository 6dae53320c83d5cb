"""Scores and sample grids for Lightning's loggers; the horizontal axis is the round."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from fedgen.evaluation import Columns, ScoreRecord

PERCENTILES = (10, 50, 90)


def log_scores(
    loggers: Iterable[Any],
    records: Iterable[ScoreRecord],
    columns: Columns,
    round: int,
    floor: Iterable[ScoreRecord] = (),
) -> None:
    """Sends every column, the floor of each ("fid_all_floor"), and the clients' distribution of each score: its
    percentiles, and a histogram where it can.

    TensorBoard groups by what stands before a slash, so it gets "fid/avg", "fid/all", "fid/all_floor", ..., and charts
    of these together under Custom Scalars.
    """
    records = list(records)
    values = {(columns.score(r.split, r.embedding, r.score), r.aggregate): r.value for r in records}
    real = {
        (columns.score(r.split, r.embedding, r.score), f"{r.aggregate}_floor"): r.value for r in floor if r.is_floor
    }
    values |= {key: value for key, value in real.items() if (key[0], key[1].removesuffix("_floor")) in values}
    spread = {columns.score(r.split, r.embedding, r.score): torch.tensor(r.per_client) for r in records if r.per_client}
    for name, clients in spread.items():
        found = zip(PERCENTILES, percentiles(clients))
        values |= {(name, f"clients/p{p}"): value for p, value in found}
    for logger in loggers:
        grouped = isinstance(logger, TensorBoardLogger)
        logger.log_metrics({("/" if grouped else "_").join(key): value for key, value in values.items()}, step=round)
        if grouped:
            logger.experiment.add_custom_scalars(_charts(list(values)))
        _log_histograms(logger, spread, round, "/" if grouped else "_")
        logger.save()


def _charts(keys: Sequence[tuple[str, str]]) -> dict[str, dict[str, list[Any]]]:
    """For TensorBoard: a chart of each score with avg, all and their floors."""
    wanted = ("avg", "all", "avg_floor", "all_floor")
    charts = {
        score: ["Multiline", [f"{score}/{name}" for name in wanted if (score, name) in keys]]
        for score in dict.fromkeys(score for score, _ in keys)
    }
    return {"scores beside real images'": charts}


def percentiles(values: Tensor) -> list[float]:
    """The 10th, 50th and 90th percentile, each a value that occurs ("nearest")."""
    shares = torch.tensor([p / 100 for p in PERCENTILES], dtype=values.dtype)
    return torch.quantile(values, shares, interpolation="nearest").tolist()


def log_grid(loggers: Iterable[Any], picture: Tensor, round: int, name: str = "samples") -> None:
    """Sends a uint8 picture [C, H, W] to every logger that can show images."""
    pixels = picture.permute(1, 2, 0).numpy()
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    for logger in loggers:
        experiment = _experiment_of(logger)
        if hasattr(experiment, "add_image"):  # TensorBoard
            experiment.add_image(name, picture, round)
        elif hasattr(logger, "log_image"):  # Weights & Biases
            logger.log_image(key=name, images=[pixels], step=round)
        elif hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
            experiment.log_image(logger.run_id, pixels, key=name, step=round)
        elif hasattr(experiment, "log_image"):  # Comet
            experiment.log_image(pixels, name=name, step=round)


def _experiment_of(logger: Any) -> Any:
    """Return what a logger writes to; None for one that names none."""
    return getattr(logger, "experiment", None)  # which Lightning's own loggers have and its base class does not ask for


def _log_histograms(logger: Any, spread: Mapping[str, Tensor], round: int, between: str) -> None:
    experiment = _experiment_of(logger)
    if hasattr(experiment, "add_histogram"):
        for name, clients in spread.items():
            experiment.add_histogram(f"{name}{between}clients", clients, round)
