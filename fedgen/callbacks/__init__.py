"""Lightning callbacks: the evaluation at rounds, checkpoints of rounds, progress in rounds, what becomes of state,
compiled steps, memory formats."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.callbacks.compile_steps import ChannelsLast, CompileSteps
    from fedgen.callbacks.federated_evaluation import FederatedEvaluation
    from fedgen.callbacks.round_checkpoint import RoundCheckpoint
    from fedgen.callbacks.round_progress import RoundProgressBar, StateReport

__all__ = ["ChannelsLast", "CompileSteps", "FederatedEvaluation", "RoundCheckpoint", "RoundProgressBar", "StateReport"]

load_on_use(__name__)
