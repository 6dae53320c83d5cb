"""Scores and sample grids for Lightning's loggers; the horizontal axis is the round."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation import Columns, ScoreRecord

PERCENTILES = (10, 50, 90)


def log_scores(loggers: Iterable[Any], records: Iterable[ScoreRecord], columns: Columns, round: int) -> None:
    """Sends every column, and the clients' distribution of each score: percentiles, and a histogram where it can."""
    records = list(records)
    values = {columns.name(record): record.value for record in records}
    spread = {columns.score(r.split, r.embedding, r.score): torch.tensor(r.per_client) for r in records if r.per_client}
    for name, clients in spread.items():
        values |= {f"{name}_clients/p{p}": value for p, value in zip(PERCENTILES, percentiles(clients))}
    for logger in loggers:
        logger.log_metrics(values, step=round)
        _log_histograms(logger, spread, round)
        logger.save()


def percentiles(values: Tensor) -> list[float]:
    """The 10th, 50th and 90th percentile, each a value that occurs ("nearest")."""
    shares = torch.tensor([p / 100 for p in PERCENTILES], dtype=values.dtype)
    return torch.quantile(values, shares, interpolation="nearest").tolist()


def log_grid(loggers: Iterable[Any], picture: Tensor, round: int, name: str = "samples") -> None:
    """Sends a uint8 picture [C, H, W] to every logger that can show images."""
    pixels = picture.permute(1, 2, 0).numpy()
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    for logger in loggers:
        experiment: Any = getattr(logger, "experiment", None)
        if hasattr(experiment, "add_image"):  # TensorBoard
            experiment.add_image(name, picture, round)
        elif hasattr(logger, "log_image"):  # Weights & Biases
            logger.log_image(key=name, images=[pixels], step=round)
        elif hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
            experiment.log_image(logger.run_id, pixels, key=name, step=round)
        elif hasattr(experiment, "log_image"):  # Comet
            experiment.log_image(pixels, name=name, step=round)


def _log_histograms(logger: Any, spread: Mapping[str, Tensor], round: int) -> None:
    experiment: Any = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_histogram"):
        for name, clients in spread.items():
            experiment.add_histogram(f"{name}_clients", clients, round)
