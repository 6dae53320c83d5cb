"""States of random generators of torch, NumPy and Python: read, put back, compared and seeded alike."""

import random
from typing import Any

import numpy as np
import torch

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
MOST_SEEDS = 2**32  # of NumPy's RandomState, which takes no larger ones


def read_generator(generator: Any) -> Any:
    """The state of a generator, which further draws do not change."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def write_generator(generator: Any, state: Any) -> None:
    """Puts a state of `read_generator` back."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def same_generator(generator: Any, state: Any) -> bool:
    """Whether a generator is in a state of `read_generator`."""
    return _same(read_generator(generator), state)


def seed_generator(generator: Any, seed: int) -> None:
    """Seeds a generator anew.

    Args:
        generator: of one of the kinds in `GENERATORS`.
        seed: 0 to 2^63 - 1.
    """
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed % MOST_SEEDS if isinstance(generator, np.random.RandomState) else seed)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):  # of NumPy's generators, with arrays in it for all kinds but PCG64
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other
