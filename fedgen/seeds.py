"""Randomness from (seed, round, client, ...): the same names give the same draws, in any process and in any order."""

import hashlib
import json
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *path: int | str) -> int:
    """A seed in [0, 2^63), hashed from a base seed and a path of names: `derive(0, "turn", round, client)`."""
    text = json.dumps([int(seed), *(part if isinstance(part, str) else int(part) for part in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_generator(seed: int, *path: int | str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *path))


def resolve(seed: int | None) -> int:
    """The seed itself, or what `lightning.seed_everything` was given, or 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else int(seed)


def subset(total: int, count: int | None, seed: int, *path: int | str) -> torch.Tensor:
    """At most `count` of the positions 0 to `total` - 1, none twice, drawn at (seed, path): int64, rising."""
    return torch.randperm(total, generator=generator(seed, *path))[:count].sort().values


def seed_all(seed: int, *path: int | str) -> None:
    """Seeds the global generators of torch (CPU, and accelerators in use), NumPy and Python at (seed, path)."""
    # `torch.manual_seed` would queue a call with a stack trace for a CUDA that nobody has used, each turn
    value = derive(seed, *path)
    torch.default_generator.manual_seed(value)
    for accelerator in (torch.cuda, torch.xpu):
        if accelerator.is_initialized():
            accelerator.manual_seed_all(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)


def item_seed(base: int, place: int, visit: int = 0) -> int:
    """A seed in [0, 2^63) of an example by place and visits; `base` is what `derive` gives a turn."""
    digest = hashlib.blake2b(struct.pack("<qqq", base, place, visit), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_item(seed: int) -> None:
    """Seeds the global CPU generators of torch, NumPy and Python, which an item's transforms draw from."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def isolated(devices: bool = True) -> Iterator[None]:
    """Restores the global generators of torch, NumPy, Python and, with `devices`, every CUDA device on exit."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    used = devices and torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if used else None
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
