"""Image files as items that are read when they are needed."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedgen.data.collate import collate_levels
from fedgen.data.formats.image_files import read_image
from fedgen.data.items import Items, Part
from fedgen.data.lazy_examples import LazyExamples, make_lazy


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Files and labels as items (uint8 [C, H, W], label).

    Args:
        files: paths.
        labels: int64 [N].
        read: a path to its image.
    """

    def __init__(self, files: Sequence[str | Path], labels: Tensor, read: Callable[[Path], Tensor]) -> None:
        self.files, self.targets, self.read = [str(file) for file in files], labels, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        return self.read(Path(self.files[position])), int(self.targets[position])

    def content_id(self) -> str:
        """A hash of the files' names, sizes and times of change, and of how they are read."""
        own = [self.read.func.__name__, self.read.args, self.read.keywords] if isinstance(self.read, partial) else []
        digest = hashlib.blake2b(repr(own).encode(), digest_size=16)
        for file in self.files:
            known = Path(file).stat()
            digest.update(f"{file} {known.st_size} {known.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def lazy_images(
    files: Sequence[str | Path],
    labels: Tensor,
    name: str,
    classes: tuple[str, ...] = (),
    owners: Tensor | None = None,
    owner_names: tuple[str, ...] = (),
    read: Callable[[Path], Tensor] | None = None,
    channels: int = 3,
    size: int | None = None,
) -> LazyExamples:
    """Examples of image files, read and decoded each time they are needed, by `read_image` unless `read` is given."""
    read = read or partial(read_image, channels=channels, size=size)
    items = Items([Part(ImageFiles(files, labels, read), collate_levels)])
    return make_lazy(items, name, labels.to(torch.int64), classes, owners, owner_names)
