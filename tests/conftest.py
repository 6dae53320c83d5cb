"""One thread per process: the tests' tensors are small, and what they compute must not depend on the machine."""

import torch

torch.set_num_threads(1)
