"""A Lightning Trainer for tests, and whether two modules that were trained are the same."""

from typing import Any

import lightning as L
import torch


def quiet_trainer(rounds: int = 1, **options: Any) -> L.Trainer:
    """A Trainer of so many epochs in one CPU process, which shows, logs and keeps nothing unless options say so."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(**({"max_epochs": rounds, "accelerator": "cpu", "devices": 1} | quiet | options))


def same_state(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    """Whether two modules' states are equal to the bit; each is asked for once, which takes long of large modules."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
