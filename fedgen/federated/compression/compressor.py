"""Compressors: an update's tensors as fewer bytes (the seam that quantisation and sparsification plug into)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """The shape and type of a tensor that is sent."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * torch.empty(0, dtype=self.dtype).element_size()


class Compressor(ABC):
    """An update's tensor as named tensors of fewer bytes, and back; each tensor of a model by itself.

    `FedAvgStrategy(compression=...)` gives it what a client's turn added to the server's parameters, in float32 at
    least. How many bytes are sent depends on the tensor's shape and type alone, so that a server knows what to expect.

    Attributes:
        error_feedback: whether a client keeps what was not sent, and adds it to its next update (Karimireddy et al.
            2019, "Error Feedback Fixes SignSGD", arXiv 1901.09847, Algorithm 2). Biased compressors need it.
        carried: the part of what was sent that a client keeps as a start for its next turn; "" for none.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import Compressor, Form
        >>> class Halves(Compressor):  # in half precision
        ...     def forms(self, shape, dtype):
        ...         return {"halves": Form(tuple(shape), torch.float16)}
        ...     def encode(self, update, draws, start=None):
        ...         return {"halves": update.half()}
        ...     def decode(self, payload, shape, dtype):
        ...         return payload["halves"].to(dtype)
        >>> Halves().num_bytes((10, 3), torch.float32)
        60
    """

    error_feedback = False
    carried = ""

    @property
    def keeps_clients(self) -> bool:
        """Whether something is kept of each client, which then trains in one process for good."""
        return self.error_feedback or bool(self.carried)

    @abstractmethod
    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        """Return the forms of the tensors that are sent for an update of this shape and type, by name."""

    @abstractmethod
    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        """Return what is sent, by name, in `forms`.

        Args:
            update: finite, float32 or float64, on any device; not to be changed.
            draws: a generator on the CPU, seeded by seed, round and client.
            start: the `carried` part of what this client sent last; None if there is none.
        """

    @abstractmethod
    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the update that the server takes in, of this shape and type, from what `encode` gave."""

    def check_values(self, payload: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:  # noqa: B027 - most take any
        """Refuses values that `encode` never gives for an update of this shape; the forms are right.

        Raises:
            ValueError: saying what is wrong.
        """

    def check(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Refuses what `encode` never gives for an update of this shape and type.

        Raises:
            ValueError: naming the part, and what is wrong with it.
        """
        forms = self.forms(shape, dtype)
        if payload.keys() != forms.keys():
            raise ValueError(f"it has the parts {sorted(payload)}, and {type(self).__name__} sends {sorted(forms)}")
        for name, form in forms.items():
            found = payload[name]
            if (tuple(found.shape), found.dtype) != form:
                raise ValueError(f"{name} is {found.dtype} {list(found.shape)} and not {form.dtype} {list(form.shape)}")
            if not bool(found.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinity")
        self.check_values(payload, shape)

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the bytes that are sent for an update of this shape and type: those of the numbers in `forms`."""
        return sum(form.num_bytes for form in self.forms(shape, dtype).values())
