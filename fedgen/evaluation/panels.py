"""Panels of an evaluation: every score on every embedding, and each preset on its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation.presets import find_preset
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, check_distinct, choose_scores

DEFAULT_EMBEDDINGS = ("efficientnet-lite0",)
DEFAULT_SCORES = ("fid", "kid")
OWN_MODEL = "own-model"  # stands in an embedding's place where a model is asked for its own losses

PresetLike = str | Mapping[str, Any]
EmbeddingLike = str | Mapping[str, Any] | Embedding


@dataclass(frozen=True, eq=False)
class Panel:
    """The scores on one embedding.

    Args:
        embedding: maps images to features.
        choices: the scores.
    """

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
    """The embedding of records whose scores take the images themselves."""

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1)


class OwnClassifier(NoEmbedding):
    """The embedding of scores that train a small classifier on images with labels."""

    def __init__(self) -> None:
        super().__init__("own-classifier", dim=None, settings={"network": "SmallClassifier", "version": 1})


class OwnModel(NoEmbedding):
    """The embedding of scores that ask the model about images, or points."""

    def __init__(self) -> None:
        super().__init__(OWN_MODEL, dim=None)

    def check(self, shape: tuple[int, ...]) -> None:
        """Accept any shape: the model says what it cannot take."""


UNEMBEDDED: dict[str, Callable[[], NoEmbedding]] = {"labels": OwnClassifier, "model": OwnModel}
"""What scores need -> what stands in an embedding's place."""


def make_panels(
    embeddings: Sequence[EmbeddingLike] | None,
    scores: ScoreLike | Sequence[ScoreLike] = DEFAULT_SCORES,
    presets: Sequence[PresetLike | Panel] = (),
) -> list[Panel]:
    """The panels of an evaluation, those of presets last; presets in one embedding share it.

    Scores of images themselves have no embedding and panels of their own.

    Args:
        embeddings: on which all scores are measured; None for efficientnet-lite0, or for none where presets are given.
        scores: names, or {"name": ..., options}.
        presets: names, or {"name": ..., "weights": a local file, ...}; a panel stays as it is.

    Raises:
        ValueError: for unknown or repeated names and options, a score that an embedding cannot give, or other scores
            than fid and kid with presets alone.
    """
    asked = choose_scores(scores)
    choices = tuple(choice for choice in asked if choice.needs not in UNEMBEDDED)
    named = [presets] if isinstance(presets, (str, Mapping)) else list(presets)
    if embeddings is None and named and choices and choices != choose_scores(DEFAULT_SCORES):
        scored = ", ".join(choice.name for choice in choices)
        raise ValueError(f"presets bring their own scores; name an embedding for {scored}, or leave them out")
    if embeddings is None:
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
            check_embedding(choice, panel.embedding.name, panel.embedding.takes_points, panel.embedding.takes_texts)
    return panels


def _with_preset(panels: Sequence[Panel], preset: PresetLike) -> list[Panel]:
    options = dict(preset) if isinstance(preset, Mapping) else {"name": preset}
    found = find_preset(options.pop("name", ""))
    embedding = found.load_embedding(**options)
    for place, panel in enumerate(panels):
        if panel.embedding.fingerprint() == embedding.fingerprint():
            return [*panels[:place], replace(panel, choices=(*panel.choices, found.choice)), *panels[place + 1 :]]
    return [*panels, Panel(embedding, (found.choice,))]


def check_embedding(choice: ScoreChoice, embedding: str, takes_points: bool = False, takes_texts: bool = False) -> None:
    """Raise ValueError for a score that an embedding cannot give.

    Args:
        choice: the score.
        embedding: the embedding's name; one whose features are logits says so.
        takes_points: whether it takes points instead of images.
        takes_texts: whether it has features of texts beside those of images.
    """
    if choice.needs == "logits" and not any(part.startswith("logits") for part in embedding.split("-")):
        raise ValueError(
            f"score {choice.name} needs logits, which embedding {embedding} does not give: use"
            " inception-v3-compat-logits_unbiased, or preset 'is' beside other embeddings"
        )
    if choice.needs == "points" and not takes_points:
        raise ValueError(
            f"score {choice.name} is the log-density of points, but embedding {embedding} takes images; it is for"
            " clients of points, with embedding identity"
        )
    if choice.needs == "prompts" and not takes_texts:
        raise ValueError(
            f"score {choice.name} compares images with texts, of which embedding {embedding} has no features: use"
            " a CLIP with its text encoder, transformers/openai/clip-vit-base-patch16 or a folder of save_pretrained"
        )
