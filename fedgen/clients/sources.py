"""Sources of a data module: one source with a partition, or clients' own data, and how they become examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from fedgen.clients.partitions import Natural, Partition
from fedgen.data import DataSet, Examples
from fedgen.data.annotations import find_labels
from fedgen.data.anybody import EXPECTED, DatasetReading, as_examples, check_one, is_arrays, is_dataset, name_of
from fedgen.data.collate import collate_items
from fedgen.data.examples import to_batch
from fedgen.data.items import Items, Part
from fedgen.data.lazy_examples import LazyExamples, make_lazy
from fedgen.data.renumber import renumber, with_classes
from fedgen.foreign_text import is_number
from fedgen.own_code import warn

HOOKS = (
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "state_dict",
    "load_state_dict",
)

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})


def check_source(data: Any, partition: Any, reading: DatasetReading) -> Partition:
    """The partition, once it is known to fit the data; `Natural` of clients' own. Raises TypeError and ValueError."""
    if partition is not None and not isinstance(partition, Partition):
        _refuse_partition(partition)
    if clients := as_clients(data):
        if not isinstance(partition, Natural | None):
            raise ValueError(
                f"data already says whose its parts are ({len(clients)} clients): leave partition={partition!r} out,"
                " give Natural(min_examples=...), or give all data as one Dataset"
            )
        if reading.owners is not None:
            raise ValueError("data already says whose its parts are; leave owners out")
        for name, part in clients.items():
            _check_part(part, f"the data of client {name!r}")
        return partition or Natural()
    _check_part(data, "data")
    if partition is None and reading.owners is None:
        raise ValueError(
            f"partition is missing: say how the {name_of(data)} is dealt to clients, e.g. partition=IID(10), or"
            " Natural() where the data name owners; or give {client: its data}"
        )
    return partition or Natural()


def _refuse_partition(partition: Any) -> None:
    if isinstance(partition, type) and issubclass(partition, Partition):
        raise TypeError(
            f"partition is the class {partition.__name__}; give one of its objects, {partition.__name__}(...)"
        )
    raise TypeError(
        f"partition={partition!r} is a {type(partition).__name__}; give an object of fedgen.clients.partitions, such as"
        " IID(10), Dirichlet(10, 0.5) or Natural()"
    )


def _refuse_splits(data: Any, what: str) -> None:
    """ValueError for a `DatasetDict` of the library datasets, or a dictionary whose keys are all names of splits."""
    names = [str(name) for name in data] if isinstance(data, Mapping) else []
    if names and (hasattr(data, "column_names") or SPLITS.issuperset(map(str.lower, names))):
        split = "train" if "train" in names else names[0]
        raise ValueError(
            f"{what} is a {type(data).__name__} of the splits {', '.join(names)}, which are no clients: give the one to"
            f" train on, as data[{split!r}]"
        )


def _check_part(data: Any, what: str) -> None:
    _refuse_splits(data, what)
    if isinstance(data, DataLoader):
        _loader_part(data, what)
    elif not isinstance(data, LightningDataModule):
        check_one(data, what)


def as_clients(data: Any) -> dict[str, Any]:
    """Clients' own data by name, for a dictionary or a list of data; nothing for one source."""
    if isinstance(data, Mapping):
        named = [(str(name), part) for name, part in data.items()]
        _refuse_splits(data, "data")
    elif isinstance(data, (list, tuple)) and not (isinstance(data, tuple) and is_arrays(data)):
        named = [(f"client {number}", part) for number, part in enumerate(data)]
    else:
        return {}
    if not named:
        raise ValueError(f"data is an empty {type(data).__name__}; expected {EXPECTED}")
    found = dict(named)
    if len(found) < len(named):
        raise ValueError(f"two clients have one name: {sorted(name for name, _ in named)}")
    return found


def needs_loading(data: Any) -> bool:
    """Whether reading the data may be long work, which waits until they are used."""
    parts = as_clients(data).values() or [data]
    return any(isinstance(part, (DataSet, LightningDataModule)) for part in parts)


def load_source(data: Any, reading: DatasetReading, measured: Any = None) -> Examples:
    """All examples that are dealt, the owners' too where data come by client."""
    if clients := as_clients(data):
        return _join_clients(clients, reading, as_clients(measured) if measured is not None else None)
    if isinstance(data, LightningDataModule):
        data = train_loader_of(data)
    if isinstance(data, DataLoader):
        part = _loader_part(data, "data")
        found = as_examples(part.dataset, replace(reading, collate_fn=part.collate), name_of(part.dataset), measured)
        if not isinstance(found, LazyExamples):
            return found
        items = Items([part], max(reading.num_workers, data.num_workers))
        return replace(found, items=items)
    return as_examples(data, reading, name_of(data), measured)


def probe(examples: Examples) -> None:
    """Reads the first item of data that are read when they are needed, so that what is wrong with it is told now."""
    if isinstance(examples, LazyExamples):
        examples.items.read_aside(examples.tasks(torch.tensor([0]), 0))


def train_loader_of(module: LightningDataModule) -> DataLoader[Any]:
    """The training loader of a Lightning data module, prepared and set up; TypeError if it is not one DataLoader."""
    module.prepare_data()
    module.setup("fit")
    loader = module.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"train_dataloader() of {type(module).__name__} gives a {type(loader).__name__}; clients are dealt the"
            " items of one DataLoader with a map-style dataset"
        )
    return loader


def take_hooks(module: LightningDataModule, owner: LightningDataModule) -> None:
    """Makes a data module call another's hooks where that overrides Lightning's: transfers of batches, its state."""
    for hook in HOOKS:
        if is_overridden(hook, owner, LightningDataModule):
            setattr(module, hook, getattr(owner, hook))


def own_loader(owner: LightningDataModule, name: str) -> Callable[[], Any] | None:
    """A data module's method that gives a loader; None where it has none of its own."""
    return getattr(owner, name) if is_overridden(name, owner, LightningDataModule) else None


def _loader_part(loader: DataLoader[Any], what: str) -> Part:
    """Return the items of a loader that its sampler chooses, and its options; the run's seeds draw their order."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not is_dataset(dataset):
        raise TypeError(f"{what} is a DataLoader of a {type(dataset).__name__}; give one of a map-style Dataset")
    # torch's batch samplers have a batch_size, those of other libraries may not
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"{what} is a DataLoader without a batch_size; give it one, its batches are drawn by (seed, round)"
        )
    dataset = _chosen(loader, what)
    if not len(dataset):
        raise ValueError(f"{what} has no items")
    # torch's own takes no Pillow images, and is otherwise the same
    collate = collate_items if loader.collate_fn is default_collate else loader.collate_fn
    return Part(dataset, collate, size)


def _chosen(loader: DataLoader[Any], what: str) -> Dataset[Any]:
    """The items that a loader's sampler draws each once; ValueError for one that draws them otherwise."""
    dataset: Any = loader.dataset
    is_plain = type(loader.batch_sampler) is BatchSampler
    sampler: Any = loader.batch_sampler.sampler if is_plain else loader.batch_sampler  # type: ignore[union-attr]
    if is_plain and type(sampler) is DistributedSampler:  # shares items out to processes, as the strategy shares turns
        return dataset
    if is_plain and type(sampler) in (SequentialSampler, RandomSampler):
        repeats = type(sampler) is RandomSampler and sampler.replacement
        if len(sampler.data_source) == len(sampler) == len(dataset) and not repeats:
            return dataset
    elif is_plain and hasattr(sampler, "indices"):  # as SubsetRandomSampler has them
        chosen = torch.as_tensor(sampler.indices).tolist()
        if len(set(chosen)) == len(chosen) == len(sampler):
            return Subset(dataset, chosen)
    raise ValueError(
        f"{what} is a DataLoader whose {type(sampler).__name__} decides which items are drawn how often, and fedgen"
        " draws them by (seed, round, client): leave it out, or choose items by a Subset or SubsetRandomSampler"
    )


@dataclass(frozen=True)
class _Own:
    """One client's examples, with the parts to read them from where that is done later."""

    examples: Examples
    parts: list[Part]
    workers: int = 0


def _join_clients(clients: Mapping[str, Any], reading: DatasetReading, measured: Mapping[str, Any] | None) -> Examples:
    if measured is not None and list(measured) != list(clients):
        raise ValueError(f"evaluation_data has the clients {list(measured)}, and data {list(clients)}")
    owned = [_own(part, reading, name) for name, part in clients.items()]
    names, sizes = tuple(clients), [len(one.examples) for one in owned]
    owners = torch.arange(len(names)).repeat_interleave(torch.tensor(sizes))
    labels, classes = _merge_labels({name: one.examples for name, one in zip(names, owned)})
    kinds = {(one.examples.inputs.dtype, one.examples.shape) for one in owned if not one.parts}
    title = common_name([one.examples.name for one in owned])
    if len(kinds) == 1 and not any(one.parts for one in owned) and measured is None:
        inputs = torch.cat([one.examples.inputs for one in owned])
        return Examples(inputs, labels, title, classes, owners, names)
    if classes:
        owned = [_renumbered(one, classes, name, reading) for name, one in zip(names, owned)]
    workers = max(reading.num_workers, *(one.workers for one in owned))
    items = Items([part for one in owned for part in _parts_of(one)], workers)
    shown = None
    if measured is not None:
        others = [_own(part, reading, name) for name, part in measured.items()]
        shown = Items([part for one in others for part in _parts_of(one)], workers)
    read = reading.images_of, reading.value_range
    return make_lazy(items, title, labels, classes, owners, names, shown, *read)


def _own(data: Any, reading: DatasetReading, name: str) -> _Own:
    if isinstance(data, LightningDataModule):
        data = train_loader_of(data)
    if isinstance(data, DataLoader):
        part = _loader_part(data, f"the data of client {name!r}")
        labels, classes = find_labels(part.dataset, reading.labels, len(part.dataset))
        found: Examples = make_lazy(Items([part]), name_of(part.dataset), labels, classes)
        return _Own(found, [part], data.num_workers)
    try:
        found = as_examples(data, replace(reading, num_workers=0), name_of(data))
    except ValueError as error:
        raise ValueError(f"the data of client {name!r}: {error}") from error
    if not isinstance(found, LazyExamples):
        return _Own(found, [])
    if len(found.items) == len(found):
        return _Own(found, found.items.parts, found.items.num_workers)
    chosen = found.positions.tolist()
    parts = [
        Part(Subset(part.dataset, own), part.collate, part.batch_size) for part, own in found.items.grouped(chosen)
    ]
    return _Own(found, parts, found.items.num_workers)


def _renumbered(one: _Own, classes: Sequence[str], client: str, reading: DatasetReading) -> _Own:
    """A client's data whose batches have labels of all clients' classes; ValueError where they mean others."""
    if one.parts and reading.labels is not None:  # of which batches know nothing
        return one
    if one.parts:
        own = one.examples.classes
        return replace(one, parts=renumber(one.parts, own, classes, f"the data of client {client!r}"))
    return replace(one, examples=with_classes(one.examples, classes))


def _parts_of(one: _Own) -> list[Part]:
    return one.parts or [Part(InMemory(one.examples))]


class InMemory(Dataset[Any]):
    """Examples in memory as items."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        images, labels = to_batch(self._examples, torch.tensor([position]))
        return images[0], int(labels)


def _merge_labels(clients: Mapping[str, Examples]) -> tuple[Tensor, tuple[str, ...]]:
    """All labels, positions in the classes of all clients: numbers in order of size, other names in that of text."""
    parts, without = [*clients.values()], [name for name, part in clients.items() if not part.is_labelled]
    if without:
        if len(without) < len(parts):
            text = f"all clients' labels are left out, as client {without[0]!r} has none: give its, or labels=[]"
            warn(text)
        return torch.zeros(sum(map(len, parts)), dtype=torch.int64), ()
    classes = parts[0].classes
    if any(part.classes != classes for part in parts):
        every = {name for part in parts for name in part.classes}
        classes = tuple(sorted(every, key=int) if all(map(is_number, every)) else sorted(every))
    places = {name: place for place, name in enumerate(classes)}
    return torch.cat([torch.tensor([places[name] for name in part.classes])[part.labels] for part in parts]), classes


def common_name(names: Sequence[str]) -> str:
    """The name of data made of several: theirs where it is one, else the first's and how many others there are."""
    different = list(dict.fromkeys(names))
    return different[0] if len(different) == 1 else f"{different[0]} and {len(different) - 1} more"
