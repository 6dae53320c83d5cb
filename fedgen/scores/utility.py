"""How much a classifier learns from generated images: trained on them, tested on the clients' real held-out images.

The classification accuracy score of Ravuri and Vinyals (2019, arXiv 1905.10887), with a small network. It asks a
class-conditional generator for what its images are made for, and falls where it drops modes or mixes up classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgen.embeddings import ClassifierOptions, train_classifier
from fedgen.embeddings.small_classifier import check_labelled
from fedgen.scores.aggregate import FederatedScore, Weights, aggregate, combine, resolve_weights
from fedgen.scores.over_clients import OverClients
from fedgen.scores.uncertainty import mean_variance


class UtilityReference:
    """The clients' real images and labels, on which classifiers are tested.

    Args:
        images: uint8 [n_i, C, H, W], one tensor a client.
        labels: int64 [n_i] of each.
        num_classes: of the data.
        weights: "examples" (n_i / n), "uniform" or K numbers; every image of client i counts w_i / n_i in `all`.
        options: of the classifier's training.

    Raises:
        ValueError: for images or labels that do not fit each other, naming the client, or unusable weights.
    """

    def __init__(
        self,
        images: Sequence[Tensor],
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
        self.weights = resolve_weights(weights, [len(part) for part in images])

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
        hits = [(classifier.classify(own) == real).double() for own, real in zip(self._images, self._labels)]
        return of_hits(hits, self.weights, errors)


def of_hits(hits: Sequence[Tensor], weights: Tensor, errors: bool = True) -> FederatedScore:
    """The score of right (1) and wrong (0) answers, float64 [n_i] of each client.

    Args:
        hits: one tensor a client.
        weights: of the clients, float64 [K], summing to 1.
        errors: whether to add standard errors.
    """
    per_client = torch.stack([part.mean() for part in hits])
    pooled = aggregate(per_client, weights)  # the same to the last digit, so that no rounding ranks in two ways
    if not errors:
        return combine("utility", per_client, pooled, weights, higher_is_better=True)
    spread = torch.stack([mean_variance(part) for part in hits])
    worst = int(per_client.masked_fill(weights == 0, torch.inf).argmin())
    average = float((weights.square() @ spread).sqrt())
    over_clients = OverClients(per_client, per_client, weights)
    score = combine("utility", per_client, pooled, weights, None, None, None, True, over_clients)
    # no parts: whatever varies with the generated images is not known, so these stand for both sides
    found = {"avg": average, "all": average, "worst": float(spread[worst].sqrt())}
    return replace(score, errors=found, client_errors=spread.sqrt())
