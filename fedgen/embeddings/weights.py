"""Weight files read without executing anything that they hold."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedgen.io.tensor_files import check_state, read_safetensors, read_torch


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a local .safetensors, .pth or .pt file, on the CPU.

    Pickles are restricted to tensors (`weights_only=True`), so a stranger's file cannot run code. A checkpoint that
    keeps its weights under "state_dict" is unwrapped.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds anything but named tensors, or is damaged.
    """
    path = require_file(path)
    state: Any = read_safetensors(path)[0] if path.suffix == ".safetensors" else read_torch(path)
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} must hold a state dict (names to tensors), got {type(state).__name__}")
    return state


def load_into(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Loads a state dict into a module, strictly.

    Raises:
        ValueError: if names or shapes differ, or values are no weights, naming the source.
    """
    try:
        check_state(module, state)
        module.load_state_dict(state)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{source} does not hold the weights of this network: {error}") from error


def require_file(path: str | Path) -> Path:
    """The path, if a file lies there; FileNotFoundError otherwise."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}; give the path of a local file")
    return path
