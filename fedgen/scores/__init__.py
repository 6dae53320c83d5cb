"""Summaries or features to numbers, with torch alone."""

from fedgen.scores.aggregate import FederatedScore, aggregate, resolve_weights
from fedgen.scores.extrapolation import Extrapolation, fid_infinity
from fedgen.scores.frechet import FrechetReference, frechet_distance
from fedgen.scores.kernels import Kernel, PolynomialKernel, RBFKernel
from fedgen.scores.manifold import ManifoldReference
from fedgen.scores.memorisation import memorisation
from fedgen.scores.mmd import KernelReference, mmd2, mmd2_subsets
from fedgen.scores.rankings import ExcessInversions, Inversion, excess_inversions, inversions, kendall_tau

__all__ = [
    "ExcessInversions",
    "Extrapolation",
    "FederatedScore",
    "FrechetReference",
    "Inversion",
    "Kernel",
    "KernelReference",
    "ManifoldReference",
    "PolynomialKernel",
    "RBFKernel",
    "aggregate",
    "excess_inversions",
    "fid_infinity",
    "frechet_distance",
    "inversions",
    "kendall_tau",
    "memorisation",
    "mmd2",
    "mmd2_subsets",
    "resolve_weights",
]
