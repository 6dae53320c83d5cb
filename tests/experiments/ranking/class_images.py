"""Small data sets of noise around a grey level a class, in the files in which the real ones are published."""

import pickle

import numpy as np

from fedgen.data import CIFAR10, ImageNet32
from fedgen.data.sets.pickled_images import COARSE_OF_FINE


def rows(labels, seed):
    """uint8 [N, 3072]: noise around a grey level and of a spread that depend on the label."""
    random = np.random.default_rng(seed)
    labels = np.array(labels)[:, None]
    noise = random.normal(size=(len(labels), 3072)) * (10 + 10 * (labels % 4))
    return (noise + 60 + 40 * (labels % 5)).clip(0, 255).astype(np.uint8)


def write_cifar10(folder, train=20, test=30):
    """`train` images a class, a multiple of 5, and `test` ones."""
    folder.mkdir(parents=True, exist_ok=True)
    each = dict.fromkeys(CIFAR10.train_files, train // 5) | dict.fromkeys(CIFAR10.test_files, test)
    for number, (file, count) in enumerate(each.items()):
        labels = list(range(10)) * count
        batch = {b"batch_label": b"a", b"labels": labels, b"data": rows(labels, number), b"filenames": []}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))


def write_cifar100(folder, classes=range(0, 100, 20), train=16):
    """`train` images of some of the hundred classes."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = list(classes) * train
    coarse = [COARSE_OF_FINE[label] for label in labels]
    batch = {b"fine_labels": labels, b"coarse_labels": coarse, b"data": rows(labels, 9), b"filenames": []}
    for file in ("train", "test"):
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))


def write_imagenet32(folder, classes=4, train=30, test=20):
    """The first classes and one that is not among the first hundred, `train` images each, a multiple of 10."""
    each = dict.fromkeys(ImageNet32.train_files, train // 10) | dict.fromkeys(ImageNet32.test_files, test)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (file, count) in enumerate(each.items()):
        labels = [*range(1, classes + 1), 700] * count
        (folder / file).write_bytes(pickle.dumps({"data": rows(labels, number), "labels": labels}, protocol=3))
