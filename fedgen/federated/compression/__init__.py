"""Compression of clients' updates: what of a turn's outcome is sent to the server, and in which form."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.federated.compression.compressor import Compressor, Form
    from fedgen.federated.compression.low_rank import PowerSGD
    from fedgen.federated.compression.quantisation import QSGD
    from fedgen.federated.compression.sign import ScaledSign
    from fedgen.federated.compression.sparsification import TopK

__all__ = ["QSGD", "Compressor", "Form", "PowerSGD", "ScaledSign", "TopK"]

load_on_use(__name__)
