"""The squared maximum mean discrepancy (KID on Inception features) as a torchmetrics metric."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.utilities.distributed import gather_all_tensors

from fedgen.metrics.feature_metric import (
    EVERYTHING,
    GENERATED,
    REAL,
    Aggregate,
    FeatureMetric,
    ManyClients,
    TwoSides,
    require_sides,
)
from fedgen.scores.aggregate import FederatedScore, Weights
from fedgen.scores.kernel.kernels import Kernel
from fedgen.scores.kernel.mmd import Estimator, KernelReference, check_estimator, mmd2

IMAGES_NEEDED = {"u": 2, "v": 1}  # of a side


class StoredFeatureMetric(FeatureMetric):
    """Features of every image and the client it is of: float32 of an embedding, float64 where features are given."""

    real_rows: list[Tensor]

    def __init__(self, *settings: Any, rows: int, made_with: tuple[Any, ...], **kwargs: Any) -> None:
        super().__init__(*settings, made_with=("features", rows, *made_with), **kwargs)
        self._rows = rows
        self._kept = torch.float64 if self.embedding is None else torch.float32
        for name in self._empty():
            self.add_state(name, [], dist_reduce_fx="cat")

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

    def _sync_dist(self, dist_sync_fn: Callable = gather_all_tensors, process_group: Any = None) -> None:
        """Sync as torchmetrics does, which sends an empty list as float32 [0], a shape that does not join [n, D]."""
        for name, empty in self._empty().items():
            if not getattr(self, name):
                setattr(self, name, [empty.to(self._list_device)])
        super()._sync_dist(dist_sync_fn, process_group=process_group)


class KernelDistance(TwoSides, StoredFeatureMetric):
    """MMD^2 between real and generated images, a scalar in float64.

    The value of `fedgen.scores.mmd2`, to the bit, for any batches. It uses all images; torchmetrics'
    `KernelInceptionDistance` draws random subsets.

    Args:
        embedding: as for `FrechetDistance`; so are dim, normalize, reset_real_features and kwargs.
        kernel: `PolynomialKernel()`, that of KID, if None.
        estimator: "u" (unbiased, may be negative) or "v".

    Raises:
        ValueError: for another estimator; from `compute`, if a side has fewer than two images (one for "v").

    Examples:
        >>> import torch
        >>> from fedgen.metrics import KernelDistance
        >>> from fedgen.scores import PolynomialKernel
        >>> metric = KernelDistance(dim=1, kernel=PolynomialKernel(1, 1.0, 0.0), estimator="v")
        >>> metric.update(torch.tensor([[0.0], [2.0]]), real=True)
        >>> metric.update(torch.tensor([[4.0]]), real=False)
        >>> float(metric.compute())  # (4 - 1)^2
        9.0
    """

    def __init__(
        self,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
        normalize: bool = False,
        reset_real_features: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(embedding, dim, normalize, reset_real_features, rows=1, made_with=("two sides",), **kwargs)
        check_estimator(estimator)
        self.kernel, self.estimator = kernel, estimator

    def compute(self) -> Tensor:
        """The distance, a scalar in float64."""
        real, generated = self._stored(f"{REAL}_features"), self._stored(f"{GENERATED}_features")
        require_sides(len(real), len(generated), IMAGES_NEEDED[self.estimator])
        distance = mmd2(real, generated, self.kernel, self.estimator)
        return torch.tensor(distance, dtype=torch.float64, device=self.device)


class FederatedKernelDistance(ManyClients, StoredFeatureMetric):
    """KID of one generated set to K clients: their mean, the KID to their pool, the worst and each.

    The values of `fedgen.KernelReference` on the clients' features, to the bit, for any batches.

    Args:
        num_clients: K; clients are numbered from 0.
        embedding: as for `FederatedFrechetDistance`; so are dim, weights, normalize, reset_real_features and kwargs.
        aggregate: what `compute` gives, as for `FederatedFrechetDistance`; keys begin with "kid_". Powers need scores
            that are not negative: estimator "v".
        kernel: `PolynomialKernel()`, that of KID, if None.
        estimator: "u" (unbiased, may be negative) or "v".

    Raises:
        ValueError: for another aggregate or estimator, or unusable weights; from `compute`, if a client or the
            generated side has fewer than two images (one for "v").

    Examples:
        >>> import torch
        >>> from fedgen.metrics import FederatedKernelDistance
        >>> from fedgen.scores import PolynomialKernel
        >>> linear = PolynomialKernel(1, 1.0, 0.0)  # squared distances of means
        >>> metric = FederatedKernelDistance(2, dim=1, aggregate=["avg", "all"], kernel=linear, estimator="v")
        >>> metric.update(torch.tensor([[-1.0], [1.0]]), client=torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.0]]), client=None)  # generated
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'kid_avg': 1.0, 'kid_all': 0.0}
    """

    def __init__(
        self,
        num_clients: int,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        aggregate: Aggregate | Sequence[Aggregate] = EVERYTHING,
        weights: Weights = "examples",
        kernel: Kernel | None = None,
        estimator: Estimator = "u",
        normalize: bool = False,
        reset_real_features: bool = True,
        **kwargs: Any,
    ) -> None:
        settings = embedding, dim, normalize, reset_real_features
        super().__init__(*settings, num_clients=num_clients, weights=weights, aggregates=aggregate, **kwargs)
        check_estimator(estimator)
        self.kernel, self.estimator = kernel, estimator

    def _score(self) -> tuple[FederatedScore, Tensor]:
        rows, generated = self._stored(f"{REAL}_rows"), self._stored(f"{GENERATED}_features")
        counts = torch.bincount(rows, minlength=self._rows).tolist()
        self._require_images(counts, len(generated), IMAGES_NEEDED[self.estimator])
        clients = self._stored(f"{REAL}_features")[rows.argsort(stable=True)].split(counts)
        reference = KernelReference.from_features(clients, self.kernel, self.estimator, self.weights)
        return reference.score(generated, errors=False), reference.weights
