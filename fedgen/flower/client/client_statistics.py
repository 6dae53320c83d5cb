"""A client's answers about its images in an evaluation: summaries, sketches, scores; never images or features."""

import json
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.clients.client import Client
from fedgen.embeddings import FeatureCache, embed
from fedgen.evaluation.names import REPORT, SELECT
from fedgen.evaluation.panels import Panel, make_panels
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.federated.left_out import shorten
from fedgen.flower.app.run_config import DELTA, LEDGER
from fedgen.flower.client.pins import (
    RELEASED,
    count_question,
    hold_to_embeddings,
    note_exact,
    once_path,
    refuse_after_exact,
    refuse_after_noise,
    release_once,
    release_path,
)
from fedgen.flower.client.policy import Policy, RefusedError
from fedgen.flower.wire.messages import Item, Question
from fedgen.io.files import write_once
from fedgen.io.tensor_files import hash_tensors
from fedgen.scores import KernelReference
from fedgen.scores.frechet.corrected import Bias
from fedgen.scores.frechet.frechet import FrechetScore, fid_message
from fedgen.scores.kernel.federated_kid import kid_message
from fedgen.scores.kernel.kernels import RBFKernel
from fedgen.statistics import (
    CubicSketch,
    FourierSketch,
    Gaussian,
    Privacy,
    gaussian_to_message,
    gaussian_to_sums,
    private_sums,
    summarize,
)
from fedgen.statistics.private import promise_of
from fedgen.statistics.statistic_messages import Message

FEATURES = "features"
NUM_IMAGES = 10_000  # of an evaluation that does not say
LEAST_IMAGES = 100  # that delta is small for, however few a client has
_OF_PANELS = ("embeddings", "scores", "presets")


def panels_of(evaluation: Mapping[str, Any]) -> list[Panel]:
    """The embeddings and scores of an evaluation's arguments."""
    panels = make_panels(**{"embeddings": None, **{k: v for k, v in evaluation.items() if k in _OF_PANELS}})
    for panel in panels:
        for choice in panel.choices:
            if not choice.definition.is_deployed:
                raise ValueError(
                    f"score {choice.name} needs images or features of the clients, who tell summaries and scores only;"
                    f" a deployment measures fid, kid and their like: leave the others out of the recipe's evaluation"
                )
    return panels


def sketch_of(choice: ScoreChoice, dim: int, centre: Tensor | None) -> CubicSketch | FourierSketch:
    """The sketch that all clients make for a score of kernel means."""
    kernel = choice.kernel
    if isinstance(kernel, RBFKernel):
        return FourierSketch(dim, sigma=kernel.sigma)
    return CubicSketch(dim, centre=centre)


def answers_to(
    question: Question,
    client: Client,
    evaluation: Mapping[str, Any],
    state: Path,
    privacy: Privacy | None = None,
    policy: Policy | None = None,
    declared: float = math.inf,
) -> Iterator[Message]:
    """A client's answers, one an item; what a run needs once is told once, and who asks again is told the same."""
    # `evaluation` has the recipe's arguments, `state` is the folder of features and releases, `privacy` of sums with
    # noise in one embedding, `declared` the sets of generated images that the recipe scores at most; RefusedError for
    # what policy or earlier answers forbid, ValueError for another embedding, an unknown score, or a release before
    policy = policy or Policy()
    panels = {panel.embedding.name: panel for panel in panels_of(evaluation)}
    if len(set(map(tuple, question.items))) != len(question.items):
        raise RefusedError("one thing is asked twice in a question")
    _check_generated(question.weights, int(evaluation.get("num_images", NUM_IMAGES)))
    for place, asked in enumerate(question.items):
        item = Item(*asked)
        policy.check_asked(item.ask, item.embedding)
        if item.split not in (SELECT, REPORT):  # under another name the same images would be released again
            said = shorten(repr(item.split), 80)
            raise RefusedError(f"a client's images are split into {SELECT} and {REPORT}, and {said} is neither")
        if item.ask == "private-sums":
            _check_promise(item, privacy, len(panels))
            refuse_after_exact(state)
        else:
            refuse_after_noise(state)
        panel = panels.get(item.embedding)
        if panel is None or panel.embedding.fingerprint() != item.fingerprint:
            raise ValueError(f"embedding {item.embedding} is another one here; install the same release and weights")
        examples = client.held_out_examples if item.split == REPORT else client.train_examples
        hold_to_embeddings(state, panels)
        if item.ask == "private-sums":
            _count_release(state, privacy, len(examples), policy)
        else:
            note_exact(state)
        if item.ask in ("kid", "fid"):
            told = _about(item, question.weights, place)
            about = "/".join((item.ask, item.split, item.embedding, item.score))
            check = partial(policy.check_questions, what=about, declared=declared)
            count_question(state, about, hash_tensors(sorted(told.items())), check)
        cache = FeatureCache(state / FEATURES)
        features = embed(panel.embedding, examples.inputs, int(evaluation.get("batch_size", 64)), cache=cache)
        yield _answer(item, panel, features, question.weights, place, state)


def _answer(
    item: Item, panel: Panel, features: Tensor, tensors: Mapping[str, Tensor], place: int, state: Path
) -> Message:
    """The answer to one item; what a run needs once is that of before, where there is one."""
    meta = meta_of(item)
    if item.ask == "private-sums":
        privacy = Privacy(**json.loads(item.promise))
        tell = partial(private_sums, features, privacy, split=item.split, embedding=item.fingerprint)
        path = release_path(state, item.split, item.embedding)
        return release_once(path, {**meta, "privacy": promise_of(privacy)}, tell)
    if item.ask in ("statistics", "sums"):
        make = gaussian_to_message if item.ask == "statistics" else gaussian_to_sums
        return release_once(once_path(state, item), meta, lambda: make(summarize(features), **meta), None)
    choice = next((one for one in panel.choices if one.name == item.score), None)
    if choice is None:
        raise ValueError(f"there is no score {shorten(repr(item.score), 80)} of {item.embedding} in the recipe here")
    if item.ask == "sketch":
        sketch = sketch_of(choice, features.shape[1], tensors.get(str(place)))
        return release_once(
            once_path(state, item), {**meta, **sketch.meta()}, lambda: sketch.message(features, **meta), None
        )
    return _score(item, choice, features, tensors, place)


def conventions_of(choice: ScoreChoice) -> tuple[float, Bias]:
    """The divisor and the bias of a Fréchet distance."""
    definition = choice.definition
    if not isinstance(definition, FrechetScore):
        raise ValueError(f"score {choice.name} is no Fréchet distance, and has no message of one")
    return definition.ddof, definition.bias


def _score(item: Item, choice: ScoreChoice, features: Tensor, tensors: Mapping[str, Tensor], place: int) -> Message:
    """The client's own score of the present generated images."""
    meta, made = meta_of(item), shared_key(item)
    if item.ask == "fid" and f"{made}/mean" in tensors:
        count, mean, scatter = (tensors[f"{made}/{name}"] for name in ("count", "mean", "scatter"))
        ddof, bias = conventions_of(choice)
        return fid_message(features, Gaussian(float(count), mean, scatter=scatter), ddof, bias, **meta)
    generated = tensors.get(str(place), tensors.get(made))
    if generated is None:
        raise ValueError(f"score {item.score} needs the features of generated images")
    if item.ask == "fid":
        ddof, bias = conventions_of(choice)
        return fid_message(features, summarize(generated), ddof, bias, **meta)
    reference = KernelReference.from_features([features], choice.kernel, choice.definition.options["estimator"])
    return kid_message(reference, generated, **meta)


def _about(item: Item, tensors: Mapping[str, Tensor], place: int) -> dict[str, Tensor]:
    """Return what a question says of generated images."""
    made = shared_key(item)
    return {
        name: tensor for name, tensor in tensors.items() if name in (made, str(place)) or name.startswith(f"{made}/")
    }


def _check_generated(tensors: Mapping[str, Tensor], most: int) -> None:
    """Refuses more generated images than the recipe's evaluation makes: scores take the square of their number."""
    for name, tensor in tensors.items():
        if not name.endswith("/scatter") and tensor.ndim == 2 and len(tensor) > most:
            raise RefusedError(
                f"{len(tensor)} generated images are to be scored, and the recipe's evaluation has {most} (num_images)"
            )


def _count_release(state: Path, privacy: Privacy | None, images: int, policy: Policy) -> None:
    """Counts a run's release among all of the node, once; refuses a delta that could tell of every single image."""
    assert privacy is not None
    if privacy.delta >= 1 / max(images, LEAST_IMAGES):
        raise RefusedError(
            f"{DELTA}={privacy.delta:g} in the run's config promises nothing of {images} images: give less than"
            f" {1 / max(images, LEAST_IMAGES):.2g}"
        )
    release = write_once(state / RELEASED / "name", f"{state.name}-{secrets.token_hex(8)}".encode()).decode()
    policy.spend(privacy.epsilon, release, state.parent / LEDGER)


def meta_of(item: Item) -> dict[str, str]:
    """The remarks of every answer."""
    return {"embedding": item.fingerprint, "split": item.split}


def _check_promise(item: Item, privacy: Privacy | None, embeddings: int) -> None:
    if privacy is None:
        raise RefusedError("sums with noise are asked for, of which the run's config says nothing")
    told, expected = json.loads(item.promise), json.loads(promise_of(replace(privacy, releases=embeddings)))
    for name in sorted({*told, *expected}):
        if told.get(name) != expected.get(name):
            raise RefusedError(
                f"sums with noise are asked for with {name}={told.get(name)!r}, and by this run's config and recipe it"
                f" is {expected.get(name)!r}"
            )


def shared_key(item: Item) -> str:
    """Return the key of generated images that several items of a question need."""
    return f"{item.split}/{item.embedding}"
