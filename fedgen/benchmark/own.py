"""Classes that others enter: a generator, an algorithm or a part of one, by its class path."""

import inspect

from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from fedgen.benchmark.suite import OwnClass, Slot
from fedgen.class_paths import gives, import_by_path
from fedgen.federated import Aggregator, ClientAlgorithm
from fedgen.federated.compression import Compressor

SLOTS: dict[Slot, type] = {
    "model": LightningModule,
    "client_algorithm": ClientAlgorithm,
    "aggregator": Aggregator,
    "compression": Compressor,
    "server_optimizer": Optimizer,
}
"""places in a recipe -> the classes that may stand there"""
SHAPE = ("image_size", "channels")


def find_own(class_path: str) -> OwnClass:
    """The class of a path, with its place in a suite's recipes.

    A generator's constructor may take `image_size` and `channels`, which every cell gives it; all else that it, or an
    algorithm's constructor, takes must have defaults. A server optimizer takes the server's parameters first.

    Raises:
        ValueError: for a path of nothing, or of a class that is none of these or cannot be made so.
    """
    found = import_by_path(class_path)
    slot = next((slot for slot, kind in SLOTS.items() if gives(found, kind)), None)
    if slot is None:
        kinds = ", ".join(kind.__name__ for kind in SLOTS.values())
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
    return OwnClass(class_path, slot, takes)
