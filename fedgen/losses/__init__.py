"""The scores as training objectives."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.losses.distributed import DistributedLoss
    from fedgen.losses.embedded import AdaptiveWeight, EmbeddedLoss, FixedWeight, ImageLosses, Weight, gradient_cache
    from fedgen.losses.fastfid import FastFIDLoss
    from fedgen.losses.feature_loss import FeatureLoss
    from fedgen.losses.mmd2 import MMD2Loss
    from fedgen.losses.moments import BatchMoments, EMAMoments, Moments, QueueMoments
    from fedgen.losses.one_message import Nystrom, OneMessageLoss, PooledMoments, Sketches

__all__ = [
    "AdaptiveWeight",
    "BatchMoments",
    "DistributedLoss",
    "EMAMoments",
    "EmbeddedLoss",
    "FastFIDLoss",
    "FeatureLoss",
    "FixedWeight",
    "ImageLosses",
    "MMD2Loss",
    "Moments",
    "Nystrom",
    "OneMessageLoss",
    "PooledMoments",
    "QueueMoments",
    "Sketches",
    "Weight",
    "gradient_cache",
]

load_on_use(__name__)
