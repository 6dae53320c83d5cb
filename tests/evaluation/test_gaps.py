"""Labels with gaps, {3, 7} of a model's ten, through everything that counts classes."""

import pytest
import torch

from fedgen.benchmark.own import _images_of
from fedgen.clients import FederatedDataModule
from fedgen.clients.heterogeneity.client_entropy import with_entropy
from fedgen.clients.heterogeneity.entropy_options import EntropyOptions
from fedgen.clients.heterogeneity.heterogeneity import measure_clients
from fedgen.clients.partitions import IID, ByClass, Dirichlet
from fedgen.data import Digits
from fedgen.embeddings import load_embedding
from fedgen.evaluation import Evaluator, sampler_of
from fedgen.evaluation.tables.partition_table import PartitionSummary, client_table
from fedgen.models.label_frequencies import LabelFrequencies


class Asked(torch.nn.Module):
    """A model of ten digits that keeps what it is asked for."""

    num_classes = 10

    def __init__(self):
        super().__init__()
        self.asked = []

    def sample(self, num_images, generator, labels):
        self.asked += labels.tolist()
        return torch.rand(num_images, 1, 8, 8, generator=generator) * 2 - 1


def arrays(*labels):
    digits = Digits().load()
    chosen = torch.isin(digits.labels, torch.tensor(labels)).nonzero().flatten()
    return digits.inputs[chosen], digits.labels[chosen]


def make(partition, *labels):
    return FederatedDataModule(arrays(*labels), partition, seed=0)


def test_generated_images_and_scores_by_class_are_of_the_classes_that_occur():
    model = Asked()
    judge = Evaluator(make(Dirichlet(3, 5.0), 3, 7), ["pixels"], scores=["utility"], num_images=100)
    judge.evaluate(sampler_of(model))
    assert set(model.asked) == {3, 7}


def test_scores_by_class_need_two_classes_that_occur():
    with pytest.raises(ValueError, match="utility"):
        Evaluator(make(IID(3), 7), ["pixels"], scores=["utility"], num_images=100)


def test_a_conditional_model_draws_the_labels_that_occur():
    frequencies = LabelFrequencies(10)
    frequencies.fit(make(IID(3), 3, 7))
    assert set(frequencies.draw(100).tolist()) == {3, 7}
    with pytest.raises(ValueError, match="num_classes"):
        LabelFrequencies(4).fit(make(IID(3), 3, 7))


def test_tables_list_the_classes_that_occur():
    data = make(ByClass(), 3, 7)
    summary = PartitionSummary(data)
    assert summary.classes == ("3", "7")
    assert summary.labels.tolist() == [[183, 0], [0, 179]]
    assert client_table(summary).caption == "labels: one bar each, scaled to the client's most: 3 7"
    assert summary.to_json()["clients"][1]["labels"] == [0, 179]


def test_heterogeneity_asks_for_labels_that_occur():
    clients = make(IID(3), 3, 7).clients
    found = measure_clients(clients, load_embedding("pixels"), controls=1)
    assert max(found.measures["labels"].per_client) < 0.2
    options = EntropyOptions(steps=1)
    assert with_entropy(found, clients, options).measures["entropy"].details["label"] == ["3", "7", "3"]


def test_the_benchmark_makes_clients_of_the_classes_that_occur():
    class Own(torch.utils.data.Dataset):
        def __init__(self):
            self.images, self.targets = arrays(3, 7)
            self.targets = self.targets + 40  # more numbers than a suite has clients

        def __len__(self):
            return len(self.targets)

        def __getitem__(self, position):
            return self.images[position] / 127.5 - 1, self.targets[position]

    assert _images_of("Own", Own()).partition == "by-class"
