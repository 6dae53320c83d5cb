"""Summaries or features to numbers, with torch alone."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.scores.aggregate import FederatedScore, aggregate, resolve_weights
    from fedgen.scores.client_entropy import client_entropies
    from fedgen.scores.critic import CriticOptions
    from fedgen.scores.entropy_options import EntropyOptions
    from fedgen.scores.extrapolation import Extrapolation, fid_infinity
    from fedgen.scores.federated_kid import SummedKID, kid_from_messages, kid_message
    from fedgen.scores.frechet import FrechetReference, frechet_distance
    from fedgen.scores.inception_score import inception_score, inception_score_splits
    from fedgen.scores.kernels import Kernel, PolynomialKernel, RBFKernel
    from fedgen.scores.likelihood import Density, LikelihoodReference
    from fedgen.scores.manifold import ManifoldReference
    from fedgen.scores.memorisation import memorisation
    from fedgen.scores.mmd import KernelReference, mmd2, mmd2_subsets
    from fedgen.scores.rankings import ExcessInversions, Inversion, excess_inversions, inversions, kendall_tau
    from fedgen.scores.sliced import SlicedReference, sliced_wasserstein
    from fedgen.scores.utility import UtilityReference
    from fedgen.scores.vendi import vendi_score
    from fedgen.scores.wasserstein import WassersteinReference, wasserstein_critic

__all__ = [
    "CriticOptions",
    "Density",
    "EntropyOptions",
    "ExcessInversions",
    "Extrapolation",
    "FederatedScore",
    "FrechetReference",
    "Inversion",
    "Kernel",
    "KernelReference",
    "LikelihoodReference",
    "ManifoldReference",
    "PolynomialKernel",
    "RBFKernel",
    "SlicedReference",
    "SummedKID",
    "UtilityReference",
    "WassersteinReference",
    "aggregate",
    "client_entropies",
    "excess_inversions",
    "fid_infinity",
    "frechet_distance",
    "inception_score",
    "inception_score_splits",
    "inversions",
    "kendall_tau",
    "kid_from_messages",
    "kid_message",
    "memorisation",
    "mmd2",
    "mmd2_subsets",
    "resolve_weights",
    "sliced_wasserstein",
    "vendi_score",
    "wasserstein_critic",
]

load_on_use(__name__)
