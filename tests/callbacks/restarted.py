"""A script that trains, scores and selects, for tests.launched.Imported."""

import os
import signal

import lightning as L

import fedgen
from tests.callbacks.modules import Points, evaluation
from tests.federated.modules import make_data


def run(arguments):
    """Trains in a folder from a checkpoint, or None, for so many rounds."""
    folder, path, rounds = arguments
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background ignore
    trainer = L.Trainer(
        strategy=fedgen.FedAvgStrategy(communication_interval=2),
        accelerator="cpu",
        enable_progress_bar=False,
        callbacks=[evaluation(every_n_rounds=2), fedgen.RoundCheckpoint()],
        max_epochs=int(rounds),
        default_root_dir="mine",
        logger=False,
    )
    trainer.fit(Points(), make_data(held_out=0.25), ckpt_path=None if path == "None" else path)
    best = fedgen.select("mine", by="kid_all")[0]
    print("rounds", trainer.current_epoch, "best", best.round)
