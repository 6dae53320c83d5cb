"""Data sets: each offers its name, its splits and `load`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

from fedgen.data.examples import Examples

Split = Literal["train", "test"]


class DataSet(ABC):
    """A named source of labelled images or points. A subclass gives `name`, `splits` and `read`."""

    name: str
    splits: tuple[str, ...] = ("train", "test")

    def load(self, split: Split = "train") -> Examples:
        """The whole split in memory, named `{name}/{split}`.

        Raises:
            ValueError: if the data set has no such split.
            FileNotFoundError: if its files are missing; the message says where they were sought and how to get them.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split {split!r} is not known; use 'train' or 'test'")
        if split not in self.splits:
            raise ValueError(
                f"{self.name} has no {split} split; hold out some of its train examples instead, or use a data set "
                "that has one: MNIST, FashionMNIST, CIFAR10, CIFAR100, CelebA, FEMNIST, Camelyon17, FedISIC2019, "
                "ImageNet32, GaussianMixture, PhotoPatches, StyleShift with held_out, ImageFolder with test_root, or "
                "HuggingFace with test_split"
            )
        return self.read(split)

    @abstractmethod
    def read(self, split: Split) -> Examples:
        """The examples of a split that `splits` names; called by `load`."""

    def read_from(self) -> list[Path] | None:
        """The files and folders that `read` reads, and nothing else; None where nobody says.

        What was read from them may be used again while nothing in them has changed. It counts for the class that
        defines it, not for its subclasses.
        """
        return None
