"""The squared maximum mean discrepancy to every client and to their pool as a torchmetrics metric."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fedgen.metrics.feature_metric import GENERATED
from fedgen.metrics.kernel_distance import images_needed
from fedgen.metrics.many_clients import EVERYTHING, Aggregate, ManyClients
from fedgen.metrics.stored_features import StoredFeatureMetric
from fedgen.scores.aggregate import FederatedScore, Weights
from fedgen.scores.kernel.kernels import Kernel
from fedgen.scores.kernel.mmd import Estimator, KernelReference


class FederatedKernelDistance(ManyClients, StoredFeatureMetric):
    """KID of one generated set to K clients: their mean, the KID to their pool, the worst and each.

    The values of `fedgen.KernelReference` on the clients' features, to the bit, however the images came in batches.

    Args:
        num_clients: K; clients are numbered from 0.
        embedding: None: `update` takes features [N, D]; else as `fedgen.load_embedding` takes it.
        dim: D; by default the embedding's, or that of the first images.
        aggregate: what `compute` gives, as for `FederatedFrechetDistance`; keys begin with "kid_". Powers need scores
            that are not negative: estimator "v".
        weights: "examples" (n_i / n), "uniform" or K numbers, shared by avg and all.
        kernel: `PolynomialKernel()`, that of KID, if None.
        estimator: "u" (unbiased, may be negative) or "v".
        normalize: images are floats in [0, 1] and not uint8 or floats in [-1, 1].
        reset_real_features: whether `reset` forgets the real images too.
        kwargs: those of `torchmetrics.Metric`.

    Raises:
        ValueError: for another aggregate or estimator, or unusable weights; from `compute`, if a client or the
            generated side has fewer than two images (one for "v").

    Examples:
        >>> import torch
        >>> from fedgen.metrics import FederatedKernelDistance
        >>> from fedgen.scores import PolynomialKernel
        >>> linear = PolynomialKernel(1, 1.0, 0.0)  # squared distances of means
        >>> metric = FederatedKernelDistance(2, dim=1, aggregate=["avg", "all"], kernel=linear, estimator="v")
        >>> metric.update(torch.tensor([[-1.0]]), client=0)
        >>> metric.update(torch.tensor([[1.0]]), client=1)
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
        super().__init__(
            num_clients,
            weights,
            aggregate,
            embedding=embedding,
            dim=dim,
            normalize=normalize,
            reset_real_features=reset_real_features,
            **kwargs,
        )
        self.kernel = kernel
        self.estimator = estimator
        self._needed = images_needed(estimator)

    def _score(self) -> tuple[FederatedScore, Tensor]:
        clients = self._real_parts()
        generated = self._stored(f"{GENERATED}_features")
        self._require_images([len(part) for part in clients], len(generated), self._needed)
        reference = KernelReference.from_features(clients, self.kernel, self.estimator, self.weights)
        return reference.score(generated, errors=False), reference.weights
