"""fedgen: train, fine-tune and score generative models on data that stays with its owners."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
    from fedgen.clients import FederatedDataModule
    from fedgen.clients.partitions import ByClass, Dirichlet
    from fedgen.data import Digits, Examples
    from fedgen.embeddings import Embedding, load_embedding
    from fedgen.evaluation import evaluate, select
    from fedgen.federated import FedAdam, FedAvgStrategy
    from fedgen.losses import EmbeddedLoss, FastFIDLoss, MMD2Loss
    from fedgen.models import DDPM, WGANGP, FlowMatching, StyleGAN2
    from fedgen.pytorch_lightning_alias import alias_pytorch_lightning
    from fedgen.reports import report
    from fedgen.scores import FrechetReference, KernelReference

__version__ = "0.2.0"
__all__ = [
    "DDPM",
    "WGANGP",
    "ByClass",
    "Digits",
    "Dirichlet",
    "EmbeddedLoss",
    "Embedding",
    "Examples",
    "FastFIDLoss",
    "FedAdam",
    "FedAvgStrategy",
    "FederatedDataModule",
    "FederatedEvaluation",
    "FlowMatching",
    "FrechetReference",
    "KernelReference",
    "MMD2Loss",
    "RoundCheckpoint",
    "StyleGAN2",
    "__version__",
    "alias_pytorch_lightning",
    "evaluate",
    "load_embedding",
    "report",
    "select",
]

load_on_use(__name__)
