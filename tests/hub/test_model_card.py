"""A card tells both aggregates with errors and floors, and shows what strangers wrote without obeying it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedgen.evaluation import read_records
from fedgen.evaluation.records import ScoreRecord
from fedgen.experiments.engine.trainings import component
from fedgen.hub.exchange import ModelCard, draw_samples, facts_of_recipe, partition_hash, plain
from fedgen.hub.shipped import STEM, shipped_card
from fedgen.models.ema import EMA

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def record(aggregate, value, round=3, generator="model", **more):
    fixed = {"split": "train", "embedding": "pixels", "embedding_fingerprint": "", "num_clients": 2, "seed": 0}
    fixed |= {"score": "fid", "standard_error": 0.5, "reference": "toy/train, 2 clients", "num_generated": 1000}
    return ScoreRecord(aggregate=aggregate, value=value, round=round, generator=generator, **(fixed | more))


def card_of(records, **more):
    return ModelCard.of(torch.nn.Linear(2, 1), records, 3, **more)


def test_both_aggregates_stand_beside_their_floors_with_errors():
    floors = [record(name, value, None, "floor") for name, value in (("avg", 2.0), ("all", 1.0))]
    text = card_of([record("avg", 9.0), record("all", 7.0), record("all", 1e4, 4), *floors]).text()
    (row,) = [line for line in text.splitlines() if line.startswith("| train")]
    assert row == "| train | pixels | fid | 9.00±0.50 | 2.00±0.50 | 7.00±0.50 | 1.00±0.50 | 1,000 |"
    assert "| parameters | 3 |" in text
    assert "| clients | 2 |" in text


def test_a_floor_of_fewer_images_says_so_and_notes_stand_below_each_once():
    few = "fid of fewer images than the 64 features (20 generated) is too large"
    records = [record(name, 9.0) for name in ("avg", "all")]
    records += [record(name, 2.0, None, "floor", num_generated=20, note=few) for name in ("avg", "all")]
    text = card_of([*records, record("worst", 9.0, note="of no column")]).text()
    (row,) = [line for line in text.splitlines() if line.startswith("| train")]
    assert row == "| train | pixels | fid | 9.00±0.50 | 2.00±0.50 | 9.00±0.50 | 2.00±0.50 | 1,000; floor 20 |"
    assert text.count(few) == 1
    assert f"\ntrain pixels fid, floor\\: {few}.\n" in text
    assert "of no column" not in text


FEDERATED = {
    "seed_everything": 0,
    "trainer": {"strategy": component("fedgen.federated.FedAvgStrategy", aggregator=None)},
    "model": component("fedgen.models.GAN"),
    "data": component(
        "fedgen.clients.FederatedDataModule",
        data=component("fedgen.data.PhotoPatches", size=32, stride=None),
        partition=component("fedgen.clients.partitions.Semantic.paper", num_clients=4),
    ),
}


def test_a_recipe_tells_data_partition_and_that_nothing_was_private():
    assert facts_of_recipe(FEDERATED) == {
        "data": "PhotoPatches(size=32)",
        "partition": "Semantic.paper(num_clients=4)",
        "privacy": "none: trained without differential privacy",
    }


NOISE = component("fedgen.federated.PrivateMean", noise_multiplier=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"model": component("somebody.PrivateGAN")},
        {"trainer": {"strategy": component("fedgen.federated.FedAvgStrategy", aggregator=NOISE)}},
    ],
)
def test_privacy_is_not_denied_where_a_recipe_cannot_tell(change):
    assert facts_of_recipe(FEDERATED | change)["privacy"] == "no epsilon was logged"
    assert facts_of_recipe({}) == {"privacy": "no epsilon was logged"}


def test_a_moving_averages_copy_of_the_weights_is_not_counted():
    pair = torch.nn.ModuleDict({"net": torch.nn.Linear(2, 1)})
    pair.net_ema = EMA(pair["net"])
    pair.net = pair["net"]
    assert ModelCard.of(pair).facts["parameters"] == "3"


def test_a_score_in_a_losss_embedding_is_marked_and_the_mark_explained():
    text = card_of([record("all", 7.0, optimised_on=["pixels"])]).text()
    assert "7.00±0.50 \\*" in text
    assert "a training loss used this embedding" in text


def test_without_records_that_is_said_and_the_license_stands_in_front():
    text = card_of([], license="apache-2.0").text()
    assert "No score of it was recorded." in text
    assert yaml.safe_load(text.split("---")[1])["license"] == "apache-2.0"


HOSTILE = "a|b](http://x.y)<script>`\n# h\x1b[31m www.evil.com @all"


def test_texts_of_records_and_recipes_are_shown_and_never_obeyed():
    card = card_of([record("all", 7.0, reference=HOSTILE, embedding=HOSTILE)])
    card.recipe = "a: 1\n```\n</pre>\x1b[0m\n# h"
    text = card.text()
    body, recipe = text.split("## Recipe")
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "\n# h" not in body
    assert not re.search(r"(?<!\\)\]\(http", body)
    assert "http://x" not in body
    assert all(line.startswith("    ") for line in recipe.splitlines() if line)
    assert plain("a|b") == "a\\|b"


def test_a_partitions_hash_follows_who_has_what_and_not_the_files_bytes(tmp_path):
    for name, indices, save in (
        ("a", [0, 1, 2], np.savez),
        ("b", [0, 1, 2], np.savez_compressed),
        ("c", [0, 2, 1], np.savez),
    ):
        save(tmp_path / f"{name}.npz", indices=np.array(indices), offsets=np.array([0, 2, 3]), settings=name)
    first, same, other = (partition_hash(tmp_path / f"{name}.npz") for name in "abc")
    assert first == same != other


@pytest.mark.parametrize(("shape", "is_drawn"), [((3, 8, 8), True), ((2,), False), ((2, 8, 8), False)])
def test_pictures_are_drawn_of_images_alone(shape, is_drawn, tmp_path):
    class Model:
        def sample(self, number, generator):
            return torch.zeros(number, *shape)

    assert (draw_samples(Model(), tmp_path / "samples.png", 4) is not None) == is_drawn
    assert draw_samples(object(), tmp_path / "none.png") is None


@pytest.mark.slow
def test_the_shipped_networks_card_is_made_of_its_records():
    card = shipped_card(CHECKPOINTS)
    assert (CHECKPOINTS / f"{STEM}.md").read_text() == card.text()
    best = next(
        r for r in read_records(CHECKPOINTS / f"{STEM}.jsonl") if (r.name, r.round, r.split) == ("fid_all", 59, "train")
    )
    assert f"| {best.value:.1f}±" in card.text()
