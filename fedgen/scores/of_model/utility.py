"""Utility: a classifier that is trained on generated images and tested on the clients' real held-out images.

The classification accuracy score of Ravuri and Vinyals (2019, arXiv 1905.10887), with a small network. It asks a
class-conditional generator for what its images are made for, and falls where it drops modes or mixes up classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs
from fedgen.embeddings import ClassifierOptions, train_classifier
from fedgen.embeddings.classifiers import BATCH, check_labelled
from fedgen.progress import track
from fedgen.scores.aggregate import FederatedScore, OfClients, Weights, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.influences import mean_score


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
