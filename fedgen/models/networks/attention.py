"""Self-attention over the positions of feature maps (Zhang et al. 2018, arXiv 1805.08318, section 3)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.pair_layers import convolution


class SelfAttention(nn.Module):
    """gamma * attention(x) + x, with gamma learnt from 0: at first the maps pass as they are.

    As in the authors' released model, keys and values are pooled to a quarter of the positions; queries and keys have
    an eighth of the maps, values a half.

    Args:
        maps: feature maps, at least 8 for the published proportions.
    """

    def __init__(self, maps: int) -> None:
        super().__init__()
        inner, values = max(1, maps // 8), max(1, maps // 2)
        self.query, self.key = convolution(maps, inner, 1, False, bias=False), convolution(maps, inner, 1, False, False)
        self.value, self.out = convolution(maps, values, 1, False, False), convolution(values, maps, 1, False, False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.query(x).flatten(2)  # [N, C/8, positions]
        keys = F.max_pool2d(self.key(x), 2).flatten(2)  # [N, C/8, positions/4]
        values = F.max_pool2d(self.value(x), 2).flatten(2)  # [N, C/2, positions/4]
        attention = torch.bmm(queries.transpose(1, 2), keys).softmax(dim=-1)  # rows sum to 1
        attended = torch.bmm(values, attention.transpose(1, 2)).unflatten(2, x.shape[2:])
        return self.gamma * self.out(attended) + x
