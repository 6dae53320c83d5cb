"""Images to features: frozen, differentiable embeddings by name, and a disk cache for what they compute."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.embeddings.backbones import Backbone
    from fedgen.embeddings.base import Embedding, Identity, ModuleEmbedding, Pixels, TextEmbedding
    from fedgen.embeddings.classifiers import ClassifierOptions, MNISTClassifier, SmallClassifier, train_classifier
    from fedgen.embeddings.efficientnet_lite0 import EfficientNetLite0
    from fedgen.embeddings.embed import FeatureCache, NotFiniteError, embed
    from fedgen.embeddings.fidelity import FidelityEmbedding
    from fedgen.embeddings.names import network_of
    from fedgen.embeddings.registry import embedding_names, load_embedding

__all__ = [
    "Backbone",
    "ClassifierOptions",
    "EfficientNetLite0",
    "Embedding",
    "FeatureCache",
    "FidelityEmbedding",
    "Identity",
    "MNISTClassifier",
    "ModuleEmbedding",
    "NotFiniteError",
    "Pixels",
    "SmallClassifier",
    "TextEmbedding",
    "embed",
    "embedding_names",
    "load_embedding",
    "network_of",
    "train_classifier",
]

load_on_use(__name__)
