"""The device that an option names, tried before any work."""

import torch


def require_device(name: str) -> str:
    """The name of a device that can be used here, e.g. "cpu", "cuda" or "cuda:1".

    Raises:
        ValueError: for any other, naming it and the remedy.
    """
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # PyTorch without CUDA asserts
        here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"device {name!r} cannot be used here ({reason}); choose --device {' or '.join(here)}, or run where there"
            " is one, with a PyTorch that is built for it"
        ) from error
    return name
