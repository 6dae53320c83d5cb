"""Squared maximum mean discrepancies as scores: `kid` with the cubic kernel, `kid-rbf` with the Gaussian one."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, get_args

from fedgen.scores.definition import ClientSide, FittedReference, FittedScore, ScoreDefinition, require_finite
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, RBFKernel
from fedgen.scores.kernel.mmd import Estimator, KernelReference


@dataclass(frozen=True)
class KernelScore(ScoreDefinition):
    """MMD^2 with a kernel.

    Args:
        estimator: "u" (unbiased, may be negative) or "v".
    """

    shares_out: ClassVar[bool] = True

    estimator: Estimator = "u"

    def __post_init__(self) -> None:
        if self.estimator not in get_args(Estimator):
            raise ValueError(f"estimator must be 'u' or 'v', got {self.estimator!r}")

    @property
    @abstractmethod
    def kernel(self) -> Kernel:
        """The kernel."""

    @property
    def has_powers(self) -> bool:
        return self.estimator != "u"

    def fit(self, clients: ClientSide) -> FittedScore:
        reference = KernelReference.from_features(clients.features, self.kernel, self.estimator, clients.weights)
        return FittedReference(self.name, reference)


@dataclass(frozen=True)
class PolynomialScore(KernelScore):
    """KID (Binkowski et al. 2018, arXiv 1801.01401): MMD^2 with the kernel (gamma x.y + coef0)^degree, of all images.

    Args:
        degree: of the polynomial.
        gamma: 1 / D if None.
        coef0: the constant.
    """

    name: ClassVar[str] = "kid"

    degree: int = PolynomialKernel.degree
    gamma: float | None = PolynomialKernel.gamma
    coef0: float = PolynomialKernel.coef0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(degree=self.degree, **({} if self.gamma is None else {"gamma": self.gamma}), coef0=self.coef0)
        _ = self.kernel  # which refuses numbers out of range

    @property
    def kernel(self) -> PolynomialKernel:
        return PolynomialKernel(self.degree, self.gamma, self.coef0)


@dataclass(frozen=True)
class GaussianKernelScore(KernelScore):
    """MMD^2 with the Gaussian kernel. CMMD (Jayasumana et al. 2024, arXiv 2401.09603) is 1000 times estimator "v".

    Args:
        sigma: the kernel's bandwidth; see `RBFKernel`.
    """

    name: ClassVar[str] = "kid-rbf"

    sigma: float | None = RBFKernel.sigma

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma is not None:
            require_finite(sigma=self.sigma)
        _ = self.kernel

    @property
    def kernel(self) -> RBFKernel:
        return RBFKernel(self.sigma)
