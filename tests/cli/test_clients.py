"""`fedgen clients RECIPE`, as somebody would use it before training."""

import json
import re
from pathlib import Path

import pytest
import yaml

import fedgen
from fedgen.__main__ import main
from fedgen.cli.clients import split_arguments
from fedgen.evaluation.runs.recipe_data import load_federation

PARTITION = {"class_path": "fedgen.clients.partitions.ByClass"}


def write(partition=PARTITION, data="fedgen.data.Digits", name="mine.yaml", **parts):
    settings = {"data": {"class_path": data}, "partition": partition}
    recipe = {"data": {"class_path": "fedgen.clients.FederatedDataModule", "init_args": settings}, **parts}
    Path(name).write_text(yaml.safe_dump(recipe))
    return name


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def look(*arguments):
    return main(["clients", *map(str, arguments)])


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_recipe_gives_tables_a_picture_and_the_numbers(capsys):
    assert look(write(seed_everything=3), "--embedding", "pixels", "--num_images", 300, "--controls", 1) == 0
    out = words(capsys)
    assert "digits/train: 1,797 images, 10 clients, seed 3" in out
    assert "means over clients, in pixels" in out
    assert "of 1,797 images, of 10 of 10 clients" in out
    folder = Path("checkpoints/clients-mine")
    assert f"written: {folder}/clients.png, {folder}/clients.json" in out
    assert (folder / "clients.png").read_bytes()[:4] == b"\x89PNG"
    stored = json.loads((folder / "clients.json").read_text())
    assert stored["partition"]["class"] == "ByClass"
    assert len(stored["clients"]) == 10
    found = stored["heterogeneity"]
    assert found["embedding"] == "pixels"
    assert found["measures"]["kid"]["value"] > found["measures"]["kid"]["controls"]["iid"][0]
    assert list(Path("checkpoints/features").iterdir())


@pytest.mark.slow
def test_settings_of_the_recipe_are_changed_on_the_way(capsys):
    changed = ["--data.partition", "Dirichlet", "--data.partition.num_clients=7", "--data.partition.alpha", "0.1"]
    own = ["--embedding=pixels", "--num_images=200", "--controls=0", "--output", "elsewhere"]
    assert look(write(), *changed, "--seed_everything", 5, *own) == 0
    assert "7 clients (5 images of no client), seed 5" in words(capsys)
    stored = json.loads(Path("elsewhere/clients.json").read_text())
    assert stored["partition"] == {"class": "Dirichlet", "num_clients": 7, "alpha": 0.1, "rotate": True}
    assert stored["heterogeneity"]["measures"]["fid"]["controls"] == {"iid": [], "labels": []}


@pytest.mark.slow
def test_points_are_measured_as_they_are(capsys):
    assert look(write(data="fedgen.data.GaussianMixture"), "--controls", 1, "--num_images", 200) == 0
    out = words(capsys)
    assert "gaussian_mixture/train: 100,000 points, 2 clients" in out
    assert "means over clients, in identity" in out


@pytest.mark.slow
def test_client_entropy_is_measured_if_asked_for(capsys):
    quick = ["--vae.steps", 20, "--vae.width", 4, "--vae.samples", 5, "--vae.batch_size", 8]
    assert look(write(), "--embedding", "pixels", "--num_images", 100, "--controls", 0, "--entropy", *quick) == 0
    assert "entropy: of 10 clients' images of one label each, by autoencoders of 20 steps" in words(capsys)
    stored = json.loads(Path("checkpoints/clients-mine/clients.json").read_text())
    assert stored["heterogeneity"]["measures"]["entropy"]["options"]["width"] == 4


@pytest.mark.slow
def test_measuring_by_what_dealt_the_images_is_remarked(capsys):
    semantic = {
        "class_path": "fedgen.clients.partitions.Semantic",
        "init_args": {"num_clients": 3, "embedding": "pixels", "components": 8},
    }
    assert look(write(semantic), "--embedding", "pixels", "--num_images", 200, "--controls", 0) == 0
    assert "Semantic assigned images by pixels, the same network as pixels" in words(capsys)


@pytest.mark.slow
def test_mistakes_are_named_with_status_2(capsys):
    wrong = {"class_path": "fedgen.clients.partitions.Dirichlet", "init_args": {"num_clients": 5, "alpa": 0.1}}
    for arguments, message in (
        ([write(wrong, name="wrong.yaml")], "Option 'alpa' is not accepted"),
        ([write(name="modle.yaml", modle=1)], "Option 'modle' is not accepted"),
        (["nowhere.yaml"], "give a recipe, or the folder of a run"),
        ([write(), "--embedding", "pixel"], "unknown embedding 'pixel'"),
        ([write(), "--embedding", "identity"], "takes points"),
        ([write(), "--device", "gpu7"], "device 'gpu7' cannot be used"),
        ([write(), "--embedding", "pixels", "--num_images", "1"], "num_images=1"),
    ):
        assert look(*arguments) == 2
        assert message in capsys.readouterr().err


def test_an_unknown_option_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        look(write(), "--embeding", "pixels")
    assert end.value.code == 2
    assert "--embeding" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_on_clients_works_as_written(capsys):
    page = (Path(fedgen.__file__).parent.parent / "docs/clients.md").read_text()
    (recipe,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    Path("page.yaml").write_text(recipe)
    assert load_federation("page.yaml").partition.num_clients == 50
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(snippet, "clients.md", "exec"), names)
    assert names["kid"].value > max(names["kid"].of_deals("iid"))


def test_arguments_are_the_commands_or_the_recipes():
    own, recipe = split_arguments(
        ["r.yaml", "--data.batch_size", "-1", "--cache=x", "--seed_everything=2", "--device", "cpu"]
    )
    assert own == ["r.yaml", "--cache=x", "--device", "cpu"]
    assert recipe == ["--data.batch_size=-1", "--seed_everything=2"]
