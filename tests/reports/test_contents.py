"""What a folder contains, and what is said of what it lacks."""

import json
import os

import pytest
import torch

from fedgen.images import save_png
from fedgen.reports import write_report
from fedgen.reports.contents import read_contents
from tests.io.test_regular_files import in_time
from tests.reports.folders import make_records, write_run


def test_a_run_folder_is_read_whole(tmp_path):
    found = read_contents(write_run(tmp_path / "run"))
    assert (found.kind, len(found.records), found.settings["seed_everything"]) == ("training", 16, 0)
    assert [one.name for one in found.samples] == ["round 0", "round 1", "round 2"]
    assert found.kept.real == ["client 0", "client 1"]
    assert found.series["loss"].steps == list(range(40))
    assert found.left_out[0]["reason"] == "ValueError: too hot"
    assert found.kept.versions == {"torch": "2"}
    assert set(found.missing) == {"time", "memory", "epsilon"}


def test_pictures_of_an_audit_and_of_a_client_matrix_are_figures(tmp_path):
    folder = write_run(tmp_path / "run")
    assert read_contents(folder).figures == []
    for name in ("client_matrix.png", "nearest.png"):
        save_png(folder / name, torch.zeros(1, 8, 8, dtype=torch.uint8))
    assert [one.name for one in read_contents(folder).figures] == ["nearest.png", "client_matrix.png"]
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert page.count('alt="figure nearest.png"') == page.count('alt="figure client_matrix.png"') == 1


def test_what_is_missing_is_named_with_its_reason(tmp_path):
    folder = write_run(tmp_path / "run", recipe=False, pictures=False)
    for name in ("federation.json", "state.txt", "left_out.jsonl", "logs/metrics.csv"):
        (folder / name).unlink()
    found = read_contents(folder)
    expected = {"settings", "samples", "losses, learning rates, time", "memory", "bytes sent", "epsilon", "versions"}
    assert set(found.missing) == {*expected, "sizes of clients"}
    assert "trained in Python" in found.missing["settings"]


def test_clients_elsewhere_are_those_that_introduced_themselves(tmp_path):
    folder = write_run(tmp_path / "run", names=["a", "b"], clients=2)
    (folder / "federation.json").write_text('{"versions": {}}')
    hello = [{"name": name, "examples": 9, "shape": [1, 8, 8], "classes": [], "release": "0.1"} for name in "ab"]
    (folder / "clients.json").write_text(json.dumps(hello))
    assert [(one["name"], one["train"]) for one in read_contents(folder).kept.clients] == [("a", 9), ("b", 9)]
    (folder / "clients.json").write_text('[{"name": "a"}]')
    assert "clients.json is damaged" in read_contents(folder).missing["clients"]


def test_a_path_that_is_not_there_is_no_other_folders_scores(tmp_path):
    folder = write_run(tmp_path / "run")
    (tmp_path / "scores.json").write_text('{"records": []}')
    for missing in (tmp_path / "nowhere", folder / "nowhere", folder / "scores.jso"):
        with pytest.raises(FileNotFoundError, match=f"there is no {missing}"):
            read_contents(missing)


@pytest.mark.slow
def test_a_recipe_of_megabytes_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text("seed_everything: 0\n" + "# long\n" * 50_000)
    found = read_contents(folder)
    assert (found.recipe, found.settings) == ("", {"seed_everything": 0})
    assert "300,000 characters" in found.missing["settings"]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("recipe.yaml", b"!!python/object:os.system {}", "settings"),
        ("federation.json", b'{"clients": [{"name": 3}]}', "clients"),
        ("federation.json", b'{"clients": 3}', "clients"),
        ("left_out.jsonl", b"{}\n", "clients left out"),
        ("partition.npz", b"PK", "clients"),
    ],
)
def test_a_damaged_file_costs_its_own_part_alone(tmp_path, name, content, what):
    folder = write_run(tmp_path / "run")
    if name == "partition.npz":
        (folder / "federation.json").unlink()
    (folder / name).write_bytes(content)
    found = read_contents(folder)
    assert name in found.missing[what]
    assert len(found.records) == 16


def test_a_run_that_nobody_scored_has_a_page_all_the_same(tmp_path):
    (tmp_path / "round=00001.ckpt").write_bytes(b"")
    assert "FederatedEvaluation" in read_contents(tmp_path).missing["scores"]


def test_stored_images_an_experiment_and_another_folder(tmp_path):
    one = tmp_path / "scores.json"
    records = [{**record.to_json(), "round": None, "checkpoint": None} for record in make_records(rounds=(0,))]
    sets = [{"name": "generated", "count": 9}, {"name": "a", "count": 5}]
    one.write_text(json.dumps({"records": records, "sets": sets, "settings": {"scores": "fid"}, "skipped": ["x.png"]}))
    for place in (one, tmp_path):
        found = read_contents(place)
        assert (found.kind, len(found.records), found.kept.clients[0]["train"]) == ("images", 8, 5)
        assert any("x.png" in line for line in found.warnings)
    toy = tmp_path / "toy"
    save_png(toy / "figure.png", torch.zeros(1, 4, 4, dtype=torch.uint8))
    (toy / "results.json").write_text('{"experiment": "toy", "settings": {"seed": 0}, "numbers": {"fid": 1.5}}')
    (toy / "conclusions.txt").write_text("FID orders 82 of 210 pairs differently.\n\nas expected: " + 9000 * "x")
    write_run(toy / "runs" / "a")
    found = read_contents(toy)
    assert found.said[0] == "FID orders 82 of 210 pairs differently."
    assert len(found.said[1]) < 500
    assert (found.kind, [one.name for one in found.figures]) == ("experiment", ["figure.png"])
    assert found.below == [str(toy / "runs" / "a")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="report"):
        read_contents(tmp_path / "empty")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="evaluate"):
        read_contents(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("count", "said"),
    [("Infinity", "is inf"), ("1e400", "is inf"), ("true", "is True"), ("-1", "is -1"), ('"9"', "is '9'")],
)
def test_a_count_that_is_none_is_named_with_its_file(tmp_path, count, said):
    sets = f'[{{"name": "g"}}, {{"name": "a", "count": {count}, "examples": {count}}}]'
    (tmp_path / "scores.json").write_text(f'{{"records": [], "sets": {sets}}}')
    with pytest.raises(
        ValueError, match=rf"scores.json holds no scores.*the sets' count is .*{said}.*give numbers of images"
    ):
        read_contents(tmp_path)
    (tmp_path / "scores.jsonl").touch()
    (tmp_path / "clients.json").write_text(sets.replace('{"name": "g"}, ', ""))
    assert f"where one {said}" in read_contents(tmp_path).missing["clients"]


def test_a_damaged_record_of_stored_scores_is_named_with_its_file(tmp_path):
    (tmp_path / "scores.json").write_text('{"records": [{"score": 3}]}')
    with pytest.raises(ValueError, match="record"):
        read_contents(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_passed_over(kind, tmp_path):
    """A pipe in a file's place kept a report waiting for ever, and a device filled the memory."""
    folder = write_run(tmp_path / "run", scores=("fid",))
    (folder / "logs").mkdir(exist_ok=True)
    for name in ("recipe.yaml", "samples/round=00001.png", "real.png", "state.txt", "logs/metrics.csv", "a.tfevents.1"):
        (folder / name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/zero")
    with in_time():
        found = read_contents(folder)
    assert "regular file" in found.missing["settings"]
    assert [one.name for one in found.samples] == ["round 0", "round 2"]
    (folder / "report.html").symlink_to("/dev/zero")
    with in_time(), pytest.raises((OSError, ValueError), match="report"):
        write_report([folder])
