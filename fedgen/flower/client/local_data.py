"""A client's data on its own machine: what its node's config and disk say of them, and as Lightning is given them.

The class of the data is the recipe's or the node's own. Nothing that a run's config or a message says names one.
"""

import copy
import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from fedgen.class_paths import gives, import_by_path, nearest
from fedgen.clients.client import Client, hold_out
from fedgen.clients.data_module import ClientBatches, Source
from fedgen.clients.sources import load_source, take_hooks
from fedgen.clients.turn import LazyTurn, Turn
from fedgen.data import DataSet, Examples
from fedgen.data.anybody import DatasetReading, renumber, with_classes
from fedgen.data.examples import Annotation
from fedgen.data.items import Items
from fedgen.data.lazy_examples import LazyExamples, NoImagesError
from fedgen.flower.client.policy import CONFIG, DATA, PARTITION, PARTITIONS
from fedgen.flower.client.worker import WORKER
from fedgen.io.files import read_yaml
from fedgen.losses import EmbeddedLoss
from fedgen.seeds import resolve

FOLDERS = ("root", "path", "folder")  # what data call the place that they read
NUMBER, NUMBERS = "partition_id", "num_partitions"  # what they call which client this is, and of how many
READING = ("labels", "collate_fn", "num_workers", "images_of", "value_range", "evaluation_data")
WHERE = (
    f'start it with --node-config \'{DATA}="/my/images"\', or {CONFIG}="/my/data.yaml" for a file with the class of'
    " its data"
)
RECENT = 2.0  # seconds within which a file may change again without a new time of change


@dataclass(frozen=True)
class NodeData:
    """The data of a node: their place, its own file of settings and these, and which client it is of how many."""

    path: Path | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None
    count: int | None = None

    @classmethod
    def of_node(cls, own: Mapping[str, Any], simulated: Path | None = None) -> "NodeData":
        """Read a node's config; `simulated` is the folder of clients' folders, where Flower simulates nodes."""
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
        """The client's name, unless its config says otherwise."""
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
        """The recipe's settings of a client's data with this node's before them, whose class may be another."""
        found = copy.deepcopy(dict(recipe))
        named = (recipe.get("data") or {}).get("class_path")
        if (self.settings.get("data") or {}).get("class_path", named) != named:  # what is said of the recipe's is not
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
    """Whether Flower simulates this node, in a process of Ray; a node's config does not tell."""
    of_node = "flwr.supernode.runtime.run_clientapp" in sys.modules or WORKER in os.environ
    return "ray" in sys.modules and not of_node


def find_data(data: Mapping[str, Any]) -> Any:
    """The class of clients' data, or the function that makes them; ValueError with what to do if there is none."""
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
    """Return what a class of data calls its place; without one None, or ValueError for a class of the kit."""
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


class KeptImages:
    """The images that were read last, as long as neither their settings nor their files change: a worker keeps them."""

    def __init__(self) -> None:
        self._last: tuple[str, Examples, tuple[int, int]] | None = None

    def read(self, settings: str, places: Sequence[Path], load: Callable[[], Examples]) -> Examples:
        """The examples, from memory where no file below their places has changed since they were read."""
        files = state_of(places)
        kept, self._last = self._last, None
        if kept is not None and kept[0] == f"{settings} {files}" and _writes(kept[1]) == kept[2]:
            self._last = kept
            return kept[1]
        found = load()
        if files is not None and type(found) is Examples:  # others read each item when it is needed
            self._last = f"{settings} {files}", found, _writes(found)
        return found


def _writes(examples: Examples) -> tuple[int, int]:
    """Count how often the tensors were written to in place, through views of them too."""
    return examples.inputs._version, examples.labels._version


def state_of(places: Sequence[Path], now: float | None = None) -> str | None:
    """A hash of all files' and folders' identities, sizes and times of change; None if one has just been changed."""
    # within a tick of the file system's clock a file may change again without another time
    now = time.time() if now is None else now
    digest, newest = hashlib.blake2b(digest_size=16), 0.0
    for path in _below(places):
        try:
            found = os.stat(path)
        except OSError:
            return None
        times = found.st_mtime_ns, found.st_ctime_ns
        newest = max(newest, *(one / 1e9 for one in times))
        digest.update(f"{path!r} {found.st_dev} {found.st_ino} {found.st_mode} {found.st_size} {times}\n".encode())
    return None if newest > now - RECENT else digest.hexdigest()


def _below(places: Sequence[Path]) -> Iterator[str]:
    """Each place and whatever is below it, through links, a folder once."""
    seen: set[str] = set()
    for place in places:
        yield str(place)
        for folder, folders, files in os.walk(place, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            yield from (os.path.join(folder, name) for name in (*folders, *sorted(files)))


class LocalDataModule(LightningDataModule):
    """One client's data; an epoch is its turn.

    Which of its images it holds out, and its batches, depend on (seed, client) and (seed, round, client) as where the
    federation is simulated: `enroll` says which client this is.

    Args:
        data: read here; all of it is the client's: any of what a `FederatedDataModule` takes from one source.
        batch_size: examples a batch (all of them for a client with fewer).
        held_out: the fraction kept from training, for measuring.
        seed: of the held-out examples; None takes what `seed_everything` was given, else 0.
        name: the client's.
        iterations: the server's affair; taken so that recipes may name it.
        labels: as for `FederatedDataModule`, as the rest.
        collate_fn: likewise.
        num_workers: likewise; the processes live as long as a turn.
        images_of: likewise.
        value_range: likewise.
        evaluation_data: likewise.
        features: folder that keeps the images' features, for a model's own loss of them; None keeps none.

    Raises:
        ValueError: for settings out of range.
    """

    is_one_client = True
    kept: KeptImages | None = None  # in a worker, those of the message before

    def __init__(
        self,
        data: Source,
        batch_size: int = 64,
        held_out: float = 0.2,
        seed: int | None = None,
        name: str = "client",
        iterations: int | None = None,
        labels: Annotation = None,
        collate_fn: Callable[..., Any] | None = None,
        num_workers: int = 0,
        images_of: Callable[..., Any] | None = None,
        value_range: tuple[float, float] | None = None,
        evaluation_data: Source | None = None,
        features: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0 <= held_out < 1:
            raise ValueError(f"batch_size={batch_size} counts from 1, and held_out={held_out} lies in [0, 1)")
        self.data, self.batch_size, self.held_out, self.name = data, batch_size, held_out, name
        self.evaluation_data, self._given_seed, self._features = evaluation_data, seed, features
        self._reading = DatasetReading(labels, None, collate_fn, num_workers, images_of, value_range)
        if isinstance(data, LightningDataModule):
            take_hooks(self, data)
        self.number = 0
        self._classes: tuple[str, ...] | None = None

    @cached_property
    def read(self) -> Examples:
        """The data as they lie here."""
        load, places = partial(load_source, self.data, self._reading, self.evaluation_data), self._places()
        if self.kept is None or places is None:
            return load()
        return self.kept.read(f"{type(self.data)} {vars(self.data)} {self._reading}", places, load)

    def _places(self) -> list[Path] | None:
        """Return the files and folders that the data are read from; None where somebody's own code may read others."""
        reading, data = self._reading, self.data
        if any(one is not None for one in (reading.collate_fn, reading.images_of, self.evaluation_data)):
            return None
        if not isinstance(data, DataSet) or not isinstance(reading.labels, str | None):
            return None
        return data.read_from() if "read_from" in vars(type(data)) else None  # a subclass may read elsewhere

    @cached_property
    def examples(self) -> Examples:
        """The data, with labels as the whole federation numbers them.

        Batches that are read from disk have these labels, too; with `labels=` they need not.
        """
        read, classes = self.read, self._classes
        found = read if classes is None else with_classes(read, classes)
        if found is read or not isinstance(read, LazyExamples) or self._reading.labels is not None:
            return found
        assert isinstance(found, LazyExamples)
        assert classes is not None
        parts = renumber(read.items.parts, read.classes, classes, f"the data {read.name}")
        return replace(found, items=Items(parts, read.items.num_workers))

    def enroll(self, number: int, classes: Sequence[str]) -> None:
        """Tells the client its number and all clients' classes.

        Raises:
            ValueError: if a class of its own is not among them.
        """
        self.number, self._classes = number, tuple(classes)
        self.__dict__.pop("examples", None)
        _ = self.examples

    @property
    def client(self) -> Client:
        """The client."""
        everything = torch.arange(len(self.examples))
        parts = hold_out(everything, self.held_out, resolve(self._given_seed), self.number)
        return Client(self.name, self.examples, *parts)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image (channels, height, width) or other sample; () for data without images."""
        try:
            return tuple(self.read.inputs.shape[1:])
        except NoImagesError:
            return ()

    def give_references(self, objective: EmbeddedLoss, device: torch.device) -> None:
        """Gives a model's own loss of clients' images those that this client trains on."""
        if self._features is not None:
            objective.cache = self._features
        objective.client_weights = "examples"  # the only one has all the weight, whoever else there is
        objective.set_references([self.client.train_examples.inputs], device)

    def train_dataloader(self) -> ClientBatches:
        own, strategy = self.client, self.trainer and self.trainer.strategy
        return ClientBatches(_OneTurn(self), strategy, lambda _: (own.data, own.train, self.batch_size))

    def teardown(self, stage: str) -> None:
        """Ends the processes that read."""
        if isinstance(examples := self.__dict__.get("examples"), LazyExamples):
            examples.items.close()
            examples.inputs.reader.items.close()


class _OneTurn:
    """The epoch's only batch: the client's turn."""

    def __init__(self, data: LocalDataModule) -> None:
        self._data = data

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Turn]:
        data, trainer = self._data, self._data.trainer
        assert trainer is not None
        seed, client = trainer.strategy.seed, data.client
        kind = LazyTurn if isinstance(client.data, LazyExamples) else Turn
        turn = kind(client.data, client.train, data.batch_size, seed, data.number, data.name, trainer.current_epoch)
        turn.is_first = turn.is_last = True
        yield turn
