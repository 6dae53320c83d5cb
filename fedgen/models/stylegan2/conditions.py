"""Labels as networks of StyleGAN2 take them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.pair_layers import check_labels


def as_condition(labels: Tensor | None, num_classes: int | None, count: int, owner: nn.Module) -> Tensor | None:
    """Labels as float32 [count, num_classes]: one-hot; weights of classes are taken as they are.

    Raises:
        ValueError: for an unconditional network with labels, a conditional one without, or other shapes.
    """
    check_labels(num_classes, labels, owner)
    if labels is None or num_classes is None:
        return None
    if labels.is_floating_point():
        if labels.shape != (count, num_classes):
            raise ValueError(f"weights of classes must be [{count}, {num_classes}], got {list(labels.shape)}")
        return labels
    if labels.shape != (count,) or labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 [{count}], got {labels.dtype} {list(labels.shape)}")
    return F.one_hot(labels, num_classes).float()
