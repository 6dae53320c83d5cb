"""Splits: whose real images, and how many."""

import io

import pytest
import torch
from rich.console import Console

from fedgen.evaluation import Evaluator, Split, score_tables, splits_of
from fedgen.evaluation.federation_splits import as_splits
from fedgen.evaluation.splits import large_enough
from fedgen.reports.charts import panels
from tests.evaluation.samples import CLIENTS, pictures
from tests.federated.modules import make_data


def test_a_split_names_its_reference():
    split = Split.of_clients("train", CLIENTS)
    assert split.reference == "noise/train, 3 clients, 100 images"
    assert split.counts == (30, 50, 20)
    assert split.shape == (1, 4, 4)
    assert split.client_names == ("client 0", "client 1", "client 2")


def test_a_client_with_one_image_is_an_error_with_the_remedy():
    with pytest.raises(ValueError, match="min_examples"):
        Split.of_clients("train", [pictures(5, 0), pictures(1, 1)])


def test_parts_must_fit_each_other():
    with pytest.raises(ValueError, match="do not fit"):
        Split("train", torch.zeros(5, 1, 2, 2, dtype=torch.uint8), (2, 2), "x")
    with pytest.raises(ValueError, match="no client"):
        Split.of_clients("train", [])


def test_a_federation_has_a_split_to_select_by_and_one_to_report():
    data = make_data((12, 20, 8), held_out=0.25)
    train, report = splits_of(data)
    assert (train.name, train.counts) == ("train", (9, 15, 6))
    assert (report.name, report.counts) == ("report", (3, 5, 2))
    assert torch.equal(train.images, torch.cat([c.train_examples.inputs for c in data.clients]))
    assert torch.equal(report.images, torch.cat([c.held_out_examples.inputs for c in data.clients]))
    assert torch.equal(train.stand_ins["floor"].images, report.images)
    assert torch.equal(report.stand_ins["floor"].images, train.images)
    assert report.reference == "points/train held out, 3 clients, 10 points"


def test_a_small_client_costs_only_its_own_held_out_scores():
    data = make_data((12, 4, 20), held_out=0.25)
    with pytest.warns(UserWarning, match="fewer") as said:
        train, report = splits_of(data)
    assert said[0].filename == __file__
    assert (train.counts, report.counts, report.client_names) == ((9, 3, 15), (3, 5), ("client 0", "client 2"))
    assert torch.equal(report.images, torch.cat([data.clients[k].held_out_examples.inputs for k in (0, 2)]))
    assert len(train.stand_ins["floor"].images) == 9
    assert (train.note, report.note) == ("", str(said[0].message))


def test_many_left_out_are_counted():
    found, line = large_enough("abcdefgh", [9, 1, 1, 1, 1, 1, 1, 1], "held-out")
    assert found == [0]
    assert line.endswith("7 of 8 clients have fewer than 2 held-out images and are left out of scores against these: "
                         "b, c, d, e, f and 2 more")  # fmt: skip


def test_without_held_out_images_there_is_no_report():
    with pytest.warns(UserWarning, match="fewer"):
        (train,) = splits_of(make_data((4, 4), held_out=0.25))
    assert len(train.stand_ins["floor"].images) == 2
    (alone,) = splits_of(make_data((12, 20, 4), held_out=0.0))
    assert alone.stand_ins == {}


def test_splits_come_from_examples_too():
    (split,) = as_splits({"train": CLIENTS})
    assert split.counts == (30, 50, 20)


def test_records_table_and_charts_say_who_is_left_out_and_every_checkpoint_has_the_same_clients():
    with pytest.warns(UserWarning, match="left"):
        judge = Evaluator(make_data((30, 4, 40), held_out=0.25), ["identity"], 20, ["fid"], seed=0)
    made = [judge.evaluate(lambda count, generator, labels=None: torch.rand(count, 3), round=round) for round in (0, 1)]
    records = [record for one in made for record in one.records]
    held = [record for record in records if record.split == "report"]
    assert {tuple(record.client_names) for record in held if record.aggregate == "avg"} == {("client 0", "client 2")}
    assert {record.num_clients for record in held} == {2}
    said = "1 of 3 clients have fewer than 2 held-out images and are left out of scores against these: client 1"
    assert all(said in record.note.split("; ") for record in held)
    assert not any(said in record.note for record in records if record.split == "train")
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(*score_tables(records, "report"))
    assert said in " ".join(console.export_text().split())
    assert [said in panel["about"] for panel in panels(records)] == [False, True]
