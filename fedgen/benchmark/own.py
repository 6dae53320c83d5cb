"""Classes that others enter: a generator, a data set, an algorithm or a part of one, by its class path."""

import inspect
from typing import Any

from lightning.pytorch import LightningModule
from torch.optim import Optimizer
from torch.utils.data import Dataset

from fedgen.benchmark.suite import DATA_SEED, HELD_OUT, PARTITIONS, OwnClass, OwnImages, Slot
from fedgen.class_paths import gives, import_by_path
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import DataSet
from fedgen.federated import Aggregator, ClientAlgorithm
from fedgen.federated.compression import Compressor

SLOTS: dict[Slot, tuple[type, ...]] = {  # places in a recipe -> the classes that may stand there
    "model": (LightningModule,),
    "data": (DataSet, Dataset),
    "client_algorithm": (ClientAlgorithm,),
    "aggregator": (Aggregator,),
    "compression": (Compressor,),
    "server_optimizer": (Optimizer,),
}
SHAPE = ("image_size", "channels")
MOST_IMAGES = 2000  # that a generator draws of a data set of one's own
MOST_CLASSES = 20  # that are a client each
SMALLEST_SIDE = 8


def find_own(class_path: str) -> OwnClass:
    """The class of a path, with its place in a suite's recipes.

    A generator's constructor may take `image_size` and `channels`, which every cell gives it; all else that it, or an
    algorithm's constructor, takes must have defaults. A server optimizer takes the server's parameters first. A data
    set, one of `fedgen.data` or torch's, is read to know its images.
    """
    found = import_by_path(class_path)
    slot = next((slot for slot, kind in SLOTS.items() if gives(found, kind)), None)
    if slot is None:
        kinds = ", ".join(kind.__name__ for several in SLOTS.values() for kind in several)
        raise ValueError(f"--entry {class_path}: give a class (or a function annotated as returning one) of {kinds}")
    parameters = list(inspect.signature(found).parameters.values())
    given = SHAPE if slot == "model" else tuple(one.name for one in parameters[:1] if slot == "server_optimizer")
    kinds_of_rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    lacking = [one.name for one in parameters if one.default is one.empty and one.kind not in kinds_of_rest]
    if lacking := [name for name in lacking if name not in given]:
        raise ValueError(
            f"--entry {class_path} needs {', '.join(lacking)}, which no cell gives: give {lacking[0]} a default"
        )
    takes = tuple(one.name for one in parameters if one.name in SHAPE and slot == "model")
    images = _images_of(f"--entry {class_path}", found()) if slot == "data" else None
    return OwnClass(class_path, slot, takes, images)


def _images_of(said: str, data: Any) -> OwnImages:
    """Reads a data set as suites take it: a client an owner or a class, as many images as half of each client gives."""
    whole = FederatedDataModule(data, IID(1))
    try:
        examples, shape = whole.examples, whole.image_shape
    except AttributeError as error:
        raise ValueError(
            f"{said}: its items are no images in uint8, or floats in [-1, 1], as a suite wants: {error}"
        ) from error
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"{said}: its items are of shape {shape}; give images of 1 or 3 channels, [C, H, W]")
    channels, height, width = shape
    if height != width or height < SMALLEST_SIDE or height & (height - 1):
        raise ValueError(
            f"{said}: its images are of {height} x {width} pixels; pad or resize them to squares of 8, 16, 32, 64, ..."
            " pixels, which every generator of the suites takes"
        )
    classes = int((examples.label_counts() > 0).sum()) if examples.is_labelled else 0
    if examples.owners is None and not 2 <= classes <= MOST_CLASSES:
        raise ValueError(
            f"{said}: it has no owners and {classes} classes; say who made each image (`owners`), or give"
            f" labels (`targets`) of 2 to {MOST_CLASSES} classes, each of which is then a client"
        )
    partition = "by-class" if examples.owners is None else "natural"
    rule = import_by_path(PARTITIONS[partition]["class_path"])()
    data = FederatedDataModule(examples, rule, held_out=HELD_OUT, seed=DATA_SEED)  # of what is read already
    least = min(len(data.pooled(part)) for part in ("train", "held_out"))  # of both floors
    return OwnImages(height, channels, min(MOST_IMAGES, least), partition, len(data.clients))
