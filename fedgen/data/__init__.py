"""Data sets: labelled images, points or texts, in memory or read when they are needed."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.data.bible_text import BibleKJV
    from fedgen.data.celeba import CelebA
    from fedgen.data.cifar10 import CIFAR10
    from fedgen.data.cifar100 import CIFAR100
    from fedgen.data.dataset import DataSet
    from fedgen.data.digits import Digits
    from fedgen.data.examples import Examples
    from fedgen.data.fashion_mnist import FashionMNIST
    from fedgen.data.femnist import FEMNIST
    from fedgen.data.flower import FlowerDataset
    from fedgen.data.gaussian_mixture import GaussianMixture
    from fedgen.data.huggingface import HuggingFace
    from fedgen.data.image_folder import ImageFolder
    from fedgen.data.image_manifest import ImageManifest
    from fedgen.data.imagenet32 import ImageNet32
    from fedgen.data.medmnist import MedMNIST
    from fedgen.data.mnist import MNIST
    from fedgen.data.mnist5k import MNIST5k
    from fedgen.data.photo_patches import PhotoPatches
    from fedgen.data.style_shift import StyleShift
    from fedgen.data.text import TextFolder

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FEMNIST",
    "MNIST",
    "BibleKJV",
    "CelebA",
    "DataSet",
    "Digits",
    "Examples",
    "FashionMNIST",
    "FlowerDataset",
    "GaussianMixture",
    "HuggingFace",
    "ImageFolder",
    "ImageManifest",
    "ImageNet32",
    "MNIST5k",
    "MedMNIST",
    "PhotoPatches",
    "StyleShift",
    "TextFolder",
]

load_on_use(__name__)
