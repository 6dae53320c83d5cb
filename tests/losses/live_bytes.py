"""The memory of tensors that a computation holds, counted tensor by tensor: the same on every machine."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside the block counts the bytes of tensors that operations make and somebody still holds; `peak` is the most.

    What an operation needs within itself is not seen; what autograd keeps, frees and computes again is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {self._key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and self._key(leaf) not in given | self._known.keys():
                self._hold(leaf.untyped_storage())
        return result

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        self._known[key] = weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size
