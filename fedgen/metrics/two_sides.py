"""Updating a metric of real against generated images, as torchmetrics' own."""

from torch import Tensor

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric, require_images


class TwoSides(FeatureMetric):
    """`update(images, real)` for metrics of two sets."""

    def update(self, images: Tensor, real: bool) -> None:
        """Adds images, or features [N, D] without an embedding, to the real or the generated side.

        Raises:
            ValueError: for images or features that cannot be used.
        """
        if len(images):
            side = REAL if real else GENERATED
            self._add(self._features(images, side), side, 0)


def require_sides(real: float, generated: float, needed: int) -> None:
    """Raises ValueError unless both sides have the images needed."""
    require_images("real", real, needed, "update(images, real=True)")
    require_images("generated", generated, needed, "update(images, real=False)")
