"""The federated networks that come with the kit load in one line and draw what their cards show."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fedgen.evaluation import read_records
from fedgen.hub import from_pretrained
from fedgen.hub.exchange import CARD, PICTURE, draw_samples
from fedgen.hub.shipped import pretrained_card
from tests.models.stylegan2.test_shipped import contains

KIT = Path(__file__).parents[2]
PRETRAINED = KIT / "checkpoints" / "pretrained"
NETWORKS = {"flow_fashion_mnist": 1, "flow_photo_patches": 3}  # and their channels
COMPARISONS = "comparisons"  # scores of controls, and of the same recipe over other deals of the images
PAGE = KIT / "docs" / "shipped-flows.md"
SHOWN = r"\| ([\d,]+±\d+)? ?"
COMPARED = re.findall(
    rf"\| ([\d,]+) \| [\d,]+ {SHOWN}{SHOWN}\| \[\w+\]\(\.\./checkpoints/pretrained/(\S+?)\) \|", PAGE.read_text()
)
"""rounds, FID-all of 2,000 and of 10,000 images, and the records, of the rows of the page that link them"""


@cache
def loaded(name):
    return from_pretrained(PRETRAINED / name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "channels"), NETWORKS.items())
def test_a_network_loads_in_one_line_and_draws_the_picture_of_its_card(name, channels, tmp_path):
    model = loaded(name)
    assert model.image_shape == (channels, 32, 32)
    drawn, shown = (
        np.asarray(Image.open(path), dtype=np.float64)
        for path in (draw_samples(model, tmp_path / PICTURE), PRETRAINED / name / PICTURE)
    )
    assert drawn.shape == shown.shape
    assert np.abs(drawn - shown).mean() < 1  # of 255 levels: processors round otherwise


def fid_all(path, count):
    """The model's records of FID-all on training images, of so many generated ones."""
    wanted = ("fid", "all", "train", count)
    return [
        record
        for record in read_records(path)
        if (record.score, record.aggregate, record.split, record.num_generated) == wanted and record.is_model
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_card_is_made_of_the_records_beside_it_and_its_links_lead_somewhere(name):
    folder = PRETRAINED / name
    card = pretrained_card(folder)
    text = card.text()
    assert (folder / CARD).read_text() == text
    [value] = [record.value for record in fid_all(folder / "scores.jsonl", 10000)]
    assert f"| {int(value)}" in text
    weights = sum(parameter.numel() for parameter in loaded(name).network.parameters())
    assert card.facts["parameters"] == f"{weights:,}"
    links = re.findall(r"\]\(([^)]+)\)", text.split("## Recipe")[0])
    assert [link for link in links if not (folder / link).exists()] == []
    assert {"curves.png", COMPARISONS} < {*links}
    assert PAGE.resolve() in [(folder / link).resolve() for link in links]


def test_the_photographs_card_says_that_its_floors_are_of_fewer_images():
    rows = [row for row in (PRETRAINED / "flow_photo_patches" / CARD).read_text().splitlines() if "| fid |" in row]
    assert [row.rpartition(" | ")[2] for row in rows] == ["10,000; floor 672 |", "10,000; floor 2,708 |"]


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_kits_recipe_with_seed_0(name):
    run = yaml.safe_load((PRETRAINED / name / "recipe.yaml").read_text())
    kit = yaml.safe_load((KIT / "recipes" / f"{name}.yaml").read_text())
    assert run["seed_everything"] == 0
    assert run["trainer"]["max_epochs"] == kit["trainer"]["max_epochs"]
    assert contains(run["trainer"]["strategy"], kit["trainer"]["strategy"])
    assert contains(run["model"], kit["model"])
    assert contains(run["data"], kit["data"])


def test_the_page_compares_both_networks_with_their_controls_and_other_deals_by_their_records():
    found = {str(path.relative_to(PRETRAINED)) for name in NETWORKS for path in (PRETRAINED / name).rglob("*.jsonl")}
    assert found == {path for *_, path in COMPARED}
    controls = (f"{name}/{COMPARISONS}/{control}.jsonl" for name in NETWORKS for control in ("centralised", "local"))
    assert found >= {*controls}


@pytest.mark.parametrize(("rounds", "some", "many", "path"), COMPARED)
def test_a_row_of_the_page_has_the_scores_of_the_records_it_links_to(rounds, some, many, path):
    round = int(rounds.replace(",", "")) - 1
    for shown, count in ((some, 2000), (many, 10000)):
        if shown:
            values = [
                f"{record.value:,.0f}±{record.standard_error:.0f}"
                for record in fid_all(PRETRAINED / path, count)
                if record.round == round
            ]
            assert values == [shown]


def test_the_folder_holds_what_cards_speak_of_and_no_checkpoint():
    for name in NETWORKS:
        held = {path.name for path in (PRETRAINED / name).iterdir()}
        files = {"config.json", "curves.png", "model.safetensors", "recipe.yaml", "scores.jsonl"}
        assert held == {CARD, PICTURE, COMPARISONS} | files
        assert json.loads((PRETRAINED / name / "config.json").read_text())["class"] == "FlowMatching"
