"""A training that goes on from its last checkpoint, slowly, for tests.launched.Imported."""

import time
from pathlib import Path

import torch

from tests.federated.modules import Automatic, weights
from tests.federated.test_resume import train


class Slow(Automatic):
    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def run(arguments):
    """Twelve rounds in a folder, of which weights.pt has the last weights."""
    (folder,) = map(Path, arguments)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    module = Slow()
    found = sorted(folder.glob("epoch=*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    print("go", flush=True)
    train(module, folder, 12, found[-1] if found else None, optimizer_state="keep")
    torch.save(weights(module), folder / "weights.pt")
