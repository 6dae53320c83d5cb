"""Classes of one's own, by their paths: the page's example, and what cannot be entered."""

import importlib
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from fedgen.__main__ import main
from fedgen.benchmark.claims import check, claims_of
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.leaderboard import read_all, standings_of
from fedgen.benchmark.own import find_own
from fedgen.benchmark.suite import DATA, SMALL, TINY, OwnClass, OwnImages
from fedgen.evaluation import ScoreRecord
from fedgen.experiments.engine.trainings import fingerprint
from tests.benchmark.entry_files import FEDERATED, make_form, write_form
from tests.benchmark.few_images import FEW, shorten

PAGE = Path(__file__).parents[2] / "docs" / "benchmark-own.md"
pytestmark = pytest.mark.usefixtures("few_images")


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """The page's code as the module `my_kit` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_kit.py").write_text(code)
    yield importlib.import_module("my_kit")
    sys.modules.pop("my_kit", None)


def test_the_pages_classes_go_where_they_belong(kit):
    model, rule = find_own("my_kit.PixelNormals"), find_own("my_kit.ClippedSteps")
    assert model == OwnClass("my_kit.PixelNormals", "model", ("image_size", "channels"))
    assert rule == OwnClass("my_kit.ClippedSteps", "client_algorithm")
    (cell,) = TINY.cells_with(model)
    assert cell.recipe()["model"]["init_args"] == {"image_size": 8, "channels": 1}
    assert [cell.name for cell in TINY.cells_with(rule)] == ["digits/by-class/wgan-gp/my_kit.ClippedSteps"]


DIGITS = OwnClass("my_kit.FewDigits", "data", images=OwnImages(8, 1, 359, "by-class", 4))


def test_the_pages_data_set_is_a_task_of_its_own_with_all_that_a_suite_compares(kit):
    assert find_own("my_kit.FewDigits") == DIGITS  # of 720 digits, half of each client's, of 178, 182, 177 and 183
    cells = TINY.cells_with(DIGITS)
    task = "my_kit.FewDigits/by-class"
    assert [(cell.name, cell.beside) for cell in cells] == [
        (f"{task}/wgan-gp/{name}", f"digits/by-class/wgan-gp/{name}") for name in ("fedavg", "local", "centralised")
    ]
    assert cells[0].control is None
    assert cells[1].control == "local_only"
    recipe, suites = cells[0].recipe(), TINY.cells[0].recipe()
    assert recipe["data"]["init_args"]["data"] == {"class_path": "my_kit.FewDigits"}
    assert recipe["model"] == suites["model"]
    training = recipe["trainer"]["callbacks"][1]["init_args"]
    assert (training["embeddings"], training["num_images"]) == (["efficientnet-lite0-32", "pixels"], 359)
    strategy = recipe["trainer"]["strategy"]["init_args"]
    assert strategy == suites["trainer"]["strategy"]["init_args"] | {"cohort_size": None}  # four clients, not five


def test_a_data_set_of_owners_is_dealt_to_them_and_gets_every_pair_of_a_suite_once():
    own = find_own(f"{__name__}.Owned")
    assert own.images == OwnImages(32, 3, 6, "natural", 6)
    cells = SMALL.cells_with(own)
    assert len({cell.parts for cell in cells}) == len(cells) == len({cell.parts for cell in SMALL.cells})
    assert {cell.budget for cell in cells} == {SMALL.cells[0].budget}
    assert cells[0].name == f"{__name__}.Owned/natural/stylegan2/fedavg"
    assert cells[0].recipe()["data"]["init_args"]["partition"]["class_path"] == "fedgen.clients.partitions.Natural"
    assert cells[0].data_part.embeddings == ("efficientnet-lite0", "pixels")


class Unlabelled(TensorDataset):
    def __init__(self):
        super().__init__(torch.full((20, 1, 8, 8), -1.0))


class Unscaled(TensorDataset):
    def __init__(self):
        super().__init__(torch.rand(20, 1, 8, 8), torch.arange(20) % 2)


class Points(TensorDataset):
    def __init__(self):
        super().__init__(torch.zeros(20, 2), torch.arange(20) % 2)


class Owned(TensorDataset):
    """Six owners of three images each, of whom one image each is held out: of 12 and 6."""

    def __init__(self):
        super().__init__(torch.full((18, 3, 32, 32), -1.0))
        self.owners = [f"owner {position % 6}" for position in range(18)]


@pytest.mark.parametrize(
    ("path", "slot"),
    [
        ("fedgen.federated.Median", "aggregator"),
        ("fedgen.federated.compression.QSGD", "compression"),
        ("torch.optim.Adagrad", "server_optimizer"),
    ],
)
def test_parts_of_an_algorithm_are_told_by_their_kind(path, slot):
    assert find_own(path) == OwnClass(path, slot)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("torch.nn.Linear", "give a class .* of LightningModule, DataSet, Dataset, ClientAlgorithm, Aggregator,"),
        ("fedgen.models.WGANGP", "needs generator, critic, which no cell gives: give generator a default"),
        ("fedgen.federated.FedProxx", "did you mean 'FedProx'"),
        ("MyModel", "is no class path"),
        ("fedgen.data.ImageFolder", "needs root, which no cell gives"),
        ("fedgen.data.StyleShift", "its images are of 28 x 28 pixels; pad or resize"),
        (f"{__name__}.Unlabelled", "no owners and 0 classes; say who made each image"),
        (f"{__name__}.Unscaled", r"no images in uint8, or floats in \[-1, 1\], as a suite wants: float images"),
        (f"{__name__}.Points", r"its items are of shape \(2,\); give images"),
    ],
)
def test_what_cannot_be_entered_is_refused(path, said):
    with pytest.raises(ValueError, match=said):
        find_own(path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_pages_generator_is_trained_scored_and_ranked_by_its_two_commands(kit, tmp_path, monkeypatch, capsys):
    shorten(monkeypatch)
    assert main(["benchmark", "run", "tiny", "--entry", "my_kit.PixelNormals"]) == 0
    folder = Path("checkpoints/benchmark-tiny")
    entry = read_entry(folder / "entries" / "digits-by-class-my_kit.PixelNormals-fedavg.json")
    assert entry.parts == ("my_kit.PixelNormals", "fedavg")
    assert [run["seed"] for run in entry.form["runs"]] == [0, 1]
    # two tensors of 64 numbers in float32, and Adam's two moments of each with its step, of 2 clients in 8 rounds
    costs = entry.form["runs"][0]["costs"]
    assert costs["turns"] == 16
    assert costs["message_bytes"] == 3 * 2 * 64 * 4 + 2 * 4
    assert entry.claims["sent_bytes"] == 16 * costs["message_bytes"]
    assert entry.claims["number"] > 1
    assert main(["benchmark", "table", str(folder)]) == 0
    assert "my_kit.PixelNormals" in capsys.readouterr().out
    assert "my_kit.PixelNormals" in (folder / "leaderboard.html").read_text()


@pytest.fixture
def suites_embeddings(monkeypatch):
    """Entries of the suite are scored in those of all its data sets, one's own too."""
    monkeypatch.setitem(DATA, "digits", replace(FEW, embeddings=TINY.cells_with(DIGITS)[0].data_part.embeddings))


def own_data_form(**images):
    """An entry of the page's data set, with what it says of the images changed."""
    cell = TINY.cells_with(DIGITS)[0]
    form = make_form(FEDERATED)
    form |= {"cell": cell.name, "recipe": cell.recipe(), "recipe_hash": fingerprint(cell.recipe())}
    for run in form["runs"]:
        known = [record for record in run["records"] if record["embedding"] in cell.data_part.embeddings]
        run["records"] = [{**record, "num_generated": 359, "num_clients": 4} for record in known]
        run["costs"]["turns"] = 30 * 4
    records = [[ScoreRecord.from_json(one) for one in run["records"]] for run in form["runs"]]
    form["claims"] = claims_of(
        cell, records, *([run[name] for run in form["runs"]] for name in ("membership", "costs"))
    )
    return {**form, "own": {"class_path": "my_kit.FewDigits", "slot": "data", "images": asdict(DIGITS.images) | images}}


@pytest.mark.usefixtures("suites_embeddings")
def test_entries_of_a_data_set_are_checked_without_its_class_and_stand_apart_from_the_suites(tmp_path):
    paths = [write_form(tmp_path, form) for form in (make_form(), own_data_form())]
    entries, refused = read_all(paths)
    assert refused == []
    assert [entry.task for entry in entries] == [("tiny", "digits/by-class"), ("tiny", "my_kit.FewDigits/by-class")]
    assert [standing.ranks(standing.entries[0]) for standing in standings_of(entries)] == [(1, 1), (1, 1)]


@pytest.mark.usefixtures("suites_embeddings")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_images": 300}, "FederatedEvaluation.init_args.num_images is 359, there 300"),
        ({"partition": "natural"}, "its parts are those of my_kit.FewDigits/natural/wgan-gp/fedavg"),
        ({"num_clients": 9}, "cohort_size is None, there 5"),
    ],
)
def test_what_an_entry_says_of_its_images_is_what_its_recipe_does(change, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        check(read_entry(write_form(tmp_path, own_data_form(**change))))


@pytest.mark.usefixtures("suites_embeddings")
def test_an_entry_of_a_data_set_that_says_nothing_of_its_images_is_refused(tmp_path):
    form = own_data_form()
    del form["own"]["images"]
    with pytest.raises(ValueError, match="my_kit"):
        check(read_entry(write_form(tmp_path, form)))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_pages_data_set_is_trained_scored_and_checked_by_its_two_commands(kit, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedgen.benchmark.own.MOST_IMAGES", 60)  # instead of 359
    shorten(monkeypatch, seeds=(0,))
    task = "my_kit.FewDigits/by-class"
    cell = f"{task}/wgan-gp/fedavg"
    assert main(["benchmark", "run", "tiny", "--entry", "my_kit.FewDigits", "--cells", cell]) == 0
    folder = Path("checkpoints/benchmark-tiny")
    path = folder / "entries" / "my_kit.FewDigits-by-class-wgan-gp-fedavg.json"
    entry = read_entry(path)
    assert (entry.task, entry.parts) == (("tiny", task), ("wgan-gp", "fedavg"))
    assert {record.num_clients for run in entry.records for record in run} == {4}
    assert entry.form["runs"][0]["costs"]["turns"] == 16
    del sys.modules["my_kit"]
    (tmp_path / "my_kit.py").unlink()  # a reader has not the class
    assert main(["benchmark", "table", str(folder)]) == 0
    assert task in capsys.readouterr().out
