"""Features on the principal components of public ones: few dimensions, in which an FID of few images has little bias.

The components are fitted once, on public features that are no client's, and stay fixed. Projecting is linear, so it
takes features and Gaussian summaries alike: clients' pooled summaries are projected without their images.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.io.files import atomic_write, read_npz
from fedgen.io.tensor_files import hash_tensors
from fedgen.statistics.gaussian import CHUNK, Gaussian, check_features, eigh, summarize
from fedgen.statistics.npz import stored_number, stored_word

KEYS = ("mean", "components", "explained", "embedding", "public", "count", "fingerprint")


@dataclass(frozen=True, eq=False)
class Projection:
    """A fixed linear map of D features to k, y = (x - mean) components^T.

    Args:
        mean: of the public features, float64 [D].
        components: orthonormal rows, float64 [k, D], by falling variance; the largest entry of each is positive.
        explained: share of the public features' variance that they keep, in (0, 1].
        embedding: name of the embedding; its fingerprint if there are several of the name.
        public: name of the public images.
        count: how many they were.
    """

    mean: Tensor
    components: Tensor
    explained: float
    embedding: str = "unknown"
    public: str = "unknown"
    count: float = 0

    def __post_init__(self) -> None:
        mean, components = self.mean, self.components
        if mean.ndim != 1 or components.ndim != 2 or not 1 <= len(components) <= len(mean) == components.shape[1]:
            shapes = f"mean {tuple(mean.shape)}, components {tuple(components.shape)}"
            raise ValueError(f"a projection has a mean [D] and components [k <= D, D], got {shapes}")
        gram = components @ components.T
        if not float((gram - torch.eye(len(gram)).to(gram)).abs().max()) < 1e-6:  # NaN too
            raise ValueError("the components of a projection must be orthonormal rows")

    @staticmethod
    def fit(
        features: Tensor | Gaussian, components: int = 64, embedding: str = "unknown", public: str = "unknown"
    ) -> "Projection":
        """The projection on the first principal components of public features [n, D], or of their summary.

        Raises:
            ValueError: for unusable features, or fewer than `components` directions in which they vary.
        """
        summary = features if isinstance(features, Gaussian) else summarize(features.cpu())
        values, vectors = _spectrum(summary)
        rank = int((values > values[0] * summary.dim * torch.finfo(values.dtype).eps).sum()) if values[0] > 0 else 0
        if not 1 <= components <= rank:
            directions = f"the public features vary in {rank} directions"
            raise ValueError(f"components must be 1 to {rank}, got {components}: {directions}")
        rows = vectors[:components]
        signs = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
        explained = float(values[:components].sum() / values.sum())
        return Projection(summary.mean, (rows * signs).contiguous(), explained, embedding, public, summary.count)

    @property
    def dim(self) -> int:
        """The number of components k."""
        return len(self.components)

    @property
    def name(self) -> str:
        """The name of the projected features in stored scores: embedding, components and fingerprint."""
        return f"{self.embedding}-pca{self.dim}-{self.fingerprint()[:8]}"

    def fingerprint(self) -> str:
        """A hash (32 hex digits) over the map and its provenance: other components, other numbers."""
        text = json.dumps([self.embedding, self.public, float(self.count)])
        return hash_tensors([("mean", self.mean), ("components", self.components)], text)

    def project(self, features: Tensor) -> Tensor:
        """Features [n, D] on the components, float64 [n, k], a chunk at a time, differentiable.

        Raises:
            ValueError: for unusable features, or another D.
        """
        check_features(features)
        self._check_dim(features.shape[1])
        mean, axes = self.mean.to(features.device), self.components.T.to(features.device)
        return torch.cat([(part.double() - mean) @ axes for part in features.split(CHUNK)])

    def project_summary(self, summary: Gaussian) -> Gaussian:
        """The summary of the projected features, from the summary of the features: the same to rounding.

        Raises:
            ValueError: for another D.
        """
        self._check_dim(summary.dim)
        axes = self.components.T.to(summary.mean)
        mean = (summary.mean - self.mean.to(summary.mean)) @ axes
        if summary.scatter is not None:
            scatter = axes.T @ summary.scatter @ axes
            return Gaussian(summary.count, mean, scatter=(scatter + scatter.T) / 2)
        assert summary.deviations is not None
        if len(summary.deviations) <= self.dim:
            return Gaussian(summary.count, mean, summary.deviations @ axes, summary.shares)
        rows = summary.root(ddof=0) @ axes
        return Gaussian(summary.count, mean, scatter=rows.T @ rows * summary.count)

    def save(self, path: str | Path) -> Path:
        """Writes the projection with its provenance and fingerprint as .npz, atomically; returns the path."""
        arrays = vars(self) | {"mean": self.mean.cpu(), "components": self.components.cpu()}
        with atomic_write(path) as file:
            np.savez(file, **arrays, fingerprint=self.fingerprint())
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> "Projection":
        """The projection in a file that `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no projection, or its fingerprint does not match.
        """
        arrays = read_npz(path)
        if missing := set(KEYS) - set(arrays):
            raise ValueError(f"{path} is no projection: it lacks {sorted(missing)} and holds {sorted(arrays)}")
        try:
            # in this machine's byte order; kinds of numbers that a projection has not are refused
            mean, components = (
                torch.from_numpy(arrays[key].astype(np.float64, casting="same_kind")) for key in ("mean", "components")
            )
            explained, count = (stored_number(path, key, arrays[key]) for key in ("explained", "count"))
            embedding, public, made = (
                stored_word(path, key, arrays[key]) for key in ("embedding", "public", "fingerprint")
            )
            if not 0 < explained <= 1 + 1e-9:
                raise ValueError(f"explained = {explained:g} is no share of a variance")
            projection = Projection(mean, components, explained, embedding, public, count)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no projection: {error}; fit and save it again") from error
        if projection.fingerprint() != made:
            raise ValueError(f"{path}: the fingerprint does not match the components; fit and save it again")
        return projection

    def _check_dim(self, dim: int) -> None:
        if dim != len(self.mean):
            raise ValueError(f"the projection takes {len(self.mean)} features ({self.embedding}), got {dim}")


def _spectrum(summary: Gaussian) -> tuple[Tensor, Tensor]:
    """Variances by falling size and their directions as rows, of the population covariance."""
    if summary.deviations is not None:
        _, singular, rows = torch.linalg.svd(summary.root(ddof=0), full_matrices=False)
        return singular.square(), rows
    values, vectors = eigh(summary.covariance(ddof=0))
    return values.flip(0), vectors.flip(1).T
