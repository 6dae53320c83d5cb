"""The device that a benchmark or a test runs on: how a Trainer names it, and clocks that wait for its work.

`python -m benchmarks.device` lists the GPUs that PyTorch sees; where it sees none, it says what to do, and fails.
"""

import sys
import time
from typing import Any

import torch

NONE = "PyTorch {version} sees no GPU here ({reason}): nothing was run. {remedy}."


def gpus() -> list[str]:
    """The names of the GPUs that PyTorch sees."""
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def why_none() -> str:
    """A sentence for where there is no GPU, with the remedy."""
    built = torch.version.cuda or torch.version.hip
    reason = f"it was built for {built}" if built else "it was built for CPUs alone"
    remedy = "See nvidia-smi, and CUDA_VISIBLE_DEVICES" if built else "Install torch and torchvision for GPUs"
    others = "the same code runs on a CPU in `make test`, and by `python -m benchmarks.gpu --device cpu --small`"
    return NONE.format(version=torch.__version__, reason=reason, remedy=f"{remedy}; {others}")


def place(device: str) -> dict[str, Any]:
    """The Trainer's arguments for one "cpu" or "cuda" device."""
    return {"accelerator": "gpu" if device == "cuda" else device, "devices": 1}


def settle() -> None:
    """Waits until the GPU has done what this process gave it, if it gave it anything."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def wall() -> float:
    """Wall clock seconds, of settled devices."""
    settle()
    return time.perf_counter()


def work_seconds() -> float:
    """Seconds of this process's work: a processor's without those of other processes, of a GPU the wall clock's."""
    return wall() if torch.cuda.is_initialized() else time.process_time()


def main() -> int:
    if not (found := gpus()):
        print(why_none(), file=sys.stderr)
        return 1
    for number, name in enumerate(found):
        print(f"GPU {number}: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
