"""The Fréchet distance to every client and to their pool as a torchmetrics metric."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fedgen.metrics.feature_metric import GENERATED, REAL
from fedgen.metrics.frechet_distance import images_needed
from fedgen.metrics.many_clients import EVERYTHING, Aggregate, ManyClients
from fedgen.metrics.moment_states import MomentMetric
from fedgen.scores.aggregate import FederatedScore, Weights
from fedgen.scores.frechet.frechet import FrechetReference


class FederatedFrechetDistance(ManyClients, MomentMetric):
    """FID of one generated set to K clients: their mean, the FID to their pool, the worst and each.

    The values of `fedgen.FrechetReference`, however the images came in batches: within 1e-10 of those from all features
    at once where covariances are well-conditioned, wherever their means lie.

    Under Lightning, `self.log("fid_all", metric)` in `validation_step` computes before `on_validation_epoch_end`: add
    generated images no later than in the last step, say in `on_validation_epoch_start`. Or log at the epoch's end.

    Args:
        num_clients: K; clients are numbered from 0.
        embedding: None: `update` takes features [N, D]; else as `fedgen.load_embedding` takes it.
        dim: D; by default the embedding's, or that of the first images.
        aggregate: what `compute` gives: "avg", "all", "worst", "per_client" (a vector) or a power p >= 1 for a tensor;
            several of them for a dict with the keys "fid_avg", "fid_all", "fid_worst", "fid_per_client", "fid_power_2".
            Lightning's `log` takes a metric with one scalar, `log_dict` a dict of scalars. "all" alone, weighted by
            examples, keeps the pool's sums only: no client then needs images of its own.
        weights: "examples" (n_i / n), "uniform" or K numbers, shared by avg and all.
        ddof: divisor n - ddof of the covariances; 1 as peers print it.
        normalize: images are floats in [0, 1] and not uint8 or floats in [-1, 1].
        reset_real_features: whether `reset` forgets the real images too.
        kwargs: those of `torchmetrics.Metric`.

    Raises:
        ValueError: for another aggregate or unusable weights; from `compute`, if a client or the generated side has
            fewer than two images (one for ddof = 0).

    Examples:
        >>> import torch
        >>> from fedgen.metrics import FederatedFrechetDistance
        >>> metric = FederatedFrechetDistance(num_clients=2, dim=1, aggregate=["avg", "all"])
        >>> metric.update(torch.tensor([[-2.0], [0.0]]), client=0)
        >>> metric.update(torch.tensor([[0.0], [2.0]]), client=1)
        >>> metric.update(torch.tensor([[-1.0], [1.0]]), client=None)  # generated
        >>> {name: round(float(value), 4) for name, value in metric.compute().items()}
        {'fid_avg': 1.0, 'fid_all': 0.0479}
    """

    plot_lower_bound = 0.0

    def __init__(
        self,
        num_clients: int,
        embedding: str | Mapping[str, Any] | nn.Module | None = None,
        dim: int | None = None,
        aggregate: Aggregate | Sequence[Aggregate] = EVERYTHING,
        weights: Weights = "examples",
        ddof: float = 1,
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
        self.ddof = ddof

    def _score(self) -> tuple[FederatedScore, Tensor]:
        counts = self.real_count.tolist()
        self._require_images(counts, int(self.generated_count), images_needed(self.ddof))
        self._say_few("fid")
        clients = (self._summary(REAL, row) for row in range(len(counts)))
        reference = FrechetReference.from_summaries(clients, self.weights, self.ddof)
        return reference.score(self._summary(GENERATED), errors=False), reference.weights
