"""Text as tokens: the bytes of its UTF-8, cut into windows, with whose text each one is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.io.regular_files import read_regular

VOCABULARY = 256
"""Tokens that there are: bytes."""


def encode(text: str) -> Tensor:
    """The tokens int64 [T] of a text, one a byte of its UTF-8: one a character where that is ASCII."""
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


def decode(tokens: Tensor) -> str:
    """The text of tokens int64 [T] in 0 .. 255; bytes that are no UTF-8 become the replacement character."""
    return bytes(tokens.tolist()).decode(errors="replace")


def encode_all(texts: Sequence[str]) -> Tensor:
    """The tokens int64 [N, T] of several texts, T those of the longest; shorter ones end in zeros.

    Raises:
        TypeError: for what is not a string.

    Examples:
        >>> from fedgen.data.text import decode_all, encode_all
        >>> rows = encode_all(["CCO", "c1ccccc1"])
        >>> rows.shape, decode_all(rows)
        (torch.Size([2, 8]), ['CCO', 'c1ccccc1'])
    """
    wrong = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise TypeError(f"text {wrong} is a {type(texts[wrong]).__name__}; texts are strings")
    data = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    rows = np.zeros((len(data), max(map(len, data), default=0) or 1), dtype=np.int64)
    for row, text in zip(rows, data):
        row[: len(text)] = text
    return torch.from_numpy(rows)


def decode_all(rows: Tensor) -> list[str]:
    """The texts of tokens int64 [N, T]: what is before the zeros at the end of each row."""
    data = rows.cpu().numpy().astype(np.uint8)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in data]


def widened(rows: Tensor, width: int) -> Tensor:
    """Tokens [N, T] with zeros at the end of each row, so that T is at least a width."""
    return rows if rows.shape[1] >= width else torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def cut_windows(tokens: Tensor, length: int) -> Tensor:
    """The windows int64 [n, length + 1] of tokens int64 [T] without overlap; the rest at the end is dropped."""
    count = len(tokens) // (length + 1)
    return tokens[: count * (length + 1)].view(count, length + 1)


def windows_of(texts: Mapping[str, str], length: int, name: str, kinds: Mapping[str, str] | None = None) -> Examples:
    """The windows of every owner's text, of the owner's class in `kinds`; ValueError for a text without a window."""
    parts = {owner: cut_windows(encode(text), length) for owner, text in texts.items()}
    for owner, part in parts.items():
        if not len(part):
            raise ValueError(
                f"{name}: the text of {owner!r} has {len(texts[owner].encode())} tokens, and a window of"
                f" length={length} takes {length + 1}; use shorter windows, or leave it out"
            )
    sizes = torch.tensor([len(part) for part in parts.values()])
    present = {kinds[owner] for owner in texts} if kinds else set()
    order = tuple(kind for kind in dict.fromkeys((kinds or {}).values()) if kind in present)
    places = torch.tensor([order.index(kinds[owner]) if kinds else 0 for owner in parts])
    owners = torch.arange(len(parts)).repeat_interleave(sizes)
    return Examples(torch.cat(list(parts.values())), places[owners], name, order, owners, tuple(parts))


def check_length(length: int) -> None:
    if length < 1:
        raise ValueError(f"length={length}: a window has at least one token to predict")


class TextFolder(DataSet):
    """The text files of a folder, UTF-8, each an owner's, in windows: tokens int64 [N, length + 1], without labels.

    Args:
        root: the folder; `*.txt` in it and in the folders below it are read, in the order of their names. The owner's
            name is the file's, with its folder below `root` in front.
        length: tokens that are predicted in a window.
        name: what stored scores call the data; the folder's name by default.

    Raises:
        ValueError: for a length below 1.
    """

    splits = ("train",)

    def __init__(self, root: str | Path, length: int = 64, name: str | None = None) -> None:
        check_length(length)
        self.root, self.length = Path(root), length
        self.name = f"{name or self.root.resolve().name}-{length}"

    def read(self, split: Split) -> Examples:
        """The windows of all files; ValueError for a file that is not UTF-8 or shorter than one window."""
        files = sorted(self.root.rglob("*.txt")) if self.root.is_dir() else []
        if not files:
            raise FileNotFoundError(f"{self.root} is no folder with text files (*.txt), one an owner")
        texts = {}
        for file in files:
            try:
                texts[str(file.relative_to(self.root).with_suffix(""))] = read_regular(file).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} is not UTF-8 ({error}); convert it, or move it out of the folder") from error
        return windows_of(texts, self.length, f"{self.name}/{split}")
