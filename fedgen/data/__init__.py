"""Data sets: labelled images, points or texts, in memory or read when they are needed."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.data.examples import DataSet, Examples
    from fedgen.data.formats.huggingface import FlowerDataset, HuggingFace
    from fedgen.data.formats.image_folder import ImageFolder, ImageManifest
    from fedgen.data.sets.listed_images import Camelyon17, CelebA, FedISIC2019
    from fedgen.data.sets.pickled_images import CIFAR10, CIFAR100, ImageNet32
    from fedgen.data.sets.small_images import FEMNIST, MNIST, FashionMNIST, MedMNIST
    from fedgen.data.sets.without_download import Digits, GaussianMixture, MNIST5k, PhotoPatches, StyleShift
    from fedgen.data.text import BibleKJV, Moses, TextFolder

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FEMNIST",
    "MNIST",
    "BibleKJV",
    "Camelyon17",
    "CelebA",
    "DataSet",
    "Digits",
    "Examples",
    "FashionMNIST",
    "FedISIC2019",
    "FlowerDataset",
    "GaussianMixture",
    "HuggingFace",
    "ImageFolder",
    "ImageManifest",
    "ImageNet32",
    "MNIST5k",
    "MedMNIST",
    "Moses",
    "PhotoPatches",
    "StyleShift",
    "TextFolder",
]

load_on_use(__name__)
