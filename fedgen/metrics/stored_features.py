"""Stored features that a kernel distance is computed from: all pairs of images count, so no sum replaces them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric


class StoredFeatureMetric(FeatureMetric):
    """Features of every image and the client it is of: float32 of an embedding, float64 where features are given.

    4 D bytes an image on the metric's device (8 D of given features); `compute_on_cpu=True` keeps them on the CPU.

    Args:
        rows: number of clients kept apart.
        made_with: as in `FeatureMetric`; the rows are added here.
        settings: the other arguments of `FeatureMetric`.
    """

    real_rows: list[Tensor]

    def __init__(self, rows: int, made_with: tuple[Any, ...] = (), **settings: Any) -> None:
        super().__init__(made_with=("features", rows, *made_with), **settings)
        self._rows = rows
        self._kept = torch.float64 if self.embedding is None else torch.float32
        for name in self._empty():
            self.add_state(name, [], dist_reduce_fx="cat")

    def _sized(self, dim: int) -> dict[str, Tensor]:
        return {}  # lists know no D

    def _dim_of(self, states: Mapping[str, Any]) -> int | None:
        found = (states[f"{side}_features"] for side in (REAL, GENERATED))
        parts = [part for state in found for part in ([state] if isinstance(state, Tensor) else state)]
        return next((part.shape[1] for part in parts if len(part)), None)

    def _empty(self) -> dict[str, Tensor]:
        """Each list's value for no images; what a rank without any sends to the others."""
        features, rows = torch.empty(0, self.dim or 0, dtype=self._kept), torch.empty(0, dtype=torch.int64)
        return {f"{REAL}_features": features, f"{REAL}_rows": rows, f"{GENERATED}_features": features}

    def _add(self, features: Tensor, side: str, rows: int | Tensor) -> None:
        getattr(self, f"{side}_features").append(features.to(self._kept, copy=True))
        if side == REAL:
            whole = torch.full((len(features),), rows) if isinstance(rows, int) else rows.clone()
            self.real_rows.append(whole.to(self.device))

    def _stored(self, name: str) -> Tensor:
        """One state on the CPU as a single tensor, whether a list or (of all ranks) joined already."""
        state = getattr(self, name)
        parts = [state] if isinstance(state, Tensor) else state
        return torch.cat([self._empty()[name], *(part.cpu() for part in parts)])

    def _real_parts(self) -> list[Tensor]:
        """Features [n_i, D] of each client, images in the order in which they came."""
        rows = self._stored(f"{REAL}_rows")
        counts = torch.bincount(rows, minlength=self._rows).tolist()
        return list(self._stored(f"{REAL}_features")[rows.argsort(stable=True)].split(counts))

    def _sync_dist(self, dist_sync_fn: Callable = gather_all_tensors, process_group: Any = None) -> None:
        """Sync as torchmetrics does, which sends an empty list as float32 [0], a shape that does not join [n, D]."""
        for name, empty in self._empty().items():
            if not getattr(self, name):
                setattr(self, name, [empty.to(self._list_device)])
        super()._sync_dist(dist_sync_fn, process_group=process_group)
