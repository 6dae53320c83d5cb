"""Scores of a folder of images against clients' folders: `python examples/score_folders.py samples a b`.

The same is `fedgen evaluate --generated samples --clients a b`, with tables, figures and checks.
"""

import sys

from fedgen import load_embedding
from fedgen.data import ImageFolder
from fedgen.embeddings import embed
from fedgen.scores import FrechetReference, KernelReference

EMBEDDING = load_embedding("efficientnet-lite0-32")  # a small network; fedgen holds its weights


def features_of(folder):
    """Return the features [N, D] of a folder's images, which have one size."""
    return embed(EMBEDDING, ImageFolder(folder).read("train").inputs)


generated, *clients = (features_of(folder) for folder in sys.argv[1:])
for reference in (FrechetReference.from_features(clients), KernelReference.from_features(clients)):
    score = reference.score(generated)
    for name, value in zip(sys.argv[2:], score.per_client):
        print(f"{score.name} to {name}: {value:.4g}")
    for aggregate in ("avg", "all"):  # the mean of the clients' scores; the score to their pooled images
        print(f"{score.name}_{aggregate}: {score.values[aggregate]:.4g} ± {score.errors[aggregate]:.2g}")
