"""What a client tells of its images in an evaluation: summaries, sketches, scores; never images or their features."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.clients.client import Client
from fedgen.deploy.messages import Item, Question
from fedgen.embeddings import FeatureCache, embed
from fedgen.evaluation.panels import Panel, make_panels
from fedgen.evaluation.score_choice import ScoreChoice, polynomial, rbf
from fedgen.evaluation.splits import REPORT
from fedgen.scores import Kernel, KernelReference
from fedgen.scores.federated_kid import kid_message
from fedgen.scores.kernels import RBFKernel
from fedgen.statistics import CubicSketch, FourierSketch, gaussian_to_message, summarize
from fedgen.statistics.messages import Message

DEPLOYED = ("fid", "kid", "kid-rbf")  # the kinds of scores that clients answer for
_OF_PANELS = ("embeddings", "scores", "presets")


def panels_of(evaluation: Mapping[str, Any]) -> list[Panel]:
    """The embeddings and scores of an evaluation's arguments.

    Raises:
        ValueError: for a score that needs more of clients than they tell.
    """
    panels = make_panels(**{"embeddings": None, **{k: v for k, v in evaluation.items() if k in _OF_PANELS}})
    for panel in panels:
        for choice in panel.choices:
            if choice.kind not in DEPLOYED:
                raise ValueError(
                    f"score {choice.name} needs images or features of the clients, who tell summaries and scores only;"
                    f" a deployment measures {', '.join(DEPLOYED)}: leave the others out of the recipe's evaluation"
                )
    return panels


def kernel_of(choice: ScoreChoice) -> Kernel:
    """The kernel of a score of kernel means."""
    return rbf(choice.options) if choice.kind == "kid-rbf" else polynomial(choice.options)


def sketch_of(choice: ScoreChoice, dim: int, centre: Tensor | None) -> CubicSketch | FourierSketch:
    """The sketch that all clients make for a score of kernel means.

    Args:
        choice: the score.
        dim: features of the embedding.
        centre: public, float64 [dim]: the pooled mean.
    """
    kernel = kernel_of(choice)
    if isinstance(kernel, RBFKernel):
        return FourierSketch(dim, sigma=kernel.sigma)
    return CubicSketch(dim, centre=centre)


def answers_to(question: Question, client: Client, evaluation: Mapping[str, Any], cache: Path) -> Iterator[Message]:
    """A client's answers, one an item.

    Args:
        question: the server's.
        client: this one.
        evaluation: arguments of the recipe's evaluation.
        cache: folder that keeps its features.

    Raises:
        ValueError: if its embedding is not the server's, or it has no such score.
    """
    panels = {panel.embedding.name: panel for panel in panels_of(evaluation)}
    for place, item in enumerate(question.items):
        yield _answer(Item(*item), question.weights.get(str(place)), client, panels, evaluation, FeatureCache(cache))  # type: ignore[arg-type]


def _answer(
    item: Item,
    tensor: Tensor | None,
    client: Client,
    panels: Mapping[str, Panel],
    evaluation: Mapping[str, Any],
    cache: FeatureCache,
) -> Message:
    panel = panels.get(item.embedding)
    if panel is None or panel.embedding.fingerprint() != item.fingerprint:
        raise ValueError(f"embedding {item.embedding} is another one here; install the same release and weights")
    examples = client.held_out_examples if item.split == REPORT else client.train_examples
    features = embed(panel.embedding, examples.inputs, int(evaluation.get("batch_size", 64)), cache=cache)
    meta = {"embedding": item.fingerprint, "split": item.split}
    if item.ask == "statistics":
        return gaussian_to_message(summarize(features), **meta)
    choice = next(one for one in panel.choices if one.name == item.score)
    if item.ask == "sketch":
        return sketch_of(choice, features.shape[1], tensor).message(features, **meta)
    if tensor is None:
        raise ValueError(f"score {item.score} needs the features of generated images")
    reference = KernelReference.from_features([features], kernel_of(choice), choice.options["estimator"])
    return kid_message(reference, tensor, **meta)
