"""The federated language model of molecules that comes with the kit: texts, card, recipe and the page's numbers."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.evaluation import read_records
from fedgen.evaluation.records import say_number
from fedgen.hub import from_pretrained
from fedgen.hub.exchange import CARD
from fedgen.hub.shipped import pretrained_card
from tests.models.stylegan2.test_shipped import contains

KIT = Path(__file__).parents[2]
FOLDER = KIT / "checkpoints" / "pretrained" / "moses"
ARMS = {
    "federated, shipped": "scores.jsonl",
    "pooled": "comparisons/centralised.jsonl",
    "clients' own models": "comparisons/local.jsonl",
}
LAST = 1399


def test_it_loads_in_one_line_and_writes_the_texts_of_its_card():
    shown = (FOLDER / "samples.txt").read_text().splitlines()
    written = from_pretrained(FOLDER).sample(36, torch.Generator().manual_seed(0))
    assert sum(text == other for text, other in zip(written, shown, strict=True)) >= 33  # processors round otherwise


def test_its_card_is_made_of_the_records_beside_it():
    text = pretrained_card(FOLDER).text()
    assert (FOLDER / CARD).read_text() == text
    assert "| clients' texts |" in text
    links = re.findall(r"\]\(([^)]+)\)", text.split("## Recipe")[0])
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_it_is_the_kits_recipe_with_seed_0():
    run = yaml.safe_load((FOLDER / "recipe.yaml").read_text())
    kit = yaml.safe_load((KIT / "recipes" / "moses.yaml").read_text())
    own = kit["data"]["init_args"]
    own["split"] = own["split"]["init_args"]  # of a split's one class the settings alone are stored
    assert run["seed_everything"] == 0
    assert run["trainer"]["max_epochs"] == kit["trainer"]["max_epochs"] == LAST + 1
    assert contains(run["trainer"]["strategy"], kit["trainer"]["strategy"])
    assert contains(run["model"], kit["model"])
    assert contains(run["data"], kit["data"])


@pytest.mark.parametrize("arm", ARMS)
def test_the_page_has_the_scores_of_the_records(arm):
    page = (KIT / "docs" / "molecules.md").read_text()
    found = {
        (record.split, record.name): say_number(record.value, record.standard_error)
        for record in read_records(FOLDER / ARMS[arm])
        if record.is_model and record.round == LAST
    }
    columns = [("part_train", "validity_all"), *(("part_train", name) for name in ("fid_all", "fid_avg"))]
    columns += [("part_val", "fid_all"), ("unpart", "fid_all")]
    assert f"| {arm} | {' | '.join(found[column] for column in columns)} |" in page
