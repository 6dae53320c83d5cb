"""Summaries or features to numbers, with torch alone."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.scores.aggregate import FederatedScore, aggregate, resolve_weights
    from fedgen.scores.definition import ClientSide, Density, FittedScore, GeneratedSet, ScoreDefinition
    from fedgen.scores.frechet.few_images import Extrapolation, fid_infinity
    from fedgen.scores.frechet.frechet import FrechetReference, frechet_distance
    from fedgen.scores.frechet.mifid import MiFIDReference
    from fedgen.scores.kernel.federated_kid import SummedKID, kid_from_messages, kid_message
    from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, RBFKernel
    from fedgen.scores.kernel.mmd import KernelReference, mmd2, mmd2_subsets
    from fedgen.scores.manifold.feature_likelihood import FeatureLikelihoodReference
    from fedgen.scores.manifold.manifold import ManifoldReference
    from fedgen.scores.manifold.memorisation import AuthenticityReference, memorisation
    from fedgen.scores.of_model.answers import LikelihoodReference
    from fedgen.scores.of_model.conditional import UtilityReference
    from fedgen.scores.of_model.diversity import inception_score, inception_score_splits, vendi_score
    from fedgen.scores.rankings import ExcessInversions, Inversion, excess_inversions, inversions, kendall_tau
    from fedgen.scores.wasserstein.sliced import SlicedReference, sliced_wasserstein
    from fedgen.scores.wasserstein.wasserstein import CriticOptions, WassersteinReference, wasserstein_critic

__all__ = [
    "AuthenticityReference",
    "ClientSide",
    "CriticOptions",
    "Density",
    "ExcessInversions",
    "Extrapolation",
    "FeatureLikelihoodReference",
    "FederatedScore",
    "FittedScore",
    "FrechetReference",
    "GeneratedSet",
    "Inversion",
    "Kernel",
    "KernelReference",
    "LikelihoodReference",
    "ManifoldReference",
    "MiFIDReference",
    "PolynomialKernel",
    "RBFKernel",
    "ScoreDefinition",
    "SlicedReference",
    "SummedKID",
    "UtilityReference",
    "WassersteinReference",
    "aggregate",
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
