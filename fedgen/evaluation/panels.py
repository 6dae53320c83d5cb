"""Panels of an evaluation: every score on every embedding, and each preset on its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.embeddings.text_bytes import TextBytes
from fedgen.evaluation.names import NAMES
from fedgen.evaluation.reference import Reference
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, check_distinct, choose, choose_scores
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import Weights

DEFAULT_EMBEDDINGS = ("efficientnet-lite0",)
DEFAULT_SCORES = ("fid", "kid")
OWN_MODEL = "own-model"  # stands in an embedding's place where a model is asked for its own losses

PresetLike = str | Mapping[str, Any]
EmbeddingLike = str | Mapping[str, Any] | Embedding


@dataclass(frozen=True)
class Preset:
    """One score under its usual name: embedding, resize, kernel, estimator and scale as the published code has them.

    Checked on random weights: resizes to the bit, and scores on features to rounding; not checked: the printed values
    with the published weights, which are downloaded.

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
        """The clients' side of the score, of each client's features [n_i, D] in the preset's embedding."""
        return PresetReference(Reference(list(features), self.choice, weights))


@dataclass(frozen=True, eq=False)
class PresetReference:
    reference: Reference

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """The score of generated features [m, D], under the preset's name and in its unit."""
        return self.reference.score(generated, errors)[0]


FID = Preset(
    "fid",
    "inception-v3-compat",
    {"name": "inception-v3-compat", "layer": "2048", "resize": "tensorflow-1"},
    "fid",
    source="Heusel et al. 2017, arXiv 1706.08500, as torch-fidelity and the first implementation compute it",
)
KID = replace(
    FID,
    name="kid",
    score="kid",
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
FCD = Preset(
    "fcd",
    "chemnet",
    {"name": "chemnet"},
    "fid",
    source="Preuer et al. 2018, J. Chem. Inf. Model. 58, as fcd-torch and MOSES compute it, of valid molecules",
)
PRESETS = dict(zip(NAMES, (FID, KID, FD_DINOV2, CMMD, IS, FCD)))


def find_preset(name: str) -> Preset:
    """The preset of a name: "fid", "kid", "fd-dinov2", "cmmd", "is" or "fcd"; ValueError for another name."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, eq=False)
class Panel:
    embedding: Embedding
    choices: tuple[ScoreChoice, ...]

    @property
    def on_images(self) -> bool:
        """Whether its scores take images with labels in place of features."""
        return isinstance(self.embedding, NoEmbedding)

    @property
    def on_model(self) -> bool:
        """Whether its scores ask the model about the clients' images, and need no generated ones."""
        return isinstance(self.embedding, OwnModel)


class NoEmbedding(Embedding):
    """The place of an embedding, for scores that take the images themselves."""

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1)


class OwnClassifier(NoEmbedding):
    """The place of an embedding, for scores that train a small classifier on images with labels."""


class OwnModel(NoEmbedding):
    """The place of an embedding, for scores that ask the model about samples of any kind."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Accept any shape: the model says what it cannot take."""


UNEMBEDDED: dict[str, Callable[[], Embedding]] = {
    "labels": partial(OwnClassifier, "own-classifier", None, settings={"network": "SmallClassifier", "version": 1}),
    "model": partial(OwnModel, OWN_MODEL, None),
    "texts": TextBytes,
}
"""What scores need, and what stands in an embedding's place."""


def make_panels(
    embeddings: Sequence[EmbeddingLike] | None,
    scores: ScoreLike | Sequence[ScoreLike] = DEFAULT_SCORES,
    presets: Sequence[PresetLike | Panel] = (),
) -> list[Panel]:
    """The panels of an evaluation, those of presets last; presets in one embedding share it."""
    asked = choose_scores(scores)
    choices = tuple(choice for choice in asked if choice.needs not in UNEMBEDDED)
    named = [presets] if isinstance(presets, (str, Mapping)) else list(presets)
    if embeddings is None:
        if named and choices and choices != choose_scores(DEFAULT_SCORES):
            scored = ", ".join(choice.name for choice in choices)
            raise ValueError(f"presets bring their own scores; name an embedding for {scored}, or leave them out")
        embeddings = () if named else DEFAULT_EMBEDDINGS
    elif isinstance(embeddings, (str, Mapping, Embedding)):
        embeddings = [embeddings]
    panels = [Panel(load_embedding(embedding), choices) for embedding in embeddings] if choices else []
    for preset in named:
        panels = [*panels, preset] if isinstance(preset, Panel) else _with_preset(panels, preset)
    for needs, kind in UNEMBEDDED.items():
        own = tuple(choice for choice in asked if choice.needs == needs)
        panels += [Panel(kind(), own)] if own else []
    check_distinct("embedding", [panel.embedding.name for panel in panels])
    for panel in panels:
        check_distinct("score", [choice.name for choice in panel.choices])
        for choice in panel.choices:
            check_embedding(choice, panel.embedding.name, panel.embedding.kind, panel.embedding.takes_texts)
    return panels


def _with_preset(panels: Sequence[Panel], preset: PresetLike) -> list[Panel]:
    options = dict(preset) if isinstance(preset, Mapping) else {"name": preset}
    found = find_preset(options.pop("name", ""))
    embedding = found.load_embedding(**options)
    for place, panel in enumerate(panels):
        if panel.embedding.fingerprint() == embedding.fingerprint():
            return [*panels[:place], replace(panel, choices=(*panel.choices, found.choice)), *panels[place + 1 :]]
    return [*panels, Panel(embedding, (found.choice,))]


def check_embedding(choice: ScoreChoice, embedding: str, kind: str = "images", takes_texts: bool = False) -> None:
    if choice.needs == "logits" and not any(part.startswith("logits") for part in embedding.split("-")):
        raise ValueError(
            f"score {choice.name} needs logits, which embedding {embedding} does not give: use"
            " inception-v3-compat-logits_unbiased, or preset 'is' beside other embeddings"
        )
    if choice.needs == "texts" and embedding != "bytes":
        raise ValueError(f"score {choice.name} reads texts, not features of {embedding}: use embedding bytes for it")
    if choice.needs == "points" and embedding != "identity":
        raise ValueError(
            f"score {choice.name} is the log-density of points as they are, but embedding {embedding} takes {kind} and"
            " gives features; it is for clients of points, with embedding identity"
        )
    if choice.needs == "prompts" and not takes_texts:
        raise ValueError(
            f"score {choice.name} compares images with texts, which embedding {embedding} cannot embed: use"
            " a CLIP with its text encoder, transformers/openai/clip-vit-base-patch16 or a folder of save_pretrained"
        )


def require_device(name: str) -> str:
    """The name of a device that can be used here, e.g. "cpu", "cuda" or "cuda:1"."""
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # PyTorch without CUDA asserts
        here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"device {name!r} cannot be used here ({reason}); choose --device {' or '.join(here)}, or run where there"
            " is one, with a PyTorch that is built for it"
        ) from error
    return name
