"""Hand-made records, and small federations and generators for the evaluation's tests."""

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.evaluation import ScoreRecord


def record(score="fid", aggregate="avg", value=1.0, round: int | None = 0, **options) -> ScoreRecord:
    """A record whose other fields do not matter."""
    defaults = {
        "standard_error": 0.1,
        "split": "train",
        "embedding": "pixels",
        "embedding_fingerprint": "f",
        "reference": "digits/train, 2 clients, 100 images",
        "num_generated": 50,
        "num_clients": 2,
        "seed": 0,
    }
    return ScoreRecord(score=score, aggregate=aggregate, value=value, round=round, **{**defaults, **options})


def pictures(count: int, seed: int, level: int = 128, side: int = 4, channels: int = 1) -> Examples:
    """Noisy uint8 images around a grey level."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randint(-60, 61, (count, channels, side, side), generator=draws)
    images = (level + noise).clamp(0, 255).to(torch.uint8)
    return Examples(images, torch.zeros(count, dtype=torch.int64), "noise/train", ())


CLIENTS = [pictures(30, 1, 80), pictures(50, 2, 128), pictures(20, 3, 180)]


def grey_noise(num_images: int, draws: torch.Generator) -> Tensor:
    """A generator of images: noise around middle grey."""
    return torch.randn(num_images, 1, 4, 4, generator=draws) * 0.4


def dark_noise(num_images: int, draws: torch.Generator) -> Tensor:
    """Another: darker, and less varied."""
    return torch.randn(num_images, 1, 4, 4, generator=draws) * 0.2 - 0.4
