"""Sources of a data module: one source with a partition, or clients' own data, and how they become examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from fedgen.data import Examples
from fedgen.data.anybody import (
    EXPECTED,
    DatasetReading,
    as_examples,
    check_one,
    is_arrays,
    is_dataset,
    name_of,
    renumber,
    with_classes,
)
from fedgen.data.examples import find_labels, to_batch
from fedgen.data.items import Items, Part, collate_items
from fedgen.data.lazy_examples import LazyExamples, make_lazy
from fedgen.foreign_text import is_number
from fedgen.own_code import warn

TRANSFERS = "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"
HOOKS = *TRANSFERS, "state_dict", "load_state_dict"

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})


def check_source(data: Any, partition: Any, reading: DatasetReading) -> Partition:
    """The partition, `Natural` by default; TypeError or ValueError if it does not fit the data."""
    if partition is not None and not isinstance(partition, Partition):
        _refuse_partition(partition)
    clients = as_clients(data)
    if clients and not isinstance(partition, Natural | None):
        raise ValueError(
            f"data already names each part's owner ({len(clients)} clients): leave partition={partition!r} out,"
            " give Natural(min_examples=...), or give all data as one Dataset"
        )
    if clients and reading.owners is not None:
        raise ValueError("data already names each part's owner; leave owners out")
    parts = {f"the data of client {name!r}": part for name, part in clients.items()} or {"data": data}
    for what, part in parts.items():
        _refuse_splits(part, what)
        if isinstance(part, DataLoader):
            _loader_part(part, what)
        elif not isinstance(part, LightningDataModule):
            check_one(part, what)
    if not clients and partition is None and reading.owners is None:
        raise ValueError(
            f"partition is missing: choose how the {name_of(data)} is assigned to clients, e.g. partition=IID(10), or"
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
    """ValueError for a `DatasetDict` of the library datasets, or a dictionary by names of splits."""
    names = [str(name) for name in data] if isinstance(data, Mapping) else []
    if names and (hasattr(data, "column_names") or SPLITS.issuperset(map(str.lower, names))):
        split = "train" if "train" in names else names[0]
        raise ValueError(
            f"{what} is a {type(data).__name__} of the splits {', '.join(names)}, which are not clients: give the one"
            f" to train on, as data[{split!r}]"
        )


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


def load_source(data: Any, reading: DatasetReading, measured: Any = None) -> Examples:
    """All clients' examples, with owners where the data come by client."""
    if clients := as_clients(data):
        return _join_clients(clients, reading, as_clients(measured) if measured is not None else None)
    if isinstance(data, LightningDataModule):
        data = train_loader_of(data)
    if isinstance(data, DataLoader):
        part = _loader_part(data, "data")
        found = as_examples(part.dataset, replace(reading, collate_fn=part.collate), name_of(part.dataset), measured)
        if not isinstance(found, LazyExamples):
            return found
        return replace(found, items=Items([part], max(reading.num_workers, data.num_workers)))
    return as_examples(data, reading, name_of(data), measured)


def train_loader_of(module: LightningDataModule) -> DataLoader[Any]:
    """The training loader of a data module that is prepared and set up here; TypeError if it is not one DataLoader."""
    module.prepare_data()
    module.setup("fit")
    loader = module.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"train_dataloader() of {type(module).__name__} gives a {type(loader).__name__}; clients are assigned the"
            " items of one DataLoader with a map-style dataset"
        )
    return loader


def take_hooks(module: LightningDataModule, owner: LightningDataModule) -> None:
    """Makes a data module call the owner's hooks for batch transfers and state, where the owner overrides them."""
    for hook in HOOKS:
        if is_overridden(hook, owner, LightningDataModule):
            setattr(module, hook, getattr(owner, hook))


def _loader_part(loader: DataLoader[Any], what: str) -> Part:
    """The items that a loader's sampler chooses, with its collate_fn and batch size; the run's seeds order them."""
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
    """The items that a loader's sampler draws once each; ValueError for other samplers."""
    dataset: Any = loader.dataset
    is_plain = type(loader.batch_sampler) is BatchSampler
    sampler: Any = loader.batch_sampler.sampler if is_plain else loader.batch_sampler  # type: ignore[union-attr]
    if (
        is_plain and type(sampler) is DistributedSampler
    ):  # splits items among processes, as the strategy does with turns
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
        f"{what} is a DataLoader whose {type(sampler).__name__} decides how often each item is drawn, and fedgen"
        " draws them by (seed, round, client): leave it out, or choose items by a Subset or SubsetRandomSampler"
    )


def _join_clients(clients: Mapping[str, Any], reading: DatasetReading, measured: Mapping[str, Any] | None) -> Examples:
    if measured is not None and list(measured) != list(clients):
        raise ValueError(f"evaluation_data has the clients {list(measured)}, and data {list(clients)}")
    owned = {name: _examples_of(part, reading, name) for name, part in clients.items()}
    parts, names = list(owned.values()), tuple(owned)
    owners = torch.arange(len(names)).repeat_interleave(torch.tensor([len(one) for one in parts]))
    labels, classes = _merge_labels(owned)
    first, *others = dict.fromkeys(one.name for one in parts)
    title = f"{first} and {len(others)} more" if others else first
    lazy = [one.items for one in parts if isinstance(one, LazyExamples)]
    if not lazy and measured is None and len({(one.inputs.dtype, one.shape) for one in parts}) == 1:
        return Examples(torch.cat([one.inputs for one in parts]), labels, title, classes, owners, names)
    workers = max([reading.num_workers, *(items.num_workers for items in lazy)])
    items = Items([part for name, one in owned.items() for part in _parts_of(one, name, classes, reading)], workers)
    shown = None
    if measured is not None:
        seen = {name: _examples_of(part, reading, name) for name, part in measured.items()}
        shown = Items([part for name, one in seen.items() for part in _parts_of(one, name, (), reading)], workers)
    read = reading.images_of, reading.value_range
    return make_lazy(items, title, labels, classes, owners, names, shown, *read)


def _examples_of(data: Any, reading: DatasetReading, name: str) -> Examples:
    """One client's examples; of those that are read later, `items` holds no others."""
    if isinstance(data, LightningDataModule):
        data = train_loader_of(data)
    if isinstance(data, DataLoader):
        part = _loader_part(data, f"the data of client {name!r}")
        labels, classes = find_labels(part.dataset, reading.labels, len(part.dataset))
        return make_lazy(Items([part], data.num_workers), name_of(part.dataset), labels, classes)
    try:
        found = as_examples(data, replace(reading, num_workers=0), name_of(data))
    except ValueError as error:
        raise ValueError(f"the data of client {name!r}: {error}") from error
    if not isinstance(found, LazyExamples) or len(found.items) == len(found):
        return found
    own = found.items.grouped(found.positions.tolist())
    parts = [Part(Subset(part.dataset, places), part.collate, part.batch_size) for part, places in own]
    return replace(found, items=Items(parts, found.items.num_workers), positions=torch.arange(len(found)))


def _parts_of(one: Examples, client: str, classes: Sequence[str], reading: DatasetReading) -> list[Part]:
    """A client's items, labelled by all clients' classes if there are any; ValueError if their labels mean others."""
    if not isinstance(one, LazyExamples):
        return [Part(InMemory(with_classes(one, classes) if classes else one))]
    if not classes or reading.labels is not None:  # which batches do not hold
        return one.items.parts
    return renumber(one.items.parts, one.classes, classes, f"the data of client {client!r}")


class InMemory(Dataset[Any]):
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        images, labels = to_batch(self._examples, torch.tensor([position]))
        return images[0], int(labels)


def _merge_labels(clients: Mapping[str, Examples]) -> tuple[Tensor, tuple[str, ...]]:
    """All labels as positions in all clients' classes, and these: numbers by size, other names alphabetically."""
    parts, without = [*clients.values()], [name for name, part in clients.items() if not part.is_labelled]
    if without:
        if len(without) < len(parts):
            warn(f"all clients' labels are ignored, as client {without[0]!r} has none: give them, or labels=[]")
        return torch.zeros(sum(map(len, parts)), dtype=torch.int64), ()
    classes = parts[0].classes
    if any(part.classes != classes for part in parts):
        every = {name for part in parts for name in part.classes}
        classes = tuple(sorted(every, key=int) if all(map(is_number, every)) else sorted(every))
    places = {name: place for place, name in enumerate(classes)}
    return torch.cat([torch.tensor([places[name] for name in part.classes])[part.labels] for part in parts]), classes
