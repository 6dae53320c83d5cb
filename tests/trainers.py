"""A Lightning Trainer for tests."""

from typing import Any

import lightning as L


def quiet_trainer(rounds: int = 1, **options: Any) -> L.Trainer:
    """A Trainer of so many epochs in one CPU process, which shows, logs and keeps nothing unless options say so."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(**({"max_epochs": rounds, "accelerator": "cpu", "devices": 1} | quiet | options))
