from types import SimpleNamespace

import pytest
import torch

from fedgen.data import Examples
from fedgen.models.label_frequencies import LabelFrequencies


def clients_of(labels, *parts, classes=("a", "b", "c")):
    examples = Examples(torch.zeros(len(labels), 2), torch.tensor(labels), "points/train", classes)
    clients = [SimpleNamespace(data=examples, train=torch.tensor(part)) for part in parts]
    return SimpleNamespace(clients=clients)


def test_counts_are_of_all_clients_training_examples_and_held_out_ones_do_not_count():
    frequencies = LabelFrequencies(4)
    frequencies.fit(clients_of([0, 0, 2, 2, 2, 1], [0, 2], [3, 4]))
    assert frequencies.counts.tolist() == [1, 0, 3, 0]


def test_labels_are_drawn_by_the_frequencies_and_by_the_generator():
    frequencies = LabelFrequencies(3)
    frequencies.fit(clients_of([0, 2, 2, 2], [0, 1, 2, 3]))
    labels = frequencies.draw(4000, torch.Generator().manual_seed(0))
    assert labels.dtype == torch.int64
    assert torch.equal(labels, frequencies.draw(4000, torch.Generator().manual_seed(0)))
    shares = torch.bincount(labels, minlength=3) / 4000
    assert shares[1] == 0
    assert shares.tolist() == pytest.approx([0.25, 0, 0.75], abs=0.03)


def test_before_any_data_they_are_uniform_and_data_without_clients_change_nothing():
    frequencies = LabelFrequencies(2)
    frequencies.fit(None)
    frequencies.fit(SimpleNamespace())
    assert frequencies.counts.tolist() == [1, 1]


def test_counts_survive_a_change_of_precision_and_saving():
    frequencies, again = LabelFrequencies(3), LabelFrequencies(3)
    frequencies.fit(clients_of([0, 2, 2, 2], [0, 1, 2, 3]))
    frequencies.half()
    again.load_state_dict(frequencies.state_dict())
    assert again.counts.tolist() == [1, 0, 3]
    assert again.counts.dtype == torch.int64


def test_unlabelled_data_and_too_many_classes_are_refused():
    with pytest.raises(ValueError, match="points"):
        LabelFrequencies(2).fit(clients_of([0, 0], [0, 1], classes=()))
    with pytest.raises(ValueError, match="num_classes"):
        LabelFrequencies(2).fit(clients_of([0, 0], [0, 1]))
    with pytest.raises(ValueError, match="num_classes"):
        LabelFrequencies(0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2), r"labels must be int64 \[2\], got torch.float32 \[2\]"),
        (torch.zeros(3, dtype=torch.int64), r"int64 \[2\], got torch.int64 \[3\]"),
        (torch.tensor([0, 3]), "labels must run from 0 to 2, got 0 to 3"),
        (torch.tensor([-1, 0]), "labels must run from 0 to 2, got -1 to 0"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        LabelFrequencies(3).check(labels, 2)


def test_labels_that_can_be_are_given_back():
    labels = torch.tensor([2, 0])
    assert LabelFrequencies(3).check(labels, 2) is labels
