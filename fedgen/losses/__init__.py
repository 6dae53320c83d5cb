"""The scores as training objectives."""

from fedgen.losses.embedded import EmbeddedLoss
from fedgen.losses.feature_loss import FeatureLoss
from fedgen.losses.gradient_cache import gradient_cache
from fedgen.losses.scaling import AdaptiveWeight, FixedWeight, Weight

__all__ = ["AdaptiveWeight", "EmbeddedLoss", "FeatureLoss", "FixedWeight", "Weight", "gradient_cache"]
