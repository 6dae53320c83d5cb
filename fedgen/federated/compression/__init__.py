"""Compression of clients' updates: what of a turn's outcome is sent to the server, and in which form."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.federated.compression.compressors import QSGD, Compressor, Form, PowerSGD, ScaledSign, TopK

__all__ = ["QSGD", "Compressor", "Form", "PowerSGD", "ScaledSign", "TopK"]

load_on_use(__name__)
