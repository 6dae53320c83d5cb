"""The standard extractors with random weights, so that nothing is downloaded."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding


@pytest.fixture(scope="session")
def inception(inception_weights: Path) -> Embedding:
    return load_embedding("inception-v3-compat", weights=inception_weights)


@pytest.fixture(scope="session")
def lite0() -> Embedding:
    return load_embedding("efficientnet-lite0", size=32)


@pytest.fixture
def images() -> Tensor:
    """Three float images [3, 1, 8, 8], a few pixels beyond [-1, 1]."""
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2.2 - 1.1
