"""Lightning callbacks: the evaluation at rounds, checkpoints of rounds, progress in rounds."""

from fedgen.callbacks.federated_evaluation import FederatedEvaluation
from fedgen.callbacks.progress import RoundProgressBar
from fedgen.callbacks.round_checkpoint import RoundCheckpoint

__all__ = ["FederatedEvaluation", "RoundCheckpoint", "RoundProgressBar"]
