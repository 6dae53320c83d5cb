"""Data, a model, an embedding and stored files of each kind of samples, as recipes and commands name them."""

from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from fedgen.data import DataSet, Examples
from fedgen.data.text import decode_all
from fedgen.embeddings import Embedding, ModuleEmbedding
from fedgen.embeddings.base import TextEmbedding

SHAPES = {"images": (1, 5, 5), "points": (4,), "texts": (6,), "volumes": (1, 2, 3, 2), "series": (2, 5)}
COUNTS = 24, 36
FEATURES = 3


class OfKind(DataSet):
    """The samples of one of two clients, the second's shifted."""

    name, splits = "kind", ("train",)

    def __init__(self, kind: str, partition_id: int, num_partitions: int = 2):
        self.kind, self.number = kind, partition_id

    def read(self, split):
        count, draws = COUNTS[self.number], torch.Generator().manual_seed(self.number)
        inputs = noise(self.kind, count, draws, 0.3 * self.number)
        if self.kind == "images":
            inputs = ((inputs.clamp(-1, 1) + 1) * 127.5).to(torch.uint8)
        return Examples(inputs, torch.zeros(count, dtype=torch.int64), f"kind/{split}", ())


def noise(kind: str, count: int, draws: torch.Generator | None, shift: float = 0.0) -> Tensor:
    """Samples around a value: floats, or letters of which one of every sixth length is drawn."""
    if kind == "texts":
        letters = torch.randint(97, 107, (count, *SHAPES[kind]), generator=draws) + round(10 * shift)
        lengths = torch.randint(2, 7, (count, 1), generator=draws)
        return letters * (torch.arange(6) < lengths)
    return torch.randn(count, *SHAPES[kind], generator=draws) * 0.4 + shift


class Noise(L.LightningModule):
    """Noise around one number, which training takes towards 0.5."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.shift = kind, nn.Parameter(torch.tensor(0.0))

    def training_step(self, batch, batch_idx):
        assert len(batch[0].shape) == len(SHAPES[self.kind]) + 1
        return (self.shift - 0.5).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.2)

    @torch.no_grad()
    def sample(self, num, generator=None):
        made = noise(self.kind, num, generator, float(self.shift))
        return decode_all(made) if self.kind == "texts" else made


class Letters(TextEmbedding):
    """A text's length, its mean letter, and how many letters are before "e"."""

    def __init__(self):
        super().__init__("letters", FEATURES)

    def features(self, texts):
        return torch.tensor([[len(t), sum(map(ord, t)) / len(t) - 97, sum(one < "e" for one in t)] for t in texts])


def embed_images() -> Embedding:
    return ModuleEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(25, FEATURES), nn.Tanh()), name="of-images")


def embed_points() -> Embedding:
    return ModuleEmbedding(nn.Sequential(nn.Linear(4, FEATURES), nn.Tanh()), name="of-points", kind="points")


def embed_texts() -> Embedding:
    return Letters()


def embed_volumes() -> Embedding:
    network = nn.Sequential(nn.Conv3d(1, FEATURES, 2), nn.Tanh(), nn.AdaptiveAvgPool3d(1))
    return ModuleEmbedding(network, name="of-volumes", kind="volumes")


def embed_series() -> Embedding:
    network = nn.Sequential(nn.Conv1d(2, FEATURES, 3), nn.Tanh(), nn.AdaptiveAvgPool1d(1))
    return ModuleEmbedding(network, name="of-series", kind="series")


def store(path: Path, samples: Tensor, in_folder: bool) -> Path:
    """Samples as `fedgen evaluate` reads them: a file of lines, one array, or a folder of an array each."""
    if samples.dtype == torch.int64:
        path.with_suffix(".txt").write_text("".join(f"{text}\n" for text in decode_all(samples)))
        return path.with_suffix(".txt")
    if not in_folder:
        np.save(path.with_suffix(".npy"), samples.numpy())
        return path.with_suffix(".npy")
    path.mkdir()
    for place, sample in enumerate(samples):
        np.save(path / f"{place:04d}.npy", sample.numpy())
    return path


def plain_fid(clients: list[Tensor], generated: Tensor) -> dict[str, float]:
    """FID by its formula, of features [n_i, D] and [m, D]: to all clients' as one set, and the mean by numbers."""

    def distance(real):
        means = [part.mean(0) for part in (real, made)]
        first, second = (np.cov(part.T) for part in (real, made))
        roots = np.sqrt(np.maximum(np.linalg.eigvals(first @ second).real, 0)).sum()
        return float(((means[0] - means[1]) ** 2).sum() + np.trace(first + second) - 2 * roots)

    *real, made = (part.double().numpy() for part in (*clients, generated))
    counts = [len(part) for part in real]
    avg = sum(n * distance(part) for n, part in zip(counts, real)) / sum(counts)
    return {"fid_avg": avg, "fid_all": distance(np.concatenate(real))}
