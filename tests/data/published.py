"""Tiny files in the forms in which data sets are published."""

import gzip
import json
import pickle

import numpy as np

from fedgen.data import CIFAR10


def idx(array):
    """The bytes of an idx file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx_split(folder, prefix="train", count=3, zipped=True, labels=None):
    """A tiny split in the form of the published ones; pixel k of all has the value k mod 256."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 784).reshape(count, 28, 28).astype(np.uint8)
    labels = np.arange(count, dtype=np.uint8) if labels is None else np.array(labels, np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"{prefix}-{name}-ubyte"
        if zipped:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
        else:
            path.write_bytes(idx(array))
    return images


def write_cifar10(folder, as_bytes=True, files=(*CIFAR10.train_files, *CIFAR10.test_files), count=2, labels=None):
    """A tiny folder in the form of the published one: batch i holds the value 10 i + its number, label i by default."""
    folder.mkdir(parents=True, exist_ok=True)
    for label, file in enumerate(files):
        data = np.repeat(10 * label + np.arange(count, dtype=np.uint8)[:, None], 3072, axis=1)
        data[:, 1024:2048] += 100  # the green plane follows the red one
        batch = {"batch_label": file, "labels": labels or [label] * count, "data": data, "filenames": ["a.png"] * count}
        if as_bytes:
            batch = {key.encode(): value for key, value in batch.items()}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))


def page(level):
    """An image of one grey level, k / 255 as LEAF stores it."""
    return [level / 255] * 784


def write_femnist(folder, users, name="all_data_0.json"):
    """One of LEAF's files: for each user a list of (grey level, label)."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        user: {"x": [page(level) for level, _ in own], "y": [label for _, label in own]} for user, own in users.items()
    }
    content = {"users": list(users), "num_samples": [len(own) for own in users.values()], "user_data": data}
    (folder / name).write_text(json.dumps(content))
