"""Buffers whose shapes are known late: unset at first, allocated once, or taken from a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Layout = tuple[Sequence[int], torch.dtype]


class LateBuffers(nn.Module):
    """A module whose saved buffers are None until `allocate`, or until a checkpoint brings their shapes.

    Strict loading works in each order: a checkpoint with buffers into a module without them (rebuilt from its recipe,
    references still unknown), and one without them (saved before they were known) into a module with, which starts
    anew.

    Args:
        names: of the buffers.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._late = names
        for name in names:
            self.register_buffer(name, None)

    @property
    def allocated(self) -> bool:
        """Whether the buffers are there."""
        return all(self._buffers[name] is not None for name in self._late)

    def allocate(self, layouts: Mapping[str, Layout], device: torch.device) -> None:
        """Makes the buffers, zero; those that are there stay as they are.

        Args:
            layouts: shape and dtype of each.

        Raises:
            ValueError: if one is there with another shape or dtype.
        """
        for name, (shape, dtype) in layouts.items():
            present = self._buffers[name]
            if present is None:
                self._buffers[name] = torch.zeros(tuple(shape), dtype=dtype, device=device)
            elif tuple(present.shape) != tuple(shape) or present.dtype != dtype:
                raise ValueError(
                    f"{type(self).__name__} remembers {name} of {list(present.shape)} {present.dtype}, now needed is"
                    f" {list(shape)} {dtype}; use a new loss, or the embedding and options it was saved with"
                )
            else:
                self._buffers[name] = present.to(device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = {name: state_dict[prefix + name] for name in self._late if prefix + name in state_dict}
        for name, value in saved.items():
            if self._buffers[name] is None:
                self._buffers[name] = torch.empty_like(value)
        if not saved:
            state_dict = dict(state_dict)
            for name in self._late:
                present = self._buffers[name]
                if isinstance(present, Tensor):
                    state_dict[prefix + name] = torch.zeros_like(present)
        super()._load_from_state_dict(state_dict, prefix, *rest)
