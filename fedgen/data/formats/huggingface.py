"""Labelled images of the `datasets` library, from folders, Parquet files or its hub; or as flwr-datasets deals them."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedgen.data.examples import Examples, Owners, Split
from fedgen.data.formats import tables
from fedgen.data.formats.image_files import Unread, read_image
from fedgen.data.formats.image_folder import FittedImages
from fedgen.data.formats.tables import Table
from fedgen.data.items import Items, Part, collate_levels
from fedgen.data.lazy_examples import make_lazy
from fedgen.data.optional_attributes import optional
from fedgen.io.regular_files import check_unpacked, stored_bytes
from fedgen.own_code import warn
from fedgen.progress import track

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.parquet)")


class ImageTable(FittedImages):
    image_column: str | None
    label_column: str | None

    def load_table(
        self, table: Table, train: Table, split: Split, owners: Owners, folder: Path | None = None
    ) -> Examples:
        """The rows of a table, with the classes of the train split's; it may name files of `folder` alone."""
        column = tables.image_column(table, self.image_column)
        labels, classes = tables.read_labels(table, tables.label_column(table, self.label_column), train)
        name = f"{self.name}/{split}"
        if not self.in_memory:
            images = TableImages(table, column, labels, folder, self.channels, self.size)
            return make_lazy(Items([Part(images, collate_levels)]), name, labels, classes, *owners)
        pixels = read_images(table, column, folder, self.channels, self.size, name)
        return Examples(pixels, labels, name, classes, *owners)


class HuggingFace(ImageTable):
    """Images of a `datasets` folder or of the hub, uint8 [N, C, H, W], in the order of the rows.

    A folder that `save_to_disk` wrote, of a Dataset or a DatasetDict, or Parquet files as the hub has them; or a data
    set of the hub by its name, such as "flwrlabs/femnist" with `owner_column="writer_id"`, which is fetched once into
    the library's cache. What is on disk goes before the hub. Needs the library: pip install fedgen[datasets]. In memory
    images may take 256 MB or 16 times the files' size, or FEDGEN_MAX_UNPACKED=BYTES of the environment.

    Args:
        path: the folder, one Parquet file, or "owner/name" on the hub.
        image_column: the column of images; by default the only one, or the one called "image".
        label_column: the column of labels; by default the only one with named classes (ClassLabel), or the one called
            "label"; without any there are no labels. Integers and whole floats without names are the classes'
            numbers; texts make a class of each value of the train split, in sorted order.
        owner_column: the column that tells who made each image (integers or text), such as FEMNIST's "writer_id", for
            the partition `Natural`; by default the images have no owners.
        size: side to which images are resized, see `ImageFolder`. Then the name ends in it.
        channels: 3 for RGB, 1 for grey; images are converted.
        name: what stored scores call the data; the folder's or file's name by default.
        train_split: the split that is "train".
        test_split: the split that is "test"; without it there is no test split.
        config: the configuration of a data set of the hub that has several.
        revision: a commit, branch or tag of it; a commit makes sure that it stays the same.
        in_memory: False reads each image when it is needed, with the `num_workers` of the data module; of Parquet files
            the library keeps a copy in its cache.
    """

    def __init__(
        self,
        path: str | Path,
        image_column: str | None = None,
        label_column: str | None = None,
        size: int | None = None,
        channels: int = 3,
        name: str | None = None,
        train_split: str = "train",
        test_split: str | None = None,
        owner_column: str | None = None,
        config: str | None = None,
        revision: str | None = None,
        in_memory: bool = True,
    ) -> None:
        self.path = Path(path)
        name = name or self.path.absolute().name.removesuffix(".parquet")
        super().__init__(name, size, channels, in_memory)
        self.image_column, self.label_column = image_column, label_column
        self.hub = str(path) if HUB_NAME.fullmatch(str(path)) else None
        self.config, self.revision, self.owner_column = config, revision, owner_column
        self.sources = {"train": train_split} | ({"test": test_split} if test_split else {})
        self.splits = tuple(self.sources)

    def read(self, split: Split) -> Examples:
        """The images of a split.

        ValueError also without such a split or column, for a missing owner, for a label that is missing or not known to
        the train split, and if sizes differ and none is asked for.
        """
        hub = None if self.path.exists() else self.hub
        splits = tables.open_tables(self.path) if hub is None else tables.open_hub(hub, self.config, self.revision)
        table, train = self._choose(splits, split), self._choose(splits, "train")
        folder = self.path if self.path.is_dir() else self.path.parent
        return self.load_table(table, train, split, tables.read_owners(table, self.owner_column), folder)

    def _choose(self, splits: dict[str, Table], split: Split) -> Table:
        wanted = self.sources[split]
        if wanted not in splits:
            raise ValueError(
                f"{self.path} has no split {wanted!r}, but {', '.join(splits)}; give one of them as {split}_split"
            )
        if not splits[wanted].count:
            raise ValueError(f"{splits[wanted].source} has no rows")
        return splits[wanted]


class TableImages(Dataset[tuple[Tensor, int]]):
    """Rows of a table as items (uint8 [C, H, W], label), decoded when they are read; see `read_images`."""

    def __init__(
        self, table: Table, column: str, labels: Tensor, folder: Path | None, channels: int, size: int | None
    ) -> None:
        self.targets, self._source, self._column = labels, table.source, column
        self._rows = table.rows().select_columns([column]).with_format("arrow")
        self._form = folder, channels, size

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        stored = self._rows[position][self._column][0].as_py()
        try:
            return decode(stored, *self._form), int(self.targets[position])
        except ValueError as error:
            raise ValueError(f"{self._source}, row {position}: {error}") from error


def read_images(table: Table, column: str, folder: Path | None, channels: int, size: int | None, name: str) -> Tensor:
    """The images of a column, uint8 [N, channels, H, W]; the table may name files of `folder` alone, or none."""
    images, unread = torch.empty(0), Unread()
    for row, value in enumerate(track(table.column(column), f"reading {name}", table.count, "images")):
        try:
            image = decode(value, folder, channels, size, unread)
        except ValueError as error:
            raise ValueError(f"{table.source}, row {row}: {error}") from error
        if row == 0:
            stored = table.stored
            if folder is not None and isinstance(value, dict) and value.get("bytes") is None:  # paths of files beside
                paths = {one.get("path") for one in table.column(column) if one and one.get("bytes") is None}
                stored += stored_bytes(_file_beside(folder, path) for path in paths if path)
            in_memory = f"{table.source}, all in memory (in_memory=True),"
            check_unpacked(table.count * image.nbytes, stored, in_memory)
            images = torch.empty(table.count, *image.shape, dtype=torch.uint8)
        if image.shape != images.shape[1:]:
            first, other = (" x ".join(map(str, shape[-2:])) for shape in (images.shape, image.shape))
            sizes = f"{first} (row 0) and {other} (row {row})"
            raise ValueError(f"{table.source}: images of several sizes, {sizes}; give size= to resize them")
        images[row] = image
    for remark in unread.remarks():
        warn(f"{table.source}: {remark}")
    return images


def decode(value: Any, folder: Path | None, channels: int, size: int | None, unread: Unread | None = None) -> Tensor:
    """An image as it is stored, bytes or a dictionary with bytes or a path, as `read_image` gives it."""
    stored = value if isinstance(value, dict) else {"bytes": value}
    content, path = stored.get("bytes"), stored.get("path")
    if isinstance(content, bytes):
        return read_image(content, channels, size, unread=unread)
    if content is not None:
        raise ValueError(f"the image is stored as {type(content).__name__}, not as bytes")
    if not isinstance(path, str):
        raise ValueError("there is no image")
    if folder is None:
        raise ValueError(f"the image is not stored, only its path {path}; let save_to_disk of datasets store it")
    return read_image(_file_beside(folder, path), channels, size, unread=unread)


def _file_beside(folder: Path, path: str) -> Path:
    """The file of a path that a table names: whoever wrote the table may choose among the folder's own files alone."""
    home = os.path.abspath(folder)
    file = Path(os.path.abspath(os.path.join(home, path)))
    if not file.is_relative_to(home):
        raise ValueError(
            f"no image is stored, and its path {path} leads out of {home}; save the images in the table itself, "
            "as save_to_disk of the library datasets does"
        )
    if not file.is_file():
        raise ValueError(f"no image is stored, and there is no file {path} in {home}")
    return file


# ---- partitions of the library flwr-datasets (its 0.6; nothing of it is imported here) ----


class FlowerPartitioner(Protocol):
    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Any: ...


class DescribedPartitioner:
    """A partitioner that says more of itself, as most of flwr-datasets' do.

    Attributes:
        is_dataset_assigned: gives whether it has its data set.
        partition_id_to_natural_id: names of the partitions by their numbers.
    """

    is_dataset_assigned: Callable[[], bool] | None = None
    partition_id_to_natural_id: Mapping[int, Any] = MappingProxyType({})


class FlowerDataset(ImageTable):
    """Images of partitioners of flwr-datasets, uint8 [N, C, H, W], partition by partition, each one an owner.

    `Natural` makes a client of each partition. Natural ids are the owners' names, else "partition 0" and so on. Rows of
    no partition are left out. `FlowerPartition` deals data of this kit by a partitioner.

        writers = NaturalIdPartitioner(partition_by="writer_id")
        federated = FederatedDataset(dataset="flwrlabs/femnist", partitioners={"train": writers})
        data = FlowerDataset(federated.partitioners, "femnist", channels=1)

    Args:
        partitioners: of the split "train", and of "test" if there is one, each with its `dataset` assigned: those of a
            FederatedDataset, or any after `partitioner.dataset = ...` with a `datasets.Dataset`.
        name: what stored scores call the data.
        image_column: as in `HuggingFace`; images must be stored in the table.
        label_column: as in `HuggingFace`.
        size: side to which images are resized, as in `HuggingFace`. Then the name ends in it.
        channels: 3 for RGB, 1 for grey; images are converted.
        in_memory: False reads each image when it is needed, see `ImageFolder`.

    Raises:
        ValueError: without a train partitioner, or for other splits.
    """

    def __init__(
        self,
        partitioners: Mapping[str, FlowerPartitioner],
        name: str,
        image_column: str | None = None,
        label_column: str | None = None,
        size: int | None = None,
        channels: int = 3,
        in_memory: bool = True,
    ) -> None:
        if "train" not in partitioners or not {"train", "test"} >= set(partitioners):
            raise ValueError(
                f"partitioners of the splits {list(partitioners)}: give one as 'train', and perhaps one as 'test'"
            )
        super().__init__(name, size, channels, in_memory)
        self.image_column, self.label_column = image_column, label_column
        self.partitioners = dict(partitioners)
        self.splits = tuple(partitioners)

    def read(self, split: Split) -> Examples:
        """The images of a split's partitions.

        ValueError also if a partitioner has no dataset, its partitions have no rows or not the same columns, or as
        `HuggingFace` of columns and images.
        """
        table, counts = self._open(split)
        train = table if split == "train" else self._open("train")[0]
        names = tuple(partition_names(self.partitioners[split], "partition"))
        owners = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return self.load_table(table, train, split, (owners, names))

    def _open(self, split: str) -> tuple[Table, list[int]]:
        """All rows of a split's partitions, one after the other, and how many each has."""
        tables.import_datasets()
        parts = load_partitions(self.partitioners[split], f"{self.name}/{split}")
        table = tables.dataset_table(f"{self.name}, split {split}", parts)
        if not table.count:
            raise ValueError(f"{table.source}: none of the {len(parts)} partitions has a row")
        return table, [len(part) for part in parts]


def load_partitions(partitioner: FlowerPartitioner, name: str) -> list[Any]:
    """The partitions as `datasets.Dataset`s; ValueError without a dataset, or if their columns are not the same."""
    kind = type(partitioner).__name__
    is_assigned = optional(partitioner, DescribedPartitioner, "is_dataset_assigned")
    if is_assigned is not None and not is_assigned():
        raise ValueError(
            f"the {kind} of {name} has no dataset; give `partitioners` of its FederatedDataset, or assign its `dataset`"
        )
    parts = [partitioner.load_partition(number) for number in range(partitioner.num_partitions)]
    for number, part in enumerate(parts):
        if part.features != parts[0].features:
            raise ValueError(
                f"partition {number} of {name} has the columns {', '.join(part.features)}, but partition 0 has "
                f"{', '.join(parts[0].features)}: {kind} splits columns; use a partitioner that splits rows"
            )
    return parts


def partition_names(partitioner: FlowerPartitioner, kind: str) -> list[str]:
    """The partitions' natural ids where the partitioner has them, else their numbers after the kind: "client 0"."""
    count = partitioner.num_partitions
    natural = optional(partitioner, DescribedPartitioner, "partition_id_to_natural_id")
    return [str(natural.get(number, f"{kind} {number}")) for number in range(count)]
