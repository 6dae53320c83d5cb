"""Statistics files in the `.npz` format of pytorch-fid and clean-fid (keys `mu`, `sigma`), with their provenance.

The peers' files say nothing of the network, the resize or the divisor they were made with; ours do, under further keys
that the peers ignore.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.foreign_text import printable
from fedgen.io.files import Header, atomic_write, read_headers, read_npz
from fedgen.statistics.gaussian import Gaussian, is_covariance

NAMES = ("mu", "sigma")
_REAL = "fiu"  # NumPy's kinds of real numbers


def thin(summary: Gaussian) -> Gaussian:
    """The same summary with n deviations [n, D] in place of a scatter matrix, if n <= D; else the summary itself.

    The deviations are not the images', but have the same mean and scatter. For a dense summary of n whole images.
    Rounding fills the null space of their scatter with noise of 1e-16, of which a Fréchet distance takes the square
    root: 1e-7 of the distance, and 1e-12 without it.
    """
    if summary.scatter is None or summary.count > summary.dim:
        return summary
    count = round(summary.count)
    rows = _rows(summary.scatter, count - 1)
    return Gaussian(count, summary.mean, deviations=_helmert(count, rows)[:, : len(rows)] @ rows)


def _rows(matrix: Tensor, rank: int) -> Tensor:
    """R [r <= rank, D] with R^T R = matrix, by Cholesky with pivots: r^2 D multiplications."""
    rows = matrix.new_zeros(rank, len(matrix))
    left = matrix.diagonal().clone()
    noise = float(left.max()) * len(matrix) * torch.finfo(matrix.dtype).eps
    for number in range(rank):
        pivot = int(left.argmax())
        if left[pivot] <= noise:
            return rows[:number]
        rows[number] = (matrix[pivot] - rows[:number, pivot] @ rows[:number]) / left[pivot].sqrt()
        left -= rows[number].square()
        left[pivot] = 0  # exactly, so that it is never chosen again
    return rows


def _helmert(count: int, like: Tensor) -> Tensor:
    number = torch.arange(1, count, dtype=like.dtype, device=like.device)
    columns = torch.ones(count, count - 1, dtype=like.dtype, device=like.device).triu()
    columns.diagonal(-1).copy_(-number)
    return columns / (number * (number + 1)).sqrt()


@dataclass(frozen=True)
class Provenance:
    """The origin of statistics; "unknown" in files that do not say.

    Args:
        embedding: name of the embedding.
        weights: hash of its weights.
        resize: how images were brought to the network's size.
        ddof: what the divisor n - ddof of `sigma` lacks to n.
        count: number of images.
    """

    embedding: str = "unknown"
    weights: str = "unknown"
    resize: str = "unknown"
    ddof: float = 1
    count: float = 0


def save_npz(
    path: str | Path,
    gaussian: Gaussian,
    embedding: str = "unknown",
    weights: str = "unknown",
    resize: str = "unknown",
    ddof: float = 1,
) -> Path:
    """Writes mean and covariance(ddof) as float64 `mu`, `sigma` with provenance, atomically; returns the path."""
    provenance = Provenance(embedding, weights, resize, ddof, gaussian.count)
    with atomic_write(path) as file:
        np.savez(file, mu=gaussian.mean.cpu(), sigma=gaussian.covariance(ddof).cpu(), **asdict(provenance))
    return Path(path)


def load_npz(
    path: str | Path, count: float | None = None, ddof: float | None = None, names: tuple[str, str] = NAMES
) -> tuple[Gaussian, Provenance]:
    """The summary and the provenance of a statistics file, ours or another tool's.

    Args:
        path: the file; pickled arrays are refused.
        count: number of images; needed where the file does not say, as the peers' do not.
        ddof: the divisor's n - ddof of the file's covariance, 1 (np.cov) where the file does not say.
        names: the arrays of the mean [D] and the covariance [D, D].

    Raises:
        ValueError: if mean or covariance is missing, of the wrong shape or not finite, if the covariance is none, if
            the number of images is unknown or no number, or if an argument contradicts the file.
    """
    held = read_headers(path)
    if missing := set(names) - set(held):
        also = f"and holds {sorted(held)}; give those of mean and covariance as names"
        raise ValueError(f"{path} is no statistics file: it lacks {sorted(missing)} {also}")
    arrays = read_npz(path, names)
    shown = " and ".join(f"{key} {arrays[key].dtype} {list(arrays[key].shape)}" for key in names)
    if not all(arrays[key].dtype.kind in _REAL for key in names):
        raise ValueError(f"{path}: {shown} must be real numbers")
    mean, covariance = (torch.from_numpy(np.asarray(arrays[key], dtype=np.float64)) for key in names)
    if mean.ndim != 1 or len(mean) == 0 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(f"{path}: {shown} must be [D] and [D, D]")
    if not (torch.isfinite(mean).all() and torch.isfinite(covariance).all()):
        raise ValueError(f"{path} holds NaN or infinity; make the statistics again")
    said = read_provenance(path, held)
    for key, given in (("count", count), ("ddof", ddof)):
        if given is not None and said.setdefault(key, given) != given:
            raise ValueError(f"{path} was made with {key} = {said[key]:g}, not {given:g}; leave out the argument")
    if "count" not in said:
        raise ValueError(f"{path} does not say how many images it summarises; give count=...")
    provenance = Provenance(**said)
    if provenance.count < 1 or provenance.ddof >= provenance.count:
        divisor = f"the divisor n - {provenance.ddof:g} of {provenance.count:g} images"
        raise ValueError(f"{path}: {divisor} gives no covariance; make the statistics again")
    symmetric = covariance / 2 + covariance.T / 2
    if not is_covariance(covariance, slack=1e-3):
        raise ValueError(f"{path}: {names[1]} is not symmetric, or has negative variances, so it is no covariance")
    scatter = symmetric * (provenance.count - provenance.ddof)
    if not torch.isfinite(scatter).all():
        raise ValueError(f"{path}: {names[1]} of {provenance.count:g} images adds up to infinity; make it again")
    return _of_its_rank(Gaussian(provenance.count, mean, scatter=scatter)), provenance


def read_provenance(path: str | Path, headers: Mapping[str, Header]) -> dict[str, Any]:
    """The fields of `Provenance` that a file says; ValueError for what they cannot be."""
    said = read_npz(path, [field.name for field in fields(Provenance) if field.name in headers])
    return {k: (stored_number if k in ("ddof", "count") else stored_word)(path, k, value) for k, value in said.items()}


def _of_its_rank(summary: Gaussian) -> Gaussian:
    """The summary by as many deviations as it has images, if sigma is of that many; as it is if not."""
    if not 2 <= summary.count <= summary.dim or summary.count != round(summary.count):
        return summary
    few = thin(summary)
    return few if torch.isclose(few.trace(ddof=0), summary.trace(ddof=0), rtol=1e-9) else summary


def stored_number(path: str | Path, key: str, value: np.ndarray) -> float:
    """A positive number (or the zero of ddof, of an unknown count) of a file; ValueError for anything else."""
    number = float(value) if value.shape == () and value.dtype.kind in _REAL else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{path} has {key} = {printable(str(value), 60)}, which is no number; make the file again")
    return number


def stored_word(path: str | Path, key: str, value: np.ndarray) -> str:
    if value.shape != () or value.dtype.kind != "U":
        raise ValueError(f"{path} has {key} = {printable(str(value), 60)}, which is no text; make the file again")
    return str(value)
