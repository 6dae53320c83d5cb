"""A node's own data: what its config and its disk say of them, put into the recipe that it was given.

The class of the data is the recipe's or the node's own. Nothing that a run's config or a message says names one.
"""

import copy
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from fedgen.class_paths import gives, import_by_path, nearest
from fedgen.data import DataSet, Examples
from fedgen.flower.client.policy import CONFIG, DATA, PARTITION, PARTITIONS
from fedgen.flower.client.worker_calls import WORKER
from fedgen.io.files import read_yaml

FOLDERS = ("root", "path", "folder")  # what data call the place that they read
NUMBER, NUMBERS = "partition_id", "num_partitions"  # what they call which client this is, and of how many
READING = ("labels", "collate_fn", "num_workers", "images_of", "value_range", "evaluation_data")
WHERE = (
    f'start it with --node-config \'{DATA}="/my/images"\', or {CONFIG}="/my/data.yaml" for a file with the class of'
    " its data"
)


@dataclass(frozen=True)
class NodeData:
    """The data of a node, as its config says.

    Args:
        path: the place where they lie; None where their class knows.
        config: its own file of data settings; None without one.
        settings: those: "data" (class_path and init_args) and what else `LocalDataModule` takes of its reading.
        number: which of the clients it is, for classes that ask; None where nobody says.
        count: of how many.
    """

    path: Path | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None
    count: int | None = None

    @classmethod
    def of_node(cls, own: Mapping[str, Any], simulated: Path | None = None) -> "NodeData":
        """Read a node's config.

        Args:
            own: the config.
            simulated: where Flower simulates nodes, the folder of clients' folders; node k takes the k-th.

        Raises:
            FileNotFoundError: for a folder or file that is not there.
            ValueError: for a file of other settings, and more nodes than folders.
        """
        number, count = (int(own[key]) if key in own else None for key in (PARTITION, PARTITIONS))
        config = Path(str(own[CONFIG])) if CONFIG in own else None
        path = Path(str(own[DATA])) if DATA in own else None
        if path is None and config is None and simulated is not None and number is not None:
            path = _simulated(simulated, number)
        if path is not None and not path.exists():
            raise FileNotFoundError(f"the data folder {path} does not exist; see {DATA} in this node's config")
        return cls(path, config, {} if config is None else _settings(config), number, count)

    @property
    def name(self) -> str:
        """The client's name, unless its config says otherwise.

        Raises:
            ValueError: if there is nothing to call it by.
        """
        if self.path is not None:
            return self.path.name
        if self.config is not None:
            return self.config.stem
        if self.number is None:
            raise ValueError(f"this node's config does not say where its data lie: {WHERE}")
        return f"client {self.number}"

    @property
    def state(self) -> Path:
        """The folder of what is the client's own, unless its config says otherwise: beside its data."""
        if (beside := self.path or self.config) is not None:
            return beside.parent / f".{beside.stem if beside is self.config else beside.name}-fedgen"
        return Path.home() / ".fedgen" / self.name.replace(" ", "-")

    def fill(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe's settings of a client's data with this node's: the node's go before the recipe's.

        Of a node whose data are of another class, how the recipe reads its own (labels, collate_fn, ...) is left out.

        Args:
            recipe: arguments of `LocalDataModule`.

        Raises:
            ValueError: for a class that is none of data, or one that lacks what the node must say.
        """
        found = copy.deepcopy(dict(recipe))
        if self._has_another_class(recipe):  # what is said of the recipe's is not of this node's
            found = {key: value for key, value in found.items() if key not in READING or key == "num_workers"}
        for key, value in self.settings.items():
            found[key] = _merged(found.get(key) or {}, value) if key in ("data", "evaluation_data") else value
        if "data" not in found:
            raise ValueError(f"the recipe names no data of its clients; name them in {CONFIG} of this node's config")
        used = False
        for key in ("data", "evaluation_data"):
            if isinstance(found.get(key), Mapping):
                found[key], takes = self._placed(found[key])
                used = used or takes
        if self.path is not None and not used:
            named = found["data"]["class_path"]
            raise ValueError(f"{DATA}={self.path} of this node's config: {named} takes no {', '.join(FOLDERS)}")
        return found

    def _has_another_class(self, recipe: Mapping[str, Any]) -> bool:
        before, own = recipe.get("data") or {}, self.settings.get("data") or {}
        return own.get("class_path", before.get("class_path")) != before.get("class_path")

    def _placed(self, data: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """A class of data with its arguments, those too that the node gives; and whether it takes a place."""
        place, parameters = place_of(data), signature_of(data).parameters
        given = dict(data.get("init_args") or {})
        own = {place: None if self.path is None else str(self.path), NUMBER: self.number, NUMBERS: self.count}
        for name, value in own.items():
            if name is None or name not in parameters or name in given:
                continue
            if value is not None:
                given[name] = value
            elif parameters[name].default is inspect.Parameter.empty:
                key = {NUMBER: PARTITION, NUMBERS: PARTITIONS}.get(name)
                remedy = f"give {key} in its config" if key else WHERE
                raise ValueError(
                    f"this node's config does not say where its data lie: {data['class_path']} needs {name}; {remedy}"
                )
        return {**data, "init_args": given}, place is not None


def is_simulated() -> bool:
    """Whether Flower simulates this node: its simulation calls apps in processes of Ray, a SuperNode in one of its own.

    A node's config does not tell them apart: an owner may say which client a SuperNode is by the keys that the
    simulation sets.
    """
    of_node = "flwr.supernode.runtime.run_clientapp" in sys.modules or WORKER in os.environ
    return "ray" in sys.modules and not of_node


def find_data(data: Mapping[str, Any]) -> Any:
    """The class of clients' data, or the function that makes them.

    Raises:
        ValueError: if there is none of this name, or it makes no data, with what to do.
    """
    named = str(data.get("class_path"))
    try:
        found = import_by_path(named if "." in named else f"fedgen.data.{named}")  # recipes may leave that out
    except ValueError as error:
        raise ValueError(f"the clients' data: {error}") from error
    if not gives(found, (DataSet, Examples, Dataset, LightningDataModule)):
        if inspect.isfunction(found):
            raise ValueError(
                f"the clients' data {named} is a function that does not say what it returns: write def"
                f" {found.__name__}(...) -> torch.utils.data.Dataset"
            )
        raise ValueError(
            f"the clients' data {named!r} is no class of data sets, such as fedgen.data.ImageFolder, no torch Dataset"
            " or LightningDataModule, and no function that returns one"
        )
    return found


def signature_of(data: Mapping[str, Any]) -> inspect.Signature:
    """Return the arguments that a class of data takes; errors as of `find_data`."""
    return inspect.signature(find_data(data))


def place_of(data: Mapping[str, Any]) -> str | None:
    """Return the name that a class of data has for the place that it reads; None for a class of somebody else that
    reads none.

    Raises:
        ValueError: as of `find_data`, and for a data set of the kit that reads none, of which all clients would have
            the same.
    """
    if place := takes_place(data):
        return place
    if is_of_kit(data):
        name = str(data["class_path"]).rpartition(".")[2]
        raise ValueError(f"{name} reads no folder of its client's; take a class that does, such as ImageFolder")
    return None


def takes_place(data: Mapping[str, Any]) -> str | None:
    """Return the name that a class of data has for the place that it reads; errors as of `find_data`."""
    parameters = signature_of(data).parameters
    return next((name for name in FOLDERS if name in parameters), None)


def is_of_kit(data: Mapping[str, Any]) -> bool:
    """Whether a class of data is the kit's own."""
    return str(find_data(data).__module__).startswith("fedgen.")


def _merged(recipe: Mapping[str, Any], own: Any) -> Any:
    """A node's data in place of the recipe's; of the same class, or without one, its arguments in theirs."""
    if not isinstance(own, Mapping):
        return own
    if own.get("class_path", recipe.get("class_path")) != recipe.get("class_path"):
        return dict(own)
    return {**recipe, "init_args": {**(recipe.get("init_args") or {}), **(own.get("init_args") or {})}}


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"the file {path} does not exist; see {CONFIG} in this node's config")
    found, keys = read_yaml(path), ("data", *READING)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{path} holds no settings of data, such as data with a class_path; see {CONFIG}")
    for key in found:
        if key not in keys:
            raise ValueError(f"{path} has {key!r}{nearest(key, keys)}; a node says of its data {', '.join(keys)}")
    if not isinstance(data := found.get("data", {}), dict):
        raise ValueError(f"{path}: data={data!r}; give a class_path, and init_args where it takes some")
    return found


def _simulated(folder: Path, number: int) -> Path:
    # hidden ones are what clients keep between turns
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if number >= len(folders):
        raise ValueError(f"{folder} has {len(folders)} clients' folders: simulate as many nodes (num-supernodes)")
    return folders[number]
