"""Heterogeneity of a federation's clients, before anything is trained: client entropy, distances, controls."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.clients.heterogeneity.client_entropy import client_entropies
    from fedgen.clients.heterogeneity.entropy_options import EntropyOptions
    from fedgen.clients.heterogeneity.heterogeneity import Heterogeneity, measure_clients, measure_features

__all__ = ["EntropyOptions", "Heterogeneity", "client_entropies", "measure_clients", "measure_features"]

load_on_use(__name__)
