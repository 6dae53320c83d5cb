"""What a client does besides its own steps (the seam that FedProx and SCAFFOLD plug into)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class ClientAlgorithm:
    """Hooks around a client's local steps; the base class is plain local training.

    All mappings go from parameter names to live tensors; `server` must not be changed.
    """

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        """Before the client's first step; the model holds the server's weights."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Before each optimizer step, with gradients in place: the moment to change them."""

    def end_turn(self, client: int, model: Mapping[str, Tensor], iterations: int) -> None:
        """After the client's last step, before its weights are aggregated; not called for a client left out."""

    def end_round(self) -> None:
        """After the server's update."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold (tensors and plain types)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
