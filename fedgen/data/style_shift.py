"""Digits of writers whose styles are known: natural clients without a download, and the truth about them."""

from functools import cached_property

import torch
from torch import Tensor

from fedgen.data.dataset import DataSet, Split
from fedgen.data.examples import Examples
from fedgen.data.mnist5k import MNIST5k
from fedgen.data.writer_style import Style, draw_style, render
from fedgen.seeds import generator


class StyleShift(DataSet):
    """The digits of `MNIST5k`, each rendered in the style of the writer it was dealt to, for the partition `Natural`.

    Image i is image i of MNIST5k in its writer's slant, width of strokes, contrast and scale (`RANGES` of
    fedgen.data.writer_style). Every digit is dealt evenly, so that writers have the same labels, up to one image of
    each, and differ in style alone. The styles of the first writers stay the same when there are more of them.

    Args:
        num_writers: the number of writers, 1 to 5,000; 50 have 10 images of each digit.
        seed: of the writers' styles and of who wrote what.
        strength: of all differences between writers, in [0, 1]; 0 gives the images of MNIST5k, with owners.
        pad_to: side of the images, e.g. 32, padded with black before they are rendered.
    """

    splits = ("train",)

    def __init__(self, num_writers: int = 50, seed: int = 0, strength: float = 1.0, pad_to: int | None = None) -> None:
        if not 1 <= num_writers <= 5000:
            raise ValueError(f"num_writers must be 1 to 5000, the number of images, got {num_writers}")
        if not 0 <= strength <= 1:
            raise ValueError(f"strength must lie in [0, 1], got {strength}")
        self.num_writers = num_writers
        self.seed = seed
        self.strength = strength
        self.pad_to = pad_to
        size = [] if pad_to is None else [str(pad_to)]
        weaker = [f"strength{strength:g}"] if strength != 1 else []
        self.name = "-".join(["style_shift", *size, f"{num_writers}writers", f"seed{seed}", *weaker])

    @cached_property
    def styles(self) -> tuple[Style, ...]:
        """Each writer's style, in the order of `owner_names`."""
        return tuple(draw_style(self.seed, writer, self.strength) for writer in range(self.num_writers))

    def read(self, split: Split) -> Examples:
        plain = MNIST5k(self.pad_to).load(split)
        owners = deal_evenly(plain.labels, self.num_writers, self.seed)
        inputs = torch.empty_like(plain.inputs)
        for writer, style in enumerate(self.styles):
            own = owners == writer
            inputs[own] = render(plain.inputs[own], style)
        names = tuple(f"writer {writer}" for writer in range(self.num_writers))
        return Examples(inputs, plain.labels, f"{self.name}/{split}", plain.classes, owners, names)


def deal_evenly(labels: Tensor, num_owners: int, seed: int) -> Tensor:
    """An owner for each label, at random: int64 [N]; of each label, and in all, owners have the same number up to one.

    Args:
        labels: int64 [N].
        num_owners: at most N.
        seed: of the draw.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "writers"))
    order = order[labels[order].argsort(stable=True)]
    owners = torch.empty_like(labels)
    owners[order] = torch.arange(len(labels)) % num_owners
    return owners
