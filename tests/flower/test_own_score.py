"""A score of somebody's own is one class: trained with, tabled, drawn, selected by, of stored folders, and deployed."""

import pytest

from fedgen.__main__ import main
from fedgen.embeddings import embed, load_embedding
from fedgen.evaluation import StoredEvaluation, StoredOptions, read_records
from fedgen.scores import ClientSide, GeneratedSet, frechet_distance
from fedgen.statistics import summarize
from tests.evaluation.folders import client_paths, make_folders
from tests.flower.own_score import CoarseFrechet
from tests.flower.runs import deploy, recipe, simulate, write_images

OWN = {"name": "tests.flower.own_score.CoarseFrechet", "block": 4}
EVALUATION = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", OWN]}


def values(folder):
    records = [record for record in read_records(folder / "scores.jsonl") if record.is_model]
    return {(record.round, record.split, record.name): record.value for record in records}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two rounds and the first one's deployment, scored by the class."""
    here = tmp_path_factory.mktemp("own-score")
    images = write_images(here / "images", {"a": 12, "b": 25})
    simulate(recipe(2, EVALUATION), images, here / "simulated")
    deploy(recipe(1, EVALUATION), images, here / "deployed")
    return here


@pytest.mark.slow
def test_records_keep_its_name_and_options(folder):
    records = read_records(folder / "simulated" / "scores.jsonl")
    own = [record for record in records if record.score == "coarse"]
    assert {record.aggregate for record in own} == {"avg", "all", "worst"}
    assert own[0].score_settings == {"block": 4}
    assert {record.is_floor for record in own} == {True, False}


@pytest.mark.slow
def test_a_deployment_measures_what_the_simulation_does(folder):
    simulated, deployed = values(folder / "simulated"), values(folder / "deployed")
    own = {place for place in deployed if place[2].startswith("coarse")}
    assert {place[2] for place in own} == {"coarse_avg", "coarse_all", "coarse_worst"}
    assert {place: deployed[place] for place in own} == pytest.approx({p: simulated[p] for p in own}, rel=1e-4)


@pytest.mark.slow
def test_checkpoints_are_selected_by_it_and_its_curves_are_drawn(folder, capsys):
    assert main(["select", str(folder / "simulated"), "--by", "coarse_all"]) == 0
    assert "coarse_all" in capsys.readouterr().out
    assert main(["report", str(folder / "simulated")]) == 0
    page = (folder / "simulated" / "report.html").read_text()
    assert "coarse" in page


def test_folders_are_scored_by_it(tmp_path):
    make_folders(tmp_path, channels=1)
    options = StoredOptions(scores=["fid", {**OWN, "block": 16}])
    found = StoredEvaluation(tmp_path / "generated", client_paths(tmp_path), "pixels", options=options).records()
    assert {record.name for record in found} >= {"fid_all", "coarse_avg", "coarse_all", "coarse_worst"}
    assert {record.embedding for record in found} == {"pixels"}


def test_it_is_the_distance_of_block_means(tmp_path):
    images = make_folders(tmp_path, channels=1)
    features = {name: embed(load_embedding("pixels"), part).double() for name, part in images.items()}
    means = {name: part.view(-1, 4, 4, 4, 4).mean((2, 4)).flatten(1) for name, part in features.items()}
    clients = [part for name, part in features.items() if name != "generated"]
    fitted = CoarseFrechet(block=4).fit(ClientSide(clients, "examples"))
    score = fitted.score(GeneratedSet(features["generated"]), errors=False)["coarse"]
    own = summarize(means["generated"])
    expected = [frechet_distance(own, summarize(part))[0] for name, part in means.items() if name != "generated"]
    assert score.per_client.tolist() == pytest.approx([float(one) for one in expected], rel=1e-8)
