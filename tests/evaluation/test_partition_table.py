"""Sizes and labels of clients, and the tables that show them."""

import json

import pytest
import torch
from rich.console import Console

from fedgen.clients import FederatedDataModule, ThreeWaySplit
from fedgen.clients.heterogeneity.heterogeneity import measure_clients
from fedgen.clients.partitions import IID, BySize, Partition, SavedPartition, save_partition
from fedgen.data import Examples
from fedgen.embeddings import load_embedding
from fedgen.evaluation.tables.partition_table import PartitionSummary, bars, listed, partition_tables, remarks_on


class Given(Partition):
    """Client 0 has the first six examples, client 1 the next four, nobody the rest."""

    def __init__(self):
        self.num_clients = 2

    def assign(self, examples, seed):
        return [range(6), range(6, 10)]


def toy(count=12, classes=("cat", "dog [red]", "ox")):
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=draws)
    labels = torch.arange(count) // 4 % 3 if classes else torch.zeros(count).long()
    return Examples(images, labels, "toy/train", classes)


def dealt(partition, examples=None, **options):
    return FederatedDataModule(examples or toy(), partition, seed=0, **options)


def shown(tables):
    console = Console(width=160)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return capture.get()


def test_the_summary_counts_by_hand():
    summary = PartitionSummary(dealt(Given(), held_out=0.34))
    assert (summary.source, summary.kind, summary.undealt, summary.capped) == ("toy/train", "images", 2, 0)
    assert (summary.train, summary.held_out, summary.sizes) == ([4, 3], [2, 1], [6, 4])
    assert summary.labels.tolist() == [[4, 2, 0], [0, 2, 2]]
    assert summary.labels_held == [2, 2]
    assert summary.spans["training images"] == (3, 3.5, 4)
    stored = json.loads(json.dumps(summary.to_json()))
    assert stored["clients"][0] == {
        "name": "client 0",
        "role": "trains",
        "train": 4,
        "held_out": 2,
        "labels": [4, 2, 0],
    }
    assert stored["partition"] == {"class": "Given"}
    assert stored["summary"]["held-out images"] == {"min": 1, "median": 1.5, "max": 2}


def test_a_saved_partition_is_the_rule_that_made_it(tmp_path):
    path = save_partition(tmp_path / "clients.npz", IID(3), toy(), seed=1)
    summary = PartitionSummary(dealt(SavedPartition(path)))
    assert summary.partition == {"class": "IID", "num_clients": 3, "saved": str(path)}


def test_tables_say_who_has_what():
    summary = PartitionSummary(dealt(Given(), held_out=0.34))
    text = shown(partition_tables(summary))
    assert "toy/train: 10 images, 2 clients (2 images of no client), seed 0" in " ".join(text.split())
    assert "cat 67%" in text
    assert "dog [red] 50%" in text
    assert "█▄" in text
    assert "labels: one bar each, scaled to the client's most: cat dog [red] ox" in " ".join(text.split())


def test_clients_that_never_train_are_shown_as_well():
    split = ThreeWaySplit(unparticipating=0.4, participating=0.67, max_examples=3)
    data = dealt(IID(5), toy(40), split=split)
    summary = PartitionSummary(data)
    assert sorted(summary.roles) == ["kept", "kept", "left out", "trains", "trains"]
    assert [place for place, role in enumerate(summary.roles) if role == "kept"] == list(data.roles.unparticipating)
    assert (summary.train, summary.held_out, summary.capped) == ([3] * 5, [1] * 5, 20)
    text = shown(partition_tables(summary))
    assert "5 clients (2 train; 20 of theirs in no part), seed 0" in " ".join(text.split())
    assert "left out" in text


def test_measures_stand_beside_clients_and_their_means_beside_random_deals():
    data = dealt(Given())
    found = measure_clients(data.clients, load_embedding("pixels"), controls=2)
    summary = PartitionSummary(data)
    text = shown(partition_tables(summary, found))
    assert "means over clients, in pixels" in text
    for words in ("KID to the pool", "Vendi score", "IID, same sizes", "same sizes and labels", "±"):
        assert words in text
    assert f"{found.measures['vendi'].per_client[0]:.3g}" in text
    (remark,) = remarks_on(summary, found)
    assert remark.startswith("2 of 2 clients have fewer images than the 16 features")
    part = measure_clients(data.clients, load_embedding("pixels"), num_images=5, max_clients=1)
    assert remarks_on(summary, part)[0] == f"measured on {part.counts[0]} of 10 images, of 1 of 2 clients"
    assert part.clients in ([0], [1])
    assert shown(partition_tables(summary, part)).count("client ") == 3  # both have their line


def test_data_without_labels_has_no_columns_of_them():
    data = dealt(IID(3), toy(classes=()))
    found = measure_clients(data.clients, load_embedding("pixels"), controls=1)
    summary = PartitionSummary(data)
    assert (summary.labels_held, list(summary.spans)) == ([], ["training images", "held-out images"])
    text = shown(partition_tables(summary, found))
    assert "label" not in text
    assert "labels" not in summary.to_json()["clients"][0]


def test_of_many_clients_the_extreme_ones_are_listed():
    summary = PartitionSummary(dealt(BySize(50), toy(1000)))
    places, which = listed(summary, None)
    assert which == ": the 5 smallest, the 5 largest"
    sizes = [summary.sizes[place] for place in places]
    assert sizes == sorted(summary.sizes)[:5] + sorted(summary.sizes)[-5:]
    text = shown(partition_tables(summary))
    assert text.count("client ") == 1 + 10  # the heading, and ten lines
    assert "over 50 clients" in text
    data = dealt(BySize(50), toy(1000))
    found = measure_clients(data.clients, load_embedding("pixels"), controls=0)
    places, which = listed(summary, found)
    assert which.endswith("the 5 largest, the 5 least like the pool by KID")
    assert all(summary.sizes[place] >= 10 for place in places[10:])


def test_of_many_alike_in_size_the_first_are_listed():
    places, which = listed(PartitionSummary(dealt(IID(50), toy(100))), None)
    assert (places, which) == ([0, 1, 2, 3, 4], ": the first 5")


def test_many_labels_are_counted_and_not_drawn():
    classes = tuple(map(str, range(60)))
    examples = Examples(torch.zeros(120, 2), torch.arange(120) % 60, "toy/train", classes)
    text = shown(partition_tables(PartitionSummary(dealt(IID(2), examples))))
    assert " of 60" in text
    assert "one bar each" not in text


@pytest.mark.parametrize(("counts", "expected"), [([0, 8, 4], " █▄"), ([0, 0], "  "), ([1, 1000], "▁█"), ([5], "█")])
def test_bars_by_hand(counts, expected):
    assert bars(counts) == expected
