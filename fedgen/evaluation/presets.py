"""Scores under their usual names: embedding, resize, kernel, estimator and scale as the published code has them.

Not checked: the printed values with the published weights, which are downloaded. Checked on random weights: resizes to
the bit, and scores on features to rounding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.scores import FederatedScore, FrechetReference, Kernel, KernelReference, PolynomialKernel, RBFKernel
from fedgen.scores.aggregate import Weights
from fedgen.scores.mmd import Estimator


@dataclass(frozen=True)
class Preset:
    """One score with all that its name promises.

    Args:
        name: what the score is called.
        embedding: arguments of `load_embedding`, the name's being "name".
        kernel: of MMD^2; None for the Fréchet distance.
        estimator: of MMD^2.
        scale: what MMD^2 is multiplied by.
        source: whose numbers these are.
    """

    name: str
    embedding: Mapping[str, Any] = field(repr=False)
    kernel: Kernel | None = None
    estimator: Estimator = "u"
    scale: float = 1.0
    source: str = ""

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
        if self.kernel is None:
            return PresetReference(self, FrechetReference.from_features(features, weights))
        return PresetReference(self, KernelReference.from_features(features, self.kernel, self.estimator, weights))


class PresetReference:
    """The clients' side of one preset's score.

    Args:
        preset: which.
        reference: of the score in its own unit.
    """

    def __init__(self, preset: Preset, reference: FrechetReference | KernelReference) -> None:
        self.preset, self._reference = preset, reference

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """The score of generated features [m, D], under the preset's name and in its unit.

        Args:
            generated: features in the preset's embedding.
            errors: whether to add standard errors.
        """
        return replace(scaled(self._reference.score(generated, errors), self.preset.scale), name=self.preset.name)


FID = Preset(
    "fid",
    {"name": "inception-v3-compat", "layer": "2048", "resize": "tensorflow-1"},
    source="Heusel et al. 2017, arXiv 1706.08500, as torch-fidelity and the first implementation compute it",
)
KID = Preset(
    "kid",
    {"name": "inception-v3-compat", "layer": "2048", "resize": "tensorflow-1"},
    PolynomialKernel(),
    source="Binkowski et al. 2018, arXiv 1801.01401; of all images at once, where torch-fidelity averages over subsets",
)
FD_DINOV2 = Preset(
    "fd-dinov2",
    {"name": "dinov2-vit-l-14", "resize": "dgm-eval"},
    source="Stein et al. 2023, arXiv 2306.04675, the default of dgm-eval: Pillow's bicubic, class token of ViT-L/14",
)
# cmmd-pytorch's network also resizes (bicubic without antialiasing), but its reader has brought all images to the
# network's size before, by Pillow's antialiased bicubic of the middle square.
CMMD = Preset(
    "cmmd",
    {"name": "clip-vit-l-14-336px", "resize": "cmmd", "unit_length": True},
    RBFKernel(sigma=10.0),
    estimator="v",
    scale=1000.0,
    source="Jayasumana et al. 2024, arXiv 2401.09603, on image files as cmmd-pytorch reads them",
)
PRESETS = {preset.name: preset for preset in (FID, KID, FD_DINOV2, CMMD)}


def find_preset(name: str) -> Preset:
    """The preset of a name: "fid", "kid", "fd-dinov2" or "cmmd".

    Raises:
        ValueError: for another name.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


def scaled(score: FederatedScore, factor: float) -> FederatedScore:
    """A score in another unit: values, terms and errors times a positive factor."""
    if factor == 1:
        return score
    return replace(
        score,
        per_client=score.per_client * factor,
        values=_times(score.values, factor),
        errors=_times(score.errors, factor),
        terms={term: _times(values, factor) for term, values in score.terms.items()},
        error_parts={side: _times(values, factor) for side, values in score.error_parts.items()},
        client_errors=None if score.client_errors is None else score.client_errors * factor,
    )


def _times(values: dict[str, float], factor: float) -> dict[str, float]:
    return {key: value * factor for key, value in values.items()}
