"""Statistics files in the `.npz` format of pytorch-fid and clean-fid (keys `mu`, `sigma`), with their provenance.

The peers' files say nothing of the network, the resize or the divisor they were made with; ours do, under further keys
that the peers ignore.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgen.io.files import atomic_write, read_npz
from fedgen.statistics.gaussian import Gaussian, is_covariance
from fedgen.statistics.low_rank import thin

_REAL = "fiu"  # NumPy's kinds of real numbers


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
    arrays: dict[str, Any] = {"mu": gaussian.mean.cpu().numpy(), "sigma": gaussian.covariance(ddof).cpu().numpy()}
    arrays |= {key: np.asarray(value) for key, value in asdict(provenance).items()}
    with atomic_write(path) as file:
        np.savez(file, **arrays)
    return Path(path)


def load_npz(path: str | Path, count: float | None = None, ddof: float | None = None) -> tuple[Gaussian, Provenance]:
    """The summary and the provenance of a statistics file, ours or pytorch-fid's or clean-fid's.

    Args:
        path: the file; pickled arrays are refused.
        count: number of images; needed where the file does not say, as the peers' do not.
        ddof: the divisor's n - ddof of the file's `sigma`, 1 (np.cov) where the file does not say.

    Raises:
        ValueError: if `mu` or `sigma` is missing, of the wrong shape or not finite, if `sigma` is no covariance, if the
            number of images is unknown or no number, or if an argument contradicts the file.
    """
    arrays = read_npz(path)
    missing = {"mu", "sigma"} - set(arrays)
    if missing:
        raise ValueError(f"{path} is no statistics file: it lacks {sorted(missing)} and holds {sorted(arrays)}")
    if not all(arrays[key].dtype.kind in _REAL for key in ("mu", "sigma")):
        raise ValueError(f"{path}: mu {arrays['mu'].dtype} and sigma {arrays['sigma'].dtype} must be real numbers")
    mean, covariance = (torch.from_numpy(np.asarray(arrays[key], dtype=np.float64)) for key in ("mu", "sigma"))
    if mean.ndim != 1 or len(mean) == 0 or covariance.shape != (len(mean), len(mean)):
        raise ValueError(f"{path}: mu {tuple(mean.shape)} and sigma {tuple(covariance.shape)} must be [D] and [D, D]")
    if not (torch.isfinite(mean).all() and torch.isfinite(covariance).all()):
        raise ValueError(f"{path} holds NaN or infinity; make the statistics again")
    provenance = Provenance(
        **{key: stored_word(path, key, arrays[key]) for key in ("embedding", "weights", "resize") if key in arrays},
        ddof=_number(path, arrays, "ddof", ddof, 1.0),
        count=_number(path, arrays, "count", count, None),
    )
    if provenance.count < 1 or provenance.ddof >= provenance.count:
        raise ValueError(
            f"{path}: {provenance.count:g} images have no covariance with the divisor n - {provenance.ddof:g}; make the"
            " statistics again"
        )
    symmetric = covariance / 2 + covariance.T / 2
    if not is_covariance(covariance, slack=1e-3):
        raise ValueError(f"{path}: sigma is not symmetric, or has negative variances, so it is no covariance")
    scatter = symmetric * (provenance.count - provenance.ddof)
    if not torch.isfinite(scatter).all():
        raise ValueError(f"{path}: sigma times {provenance.count:g} images is infinite; make the statistics again")
    return _of_its_rank(Gaussian(provenance.count, mean, scatter=scatter)), provenance


def _of_its_rank(summary: Gaussian) -> Gaussian:
    """The summary by as many deviations as it has images, if sigma is of that many; as it is if not.

    Rounding in the null space of few images' sigma costs a distance half its digits.
    """
    if not 2 <= summary.count <= summary.dim or summary.count != round(summary.count):
        return summary
    few = thin(summary)
    return few if torch.isclose(few.trace(ddof=0), summary.trace(ddof=0), rtol=1e-9) else summary


def stored_number(path: str | Path, key: str, value: np.ndarray) -> float:
    """A positive number (or the zero of ddof, of an unknown count) of a file; ValueError for anything else."""
    number = float(value) if value.shape == () and value.dtype.kind in _REAL else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{path} has {key} = {value}, which is no number; make the file again")
    return number


def stored_word(path: str | Path, key: str, value: np.ndarray) -> str:
    """A text of a file; ValueError for anything else."""
    if value.shape != () or value.dtype.kind != "U":
        raise ValueError(f"{path} has {key} = {value}, which is no text; make the file again")
    return str(value)


def _number(
    path: str | Path, arrays: dict[str, np.ndarray], key: str, given: float | None, default: float | None
) -> float:
    stored = stored_number(path, key, arrays[key]) if key in arrays else None
    if stored is not None and given is not None and stored != given:
        raise ValueError(f"{path} was made with {key} = {stored:g}, not {given:g}; leave out the argument")
    value = next((value for value in (stored, given, default) if value is not None), None)
    if value is None:
        raise ValueError(f"{path} does not say how many images it summarises; give {key}=...")
    return value
