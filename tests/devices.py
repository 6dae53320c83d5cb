"""Parameters of tests that run on every kind of device: on a CPU in `make test`, on a GPU in `make test-gpu`."""

import pytest
import torch

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch sees")]
GPU = pytest.param("cuda", marks=ON_GPU)
DEVICES = ["cpu", GPU]
ACCELERATORS = ["cpu", pytest.param("gpu", marks=ON_GPU)]
TWO_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


def on(device):
    """A Trainer's arguments for one "cpu" or "cuda" device."""
    return {"accelerator": "gpu" if device == "cuda" else device, "devices": 1}
