"""Names of presets, known without loading what they stand for: options list them."""

from typing import Literal

Peer = Literal["torch-fidelity", "clean-fid"]
"""Whose numbers a comparison with one reference gives."""
NAMES = ("fid", "kid", "fd-dinov2", "cmmd", "is")
"""The scores that are presets, in the order of `presets.PRESETS`."""
SUBSET_SIZE = 1000  # images of each of torch-fidelity's subsets
