"""A recipe's callback that writes down when its rounds end."""

import time
from pathlib import Path

import lightning as L


class Stamps(L.Callback):
    """Appends the time to a file at each round's end.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with self.path.open("a") as file:
            file.write(f"{time.time()}\n")
