"""fedgen: train, fine-tune and score generative models on data that stays with its owners."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> folder; loaded when first used, so that importing fedgen is instant
_PUBLIC = {
    "Digits": "data",
    "Examples": "data",
    "Embedding": "embeddings",
    "load_embedding": "embeddings",
    "FrechetReference": "scores",
    "KernelReference": "scores",
    "EmbeddedLoss": "losses",
    "FastFIDLoss": "losses",
    "MMD2Loss": "losses",
    "WGANGP": "models",
    "DDPM": "models",
    "StyleGAN2": "models",
    "ByClass": "clients.partitions",
    "Dirichlet": "clients.partitions",
    "FederatedDataModule": "clients",
    "FedAvgStrategy": "federated",
    "FedAdam": "federated",
    "evaluate": "evaluation",
    "select": "evaluation",
    "report": "reports",
    "FederatedEvaluation": "callbacks",
    "RoundCheckpoint": "callbacks",
    "alias_pytorch_lightning": "pytorch_lightning_alias",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedgen' has no attribute {name!r}")
    return getattr(import_module(f"fedgen.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
