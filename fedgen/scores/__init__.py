"""Summaries or features to numbers, with torch alone."""

from fedgen.scores.aggregate import FederatedScore, aggregate, resolve_weights
from fedgen.scores.frechet import FrechetReference, frechet_distance
from fedgen.scores.kernels import Kernel, PolynomialKernel, RBFKernel
from fedgen.scores.mmd import KernelReference, mmd2, mmd2_subsets
from fedgen.scores.rankings import Inversion, inversions, kendall_tau

__all__ = [
    "FederatedScore",
    "FrechetReference",
    "Inversion",
    "Kernel",
    "KernelReference",
    "PolynomialKernel",
    "RBFKernel",
    "aggregate",
    "frechet_distance",
    "inversions",
    "kendall_tau",
    "mmd2",
    "mmd2_subsets",
    "resolve_weights",
]
