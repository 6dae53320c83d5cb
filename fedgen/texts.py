"""Texts as tensors: rows of UTF-8 bytes uint8 [N, L], padded with zeros, as they are stored, chunked and compared."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def from_texts(texts: Sequence[str]) -> Tensor:
    """Rows of bytes uint8 [N, L] of texts, L that of the longest.

    Raises:
        TypeError: for what is not a string.
        ValueError: for a text that holds a zero byte, which ends a row.

    Examples:
        >>> from fedgen.texts import from_texts, to_texts
        >>> rows = from_texts(["CCO", "c1ccccc1"])
        >>> list(rows.shape), to_texts(rows)
        ([2, 8], ['CCO', 'c1ccccc1'])
    """
    rows = []
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {place} is a {type(text).__name__}; texts are strings")
        if "\0" in text:
            raise ValueError(f"text {place} holds a zero byte, which ends a text; leave it out")
        rows.append(torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8))
    return pad_sequence(rows, batch_first=True) if rows else torch.empty(0, 1, dtype=torch.uint8)


def to_texts(rows: Tensor) -> list[str]:
    """The texts of rows of bytes; bytes that are no UTF-8 become the replacement character."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.cpu().numpy()]


def are_texts(rows: Tensor) -> bool:
    """Whether a tensor holds texts as `from_texts` writes them."""
    return rows.ndim == 2 and rows.dtype == torch.uint8


def widened(rows: Tensor, width: int) -> Tensor:
    """The rows, padded with zeros to a width."""
    return rows if rows.shape[1] >= width else torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
