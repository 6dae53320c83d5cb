"""Scores of generators that are asked for images of a class: CLIPScore and utility.

CLIPScore says how well the images of a class fit the text that stands for it, for each client's classes. Utility is the
classification accuracy score of Ravuri and Vinyals (2019, arXiv 1905.10887), with a small network: a classifier is
trained on generated images and tested on the clients' real held-out images. It falls where a generator drops modes or
mixes up classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.lazy_examples import LazyInputs
from fedgen.embeddings import ClassifierOptions, train_classifier
from fedgen.embeddings.classifiers import BATCH, check_labelled
from fedgen.progress import track
from fedgen.scores.aggregate import (
    FederatedScore,
    OfClients,
    Weights,
    combine,
    mean_score,
    mean_variance,
    resolve_weights,
    worst_place,
)
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition


@dataclass(frozen=True)
class ClipScore(ScoreDefinition):
    """100 max(cos, 0) of generated images and the prompts of the classes that they were asked for, in a CLIP.

    After Hessel et al. (2021, arXiv 2104.08718), with torchmetrics' factor of 100 in place of their 2.5. Client i's
    score is sum_c p_i(c) m_c, with m_c the mean over generated images of class c and p_i(c) that class's share of the
    client's images: how well the images that the client would ask for fit their texts. It is linear in the client, so
    all is avg. A class of which no image was generated is left out, and the client's other classes count for it.

    Args:
        prompts: one text a class, in the order of the data's classes.

    Raises:
        ValueError: for no prompt, or one that is no text.
    """

    name: ClassVar[str] = "clip_score"
    needs: ClassVar[Needs] = "prompts"
    higher_is_better: ClassVar[bool] = True

    prompts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str) or not self.prompts or not all(isinstance(one, str) for one in self.prompts):
            raise ValueError(f"prompts must be a list of texts, one a class, got {self.prompts!r}")
        object.__setattr__(self, "prompts", list(self.prompts))

    def check_classes(self, classes: Sequence[str]) -> None:
        if len(self.prompts) != len(classes):
            named = f"{len(classes)} classes ({', '.join(classes)})"
            raise ValueError(f"{len(self.prompts)} prompts for {named}; give one of each, in this order")

    def prepare(self, clients: ClientSide) -> tuple[Sequence[Tensor], Tensor, Tensor]:
        if clients.labels is None:
            raise ValueError("score clip_score needs the labels of every client's images; none are given")
        if clients.texts is None:
            raise ValueError("score clip_score needs features of texts, and the embedding has none; use a CLIP")
        texts = F.normalize(clients.texts(self.prompts).double(), dim=1)
        return clients.labels, texts, resolve_weights(clients.weights, clients.counts)

    def compare(
        self, prepared: tuple[Sequence[Tensor], Tensor, Tensor], generated: GeneratedSet, errors: bool
    ) -> FederatedScore:
        labels, texts, weights = prepared
        if generated.labels is None:
            raise ValueError("score clip_score needs the labels that generated images were asked for; none are given")
        asked = generated.labels.to(generated.rows.device)
        images = F.normalize(generated.rows.double(), dim=1)
        fits = 100 * (images * texts.to(images.device)[asked]).sum(1).clamp(min=0)
        of_class = [fits[asked == c].cpu() for c in range(len(texts))]
        means = torch.stack([part.mean() for part in of_class])  # nan of a class that no image was asked for
        own_classes = [own[~means[own].isnan()] for own in (part.cpu() for part in labels)]
        for client, own in enumerate(own_classes):
            if not len(own):
                raise ValueError(f"no image was generated of any class of client {client}; generate more of them")
        values = [means[own] for own in own_classes]
        found = mean_score(self.name, values, weights, errors, higher_is_better=True)
        return _with_generated(found, own_classes, of_class, weights) if errors else found


def _with_generated(
    found: FederatedScore, own_classes: Sequence[Tensor], parts: Sequence[Tensor], weights: Tensor
) -> FederatedScore:
    """A score whose errors are over the real images with those over the generated ones beside them."""
    counts = [torch.bincount(own, minlength=len(parts)).double() / len(own) for own in own_classes]
    shares = torch.stack(counts)  # [K, C]
    variances = torch.stack([mean_variance(part) if len(part) else part.new_zeros(()) for part in parts])
    of_client = (shares.square() @ variances).sqrt()
    of_pool = float(((weights @ shares).square() @ variances).sqrt())
    worst = worst_place(found.per_client, weights, higher_is_better=True)
    generated = {"avg": of_pool, "all": of_pool, "worst": float(of_client[worst])}
    assert found.client_errors is not None  # which were asked for
    sides = {"generated": generated, "real": found.errors}
    of_clients = {"generated": of_client, "real": found.client_errors}
    values = found.per_client, found.values["all"], weights
    return combine("clip_score", *values, None, sides, of_clients, True, found.over_clients)


class UtilityReference(OfClients):
    """The clients' real images and labels, on which classifiers are tested.

    Args:
        images: uint8 [n_i, C, H, W], one tensor a client, or `LazyInputs`, read in chunks at every score.
        labels: int64 [n_i] of each.
        num_classes: of the data.
        weights: "examples" (n_i / n), "uniform" or K numbers; every image of client i counts w_i / n_i in `all`.
        options: of the classifier's training.

    Raises:
        ValueError: for images or labels that do not fit each other, naming the client, or unusable weights.

    Examples:
        >>> import torch
        >>> from fedgen.scores import UtilityReference
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).repeat(20, 1, 8, 8)
        >>> labels = torch.tensor([0, 1]).repeat(20)
        >>> reference = UtilityReference([images], [labels], num_classes=2)
        >>> reference.score(images, labels, errors=False).values["all"]
        1.0
    """

    def __init__(
        self,
        images: Sequence[Tensor | LazyInputs],
        labels: Sequence[Tensor],
        num_classes: int,
        weights: Weights = "examples",
        options: ClassifierOptions | None = None,
    ) -> None:
        if not images or len(images) != len(labels):
            raise ValueError(f"{len(images)} clients' images and {len(labels)} clients' labels; give both of each")
        for client, (own, theirs) in enumerate(zip(images, labels)):
            try:
                check_labelled(own, theirs, num_classes)
            except ValueError as error:
                raise ValueError(f"client {client}: {error}") from error
        self._images, self._labels = list(images), list(labels)
        self.num_classes, self.options = num_classes, options or ClassifierOptions()
        self.counts = [len(part) for part in images]
        self.weights = resolve_weights(weights, self.counts)

    def score(self, images: Tensor, labels: Tensor, errors: bool = True) -> FederatedScore:
        """Accuracy in [0, 1] of a classifier of these images, "utility": per client, avg, all and worst (the smallest).

        One classifier is trained and tested on every client, so all, the accuracy on the pooled images, is avg whenever
        both use the same weights. Standard errors are binomial, over the real images: the classifier is taken as given,
        and another one, of other generated images or another seed, varies besides.

        Args:
            images: generated, uint8 [m, C, H, W], on the device to train on.
            labels: int64 [m], the classes that they were asked for.
            errors: whether to add standard errors.

        Raises:
            ValueError: for images or labels that do not fit each other.
        """
        title = "training the utility score's classifier"
        classifier = train_classifier(images, labels, self.num_classes, self.options, description=title)
        sizes = [len(own) for own in self._images]
        chunks = (chunk for own in self._images for chunk in own.split(BATCH))
        tested = track(chunks, "testing the utility score's classifier", sum(sizes), "images", len)
        guesses = torch.cat([classifier.classify(chunk) for chunk in tested]).split(sizes)
        hits = [(own == real).double() for own, real in zip(guesses, self._labels)]
        return mean_score("utility", hits, self.weights, errors, higher_is_better=True)


@dataclass(frozen=True)
class UtilityScore(ClassifierOptions, ScoreDefinition):
    """Accuracy on the clients' held-out images; options are the classifier's, and parts are images, not features.

    Of class-conditional models, whose generated images train the classifier; it has no embedding.
    """

    name: ClassVar[str] = "utility"
    needs: ClassVar[Needs] = "labels"
    higher_is_better: ClassVar[bool] = True

    def prepare(self, clients: ClientSide) -> UtilityReference:
        if clients.labels is None:
            raise ValueError("score utility needs the labels of every client's images; none are given")
        return UtilityReference(clients.parts, clients.labels, clients.num_classes, clients.weights, self)

    def compare(self, prepared: UtilityReference, generated: GeneratedSet, errors: bool) -> FederatedScore:
        if generated.labels is None:
            raise ValueError("score utility needs the labels that generated images were asked for; none are given")
        return prepared.score(generated.rows, generated.labels, errors)
