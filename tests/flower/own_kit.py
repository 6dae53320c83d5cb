"""Somebody's own data and model, as recipes and nodes name them by class path."""

from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from fedgen.data import Digits


class Scans(Dataset):
    """The scans of a folder, or of each of its folders, an owner's each; with noise from torch's generator."""

    def __init__(self, root: str, noise: float = 0.0):
        files = sorted(Path(root).glob("**/scans.npz"))
        parts = [np.load(file) for file in files]
        self.scans = np.concatenate([part["scans"] for part in parts])
        self.targets = np.concatenate([part["kinds"] for part in parts]).tolist()
        self.owners = [file.parent.name for file, part in zip(files, parts) for _ in part["kinds"]]
        self.noise = noise

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, position):
        scan = torch.from_numpy(self.scans[position]).float() / 127.5 - 1
        return {"scan": (scan + self.noise * torch.randn(scan.shape)).clamp(-1, 1), "kind": self.targets[position]}


def write_scans(folder, sizes):
    """A folder of digits for each client; it returns the folder."""
    digits, start = Digits().load("train"), 0
    for name, count in sizes.items():
        own = slice(start, start + count)
        (folder / name).mkdir(parents=True)
        scans, kinds = digits.inputs[own].numpy(), digits.labels[own].numpy()
        np.savez(folder / name / "scans.npz", scans=scans, kinds=kinds)
        start += count
    return folder


def to_pair(items):
    """A collate_fn: images and kinds."""
    return torch.stack([item["scan"] for item in items]), torch.tensor([item["kind"] for item in items])


def parity(position):
    """A function of the position, for labels."""
    return ("even", "odd")[position % 2]


class Slice(Dataset):
    """One client's part of the digits, by its number."""

    def __init__(self, partition_id: int, num_partitions: int, size: int = 8):
        whole = Digits().load("train")
        self.images = whole.inputs[: 10 * num_partitions][partition_id::num_partitions]
        self.targets = [0] * len(self.images)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, position):
        return self.images[position].float() / 127.5 - 1, 0


def make_slices(root: str, skip: int = 0) -> Dataset:
    """A function that returns a data set: grey images of 28 pixels whose grey levels a file lists."""
    levels = [int(text) for text in Path(root, "levels.txt").read_text().split()]
    items = [(torch.full((1, 28, 28), level, dtype=torch.uint8), 0) for level in levels]
    return ConcatDataset([Subset(items, range(skip, len(items)))])


class Mean(L.LightningModule):
    """A step takes it to the mean of a batch: of clients' whole data, so that a round ends at the mean of all."""

    def __init__(self, side: int = 8):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(1, side, side))

    def training_step(self, batch, batch_idx):
        images = batch[0].float() / 127.5 - 1 if batch[0].dtype == torch.uint8 else batch[0]
        return 0.5 * (self.level - images.mean(0)).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)

    def sample(self, num_images, generator=None):
        return (self.level.cpu() + 0.1 * torch.randn(num_images, *self.level.shape, generator=generator)).clamp(-1, 1)


class Length(L.LightningModule):
    """Of items without images: the mean of their lengths."""

    def __init__(self):
        super().__init__()
        self.length = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        return 0.5 * (self.length - batch["length"].float().mean()).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


class Words(Dataset):
    """The words of a file, of several lengths."""

    def __init__(self, path: str):
        self.words = Path(path).read_text().split()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, position):
        return {"word": self.words[position], "length": len(self.words[position])}
