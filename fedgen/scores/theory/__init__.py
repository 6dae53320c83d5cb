"""The papers' theorems about avg and all as functions, with what has to be assumed and what was corrected."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.scores.theory.barycentre import (
        BarycentreDecomposition,
        barycentre,
        barycentre_decomposition,
        commuting_barycentre,
        largest_commutator,
    )
    from fedgen.scores.theory.counter_example import CounterExample, counter_example
    from fedgen.scores.theory.gaussian_toy import toy_frechet, toy_kernel, toy_log_likelihood
    from fedgen.scores.theory.kid import KIDDecomposition, kid_decomposition
    from fedgen.scores.theory.population import population_gaussian

__all__ = [
    "BarycentreDecomposition",
    "CounterExample",
    "KIDDecomposition",
    "barycentre",
    "barycentre_decomposition",
    "commuting_barycentre",
    "counter_example",
    "kid_decomposition",
    "largest_commutator",
    "population_gaussian",
    "toy_frechet",
    "toy_kernel",
    "toy_log_likelihood",
]

load_on_use(__name__)
