"""Data sets: labelled images, points or texts, in memory or read when they are needed."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.data.examples import DataSet, Examples
    from fedgen.data.formats.huggingface import FlowerDataset, HuggingFace
    from fedgen.data.formats.image_folder import ImageFolder, ImageManifest
    from fedgen.data.sets.bible_text import BibleKJV
    from fedgen.data.sets.celeba import CelebA
    from fedgen.data.sets.digits import Digits
    from fedgen.data.sets.femnist import FEMNIST
    from fedgen.data.sets.gaussian_mixture import GaussianMixture
    from fedgen.data.sets.hospital_images import Camelyon17, FedISIC2019
    from fedgen.data.sets.medmnist import MedMNIST
    from fedgen.data.sets.mnist import MNIST, FashionMNIST, MNIST5k
    from fedgen.data.sets.moses import Moses
    from fedgen.data.sets.photo_patches import PhotoPatches
    from fedgen.data.sets.pickled_images import CIFAR10, CIFAR100, ImageNet32
    from fedgen.data.sets.style_shift import StyleShift
    from fedgen.data.text import TextFolder

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
