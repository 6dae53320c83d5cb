"""Small whole numbers, several in a byte."""

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return whole numbers as bytes, the first in the lowest bits; the last byte is filled up with 0."""
    each = 8 // bits
    padded = torch.zeros(packed_size(len(codes), bits) * each, dtype=torch.uint8, device=codes.device)
    padded[: len(codes)] = codes
    rows = padded.view(-1, each)
    packed = torch.zeros_like(rows[:, 0])
    for place in range(each):
        packed |= rows[:, place] << (place * bits)
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the whole numbers that `pack` was given."""
    places = [(packed >> (place * bits)) & (2**bits - 1) for place in range(8 // bits)]
    return torch.stack(places, 1).view(-1)[:count]


def packed_size(count: int, bits: int) -> int:
    """Return how many bytes so many numbers of these bits take."""
    return -(-count * bits // 8)
