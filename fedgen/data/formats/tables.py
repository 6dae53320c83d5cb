"""Tables as the `datasets` library keeps them on disk: folders written by save_to_disk, and Parquet files.

Only what lies in the folder is read and no script runs; a data set of the hub is fetched where `open_hub` is asked.
"""

import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.data.examples import Owners, as_kind, as_kinds, number_classes, numbered
from fedgen.extras import need
from fedgen.io.files import read_json
from fedgen.io.regular_files import check_unpacked, most_unpacked, open_regular

ROWS = 256  # read at a time
_ROW = 64  # bytes that a row takes at least, as Python's values
SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}.*")


@dataclass(frozen=True)
class Table:
    source: str  # where it is, for messages
    features: Mapping[str, Any]  # what each column holds, as types of `datasets`
    count: int  # rows
    stored: int  # bytes of its files
    column: Callable[[str], Iterator[Any]]  # its values one after the other, images as they are stored
    rows: Callable[[], Any]  # a `datasets.Dataset`, to read any row; of Parquet files the library keeps a copy for it


def open_tables(path: Path) -> dict[str, Table]:
    """The splits at a path by name, of save_to_disk or in Parquet files; ValueError for other or damaged files."""
    import_datasets()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path.absolute()}; give a folder of save_to_disk, Parquet files, or a data set of the hub by "
            'its name, "owner/name"'
        )
    try:
        if (path / "dataset_dict.json").is_file():
            names = read_json(path / "dataset_dict.json")["splits"]
            return {name: _saved_table(f"{path}, split {name}", path / _plain(name)) for name in names}
        if (path / "state.json").is_file():
            return {"train": _saved_table(str(path), path)}
        return {name: _parquet_table(name, files) for name, files in _parquet_files(path).items()}
    # What the library raises for files that are missing, damaged or not its own.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as a folder of datasets ({error})") from error


def open_hub(name: str, config: str | None = None, revision: str | None = None) -> dict[str, Table]:
    """The splits of a data set of the Hugging Face hub, fetched into the library's cache if they are not there."""
    datasets = import_datasets()
    try:
        found = datasets.load_dataset(name, config, revision=revision)
    except (OSError, datasets.exceptions.DatasetsError) as error:  # no network, no such data set
        raise FileNotFoundError(
            f"there is no {Path(name).absolute()}, and the hub's data set {name} cannot be fetched"
            f" ({type(error).__name__}: {str(error)[:300]}); check the name and the network, or save it elsewhere by"
            f" datasets.load_dataset({name!r}).save_to_disk(FOLDER) and give that folder"
        ) from error
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(f"the hub's data set {name} cannot be read ({error})") from error
    return {split: dataset_table(f"{name}, split {split}", [part]) for split, part in found.items()}


def import_datasets() -> Any:
    return need("datasets", "datasets", "HuggingFace's reader")


def _saved_table(source: str, folder: Path) -> Table:
    names = [_plain(file["filename"]) for file in read_json(folder / "state.json")["_data_files"]]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{folder / 'state.json'} names the shard {twice[0]} twice: its rows would count twice")
    for name in (*names, "dataset_info.json"):
        open_regular(folder / name).close()  # which refuses what Arrow, which opens whatever has a name, may not open
    return dataset_table(source, [import_datasets().load_from_disk(folder)])


def dataset_table(source: str, parts: Sequence[Any]) -> Table:
    """Datasets of the library, one after the other, as one table; all have the first one's columns."""

    def column(name: str) -> Iterator[Any]:
        views = (part.select_columns([name]).with_format("arrow") for part in parts)
        return _values(source, (batch[name] for view in views for batch in view.iter(ROWS)), count, stored)

    def rows() -> Any:
        return parts[0] if len(parts) == 1 else import_datasets().concatenate_datasets(list(parts))

    count = sum(map(len, parts))
    files = {file["filename"] for part in parts for file in part.cache_files}
    stored = sum(map(os.path.getsize, files)) if files else sum(part.data.nbytes for part in parts)
    check_unpacked(_ROW * count, stored, source)
    return Table(source, parts[0].features, count, stored, column, rows)


def _plain(name: str) -> str:
    """The name, once it is sure that it leads nowhere else; save_to_disk writes no others."""
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(f"it names {name!r}, which is no file or folder of its own")
    return name


def _parquet_table(split: str, files: list[Path]) -> Table:
    from pyarrow import parquet

    for file in files:
        open_regular(file).close()
    opened = [parquet.ParquetFile(file) for file in files]
    for file, shard in zip(files, opened):
        check_unpacked(_unpacked_bytes(shard.metadata), file.stat().st_size, str(file))
        if not shard.schema_arrow.equals(opened[0].schema_arrow):
            raise ValueError(f"{file} has other columns than {files[0]}")
    leaves = map(opened[0].metadata.schema.column, range(opened[0].metadata.num_columns))
    # as dictionaries, in which a value that many rows repeat takes its memory once
    repeated = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]

    def column(name: str) -> Iterator[Any]:
        shards = (parquet.ParquetFile(file, read_dictionary=repeated) for file in files)
        rows = (batch for shard in shards for batch in shard.iter_batches(ROWS, columns=[name]))
        return _values(source, (batch.column(name) for batch in rows), count, stored)

    def rows() -> Any:  # the library writes all values of all columns into its cache
        for name in features:
            deque(column(name), maxlen=0)
        return import_datasets().Dataset.from_parquet([str(file) for file in files])

    count, stored = sum(shard.metadata.num_rows for shard in opened), sum(file.stat().st_size for file in files)
    source = f"{files[0].parent}, split {split}"
    features = import_datasets().Features.from_arrow_schema(opened[0].schema_arrow)
    return Table(source, features, count, stored, column, rows)


def _unpacked_bytes(metadata: Any) -> int:
    """Bytes of a Parquet file's rows and of their values, of which lists of equal ones take next to nothing there."""
    leaves = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    unpacked = _ROW * metadata.num_rows
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        values = (max(8, leaf.length) * group.column(place).num_values for place, leaf in enumerate(leaves))
        unpacked += group.total_byte_size + sum(values)
    return unpacked


def _values(source: str, chunks: Iterable[Any], count: int, stored: int) -> Iterator[Any]:
    """The values of Arrow chunks, `count` in all; ValueError that names the source if one is damaged."""
    # Arrow believes the offsets in a file that it maps into memory: unless they are compared first, it reads beyond
    found, rows, unpacked, most = 0, 0, 0, most_unpacked(stored)
    try:
        for chunk in chunks:
            chunk.validate(full=True)
            found += len(chunk)
            for one in chunk:
                value = one.as_py()
                unpacked += _bytes_of(value)
                rows += 1
                if unpacked > most:
                    check_unpacked(max(unpacked, unpacked * count // rows), stored)  # of all rows, if they are alike
                yield value
        if found != count:
            raise ValueError(f"a column of {found} values, where the table has {count} rows")
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        raise ValueError(f"{source} is damaged, or larger than it seems ({error}); get it again") from error


def _bytes_of(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_bytes_of, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, bytes | str) else 8


def _parquet_files(path: Path) -> dict[str, list[Path]]:
    if path.is_file():
        files = [path]
    else:
        patterns = ("*.parquet", "data/*.parquet", "*/*.parquet")
        files = next((found for pattern in patterns if (found := sorted(path.glob(pattern)))), [])
    if not files:
        raise ValueError("it has no dataset_dict.json or state.json of save_to_disk, and no *.parquet")
    splits = defaultdict(list)
    for file in files:
        shard = SHARD.fullmatch(file.stem)
        splits[file.parent.name if file.stem.isdigit() else shard[1] if shard else file.stem].append(file)
    for split, parts in splits.items():
        if len(folders := sorted({part.parent.name for part in parts})) > 1:
            raise ValueError(f"split {split} lies in the folders {', '.join(folders)}; give the path of one of them")
    return dict(splits)


# ---- columns of images, labels and owners ----


def image_column(table: Table, given: str | None) -> str:
    from datasets import Image, Value

    def holds_images(feature: Any) -> bool:
        return isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)

    if given is not None:
        feature = _feature(table, given)
        if not holds_images(feature) and not (isinstance(feature, Value) and "binary" in feature.dtype):
            raise ValueError(f"{table.source}: column {given!r} holds no images but {feature}")
        return given
    found = _only(table, [name for name in table.features if holds_images(table.features[name])], "image")
    if found is None:
        listed = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in table.features.items())
        raise ValueError(f"{table.source} has no column of images, but {listed}; if one holds images as bytes, name it")
    return found


def label_column(table: Table, given: str | None) -> str | None:
    from datasets import ClassLabel

    if given is not None:
        _feature(table, given)
        return given
    named = [name for name, feature in table.features.items() if isinstance(feature, ClassLabel)]
    return _only(table, named or [name for name in table.features if name == "label"], "label")


def read_labels(table: Table, column: str | None, train: Table) -> tuple[Tensor, tuple[str, ...]]:
    """Labels, int64 [N], and their classes' names: those of the train split."""
    from datasets import ClassLabel

    if column is None:
        return torch.zeros(table.count, dtype=torch.int64), ()
    feature, expected = table.features[column], _feature(train, column)
    if feature != expected:
        raise ValueError(f"{table.source}: labels {column!r} are {feature}, but those of {train.source} are {expected}")
    if isinstance(feature, ClassLabel):
        names = tuple(feature.names)
        places: dict[Any, int] = {label: label for label in range(len(names))}
    else:
        said = f"{train.source}: labels {column!r}"
        places, names = number_classes(as_kinds(list(train.column(column)), said), said)
    values = list(table.column(column))
    kinds = list(map(as_kind, values))
    for row, kind in enumerate(kinds):
        if kind not in places:
            raise ValueError(
                f"{table.source}, row {row}: label {values[row]!r} in {column!r} is none of the {len(names)} classes"
            )
    return torch.tensor([places[kind] for kind in kinds], dtype=torch.int64), names


def read_owners(table: Table, column: str | None) -> Owners:
    """Each row's owner, int64 [N], and the owners' names: the column's values in sorted order; nothing without one."""
    if column is None:
        return None, ()
    _ = _feature(table, column)
    return numbered(as_kinds(list(table.column(column)), f"{table.source}: owners {column!r}"))


def _feature(table: Table, column: str) -> Any:
    if column not in table.features:
        raise ValueError(f"{table.source} has no column {column!r}; it has {', '.join(table.features)}")
    return table.features[column]


def _only(table: Table, found: list[str], kind: str) -> str | None:
    """The only name found, or of several the one called as their kind; None if there is none."""
    if len(found) > 1 and kind not in found:
        raise ValueError(f"{table.source} has the {kind} columns {', '.join(found)}; choose one by {kind}_column")
    return kind if kind in found else next(iter(found), None)
