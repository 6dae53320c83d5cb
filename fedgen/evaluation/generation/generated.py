"""The generated images of one model, as an evaluation comes to need them."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.real_side import RealSide
from fedgen.evaluation.real.splits import Split


class GeneratedImages:
    """The generated images of one model, drawn once a stream and embedded once a stream and embedding.

    Args:
        real: which embeds.
        draw: images and their labels, of a stream.

    Attributes:
        first: the images of the first stream that was asked for; none where no score needed some.
    """

    def __init__(self, real: RealSide, draw: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        self._real, self._draw = real, draw
        self._stream = ""
        self._features: dict[str, Tensor] = {}
        self._images = self.first = torch.empty(0)
        self._labels: Tensor | None = None

    def of(self, split: Split, panel: Panel) -> tuple[Tensor, Tensor | None]:
        """Features, or images for a panel that takes those, and labels. Splits of one stream come one after another."""
        if panel.on_model:
            return torch.empty(0), None
        if split.stream != self._stream:
            self._images, self._labels = self._draw(stream=split.stream, description=f"sampling for {split.stream}")
            self.first = self.first if self._stream else self._images
            self._stream, self._features = split.stream, {}
        name = panel.embedding.name
        if name not in self._features:
            self._features[name] = self._real.embed(panel, self._images) if len(self._images) else self._images
        return self._features[name], self._labels
