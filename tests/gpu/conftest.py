"""Products and convolutions in full float32, where GPUs shorten them to TF32, and nothing left by other tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Only algorithms that repeat themselves; `make test-gpu` sets the workspace that cuBLAS needs for it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
