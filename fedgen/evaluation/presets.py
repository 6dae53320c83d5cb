"""Scores under their usual names: embedding, resize, kernel, estimator and scale as the published code has them.

Not checked: the printed values with the published weights, which are downloaded. Checked on random weights: resizes to
the bit, and scores on features to rounding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation.preset_names import NAMES
from fedgen.evaluation.real.reference import Reference
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, choose
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import Weights


@dataclass(frozen=True)
class Preset:
    """One score with all that its name promises.

    Args:
        name: what the score is called.
        embedding_name: what stored scores call its embedding.
        embedding: arguments of `load_embedding`, the name's being "name".
        score: which score on these features, with its options.
        scale: what the score is multiplied by.
        source: whose numbers these are.
    """

    name: str
    embedding_name: str
    embedding: Mapping[str, Any] = field(repr=False)
    score: ScoreLike
    scale: float = 1.0
    source: str = ""

    @property
    def choice(self) -> ScoreChoice:
        """The score for an evaluation in the preset's embedding, under the preset's name."""
        return choose(self.score, self.name, self.scale)

    def load_embedding(self, weights: str | Path | None = None, **options: Any) -> Embedding:
        """The preset's embedding.

        Args:
            weights: a local file of its weights, downloaded if None.
            options: more arguments of the embedding, such as `repo` for DINOv2's code; none that the preset fixes.

        Raises:
            ValueError: for an option that the preset fixes to another value.
        """
        for key in options.keys() & self.embedding.keys():
            if options[key] != self.embedding[key]:
                raise ValueError(f"preset {self.name} has {key}={self.embedding[key]!r}, got {options[key]!r}")
        return load_embedding({**self.embedding, **options}, weights=weights)

    def reference(self, features: Iterable[Tensor], weights: Weights = "examples") -> "PresetReference":
        """The clients' side of the score.

        Args:
            features: of each client [n_i, D], in the preset's embedding.
            weights: "examples" (n_i / n), "uniform" or K numbers.
        """
        return PresetReference(Reference(list(features), self.choice, weights))


class PresetReference:
    """The clients' side of one preset's score.

    Args:
        reference: of that score alone.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """The score of generated features [m, D], under the preset's name and in its unit.

        Args:
            generated: features in the preset's embedding.
            errors: whether to add standard errors.
        """
        (score,) = self._reference.score(generated, errors)
        return score


FID = Preset(
    "fid",
    "inception-v3-compat",
    {"name": "inception-v3-compat", "layer": "2048", "resize": "tensorflow-1"},
    "fid",
    source="Heusel et al. 2017, arXiv 1706.08500, as torch-fidelity and the first implementation compute it",
)
KID = Preset(
    "kid",
    "inception-v3-compat",
    {"name": "inception-v3-compat", "layer": "2048", "resize": "tensorflow-1"},
    "kid",
    source="Binkowski et al. 2018, arXiv 1801.01401; of all images at once, where torch-fidelity averages over subsets",
)
FD_DINOV2 = Preset(
    "fd-dinov2",
    "dinov2-vit-l-14-dgm-eval",
    {"name": "dinov2-vit-l-14", "resize": "dgm-eval"},
    "fid",
    source="Stein et al. 2023, arXiv 2306.04675, the default of dgm-eval: Pillow's bicubic, class token of ViT-L/14",
)
# cmmd-pytorch's network also resizes (bicubic without antialiasing), but its reader has brought all images to the
# network's size before, by Pillow's antialiased bicubic of the middle square.
CMMD = Preset(
    "cmmd",
    "clip-vit-l-14-336px-cmmd-unit",
    {"name": "clip-vit-l-14-336px", "resize": "cmmd", "unit_length": True},
    {"name": "kid-rbf", "sigma": 10.0, "estimator": "v"},
    scale=1000.0,
    source="Jayasumana et al. 2024, arXiv 2401.09603, on image files as cmmd-pytorch reads them",
)
IS = Preset(
    "is",
    "inception-v3-compat-logits_unbiased",
    {"name": "inception-v3-compat", "layer": "logits_unbiased", "resize": "tensorflow-1"},
    "is",
    source="Salimans et al. 2016, arXiv 1606.03498; of all images at once, where torch-fidelity averages over splits",
)
PRESETS = dict(zip(NAMES, (FID, KID, FD_DINOV2, CMMD, IS)))


def find_preset(name: str) -> Preset:
    """The preset of a name: "fid", "kid", "fd-dinov2", "cmmd" or "is".

    Raises:
        ValueError: for another name.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]
