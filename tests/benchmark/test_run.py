"""Suites run cell by cell: what is done is kept, and a kill loses nothing but time."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedgen.__main__ import main
from fedgen.benchmark.claims import check
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.run_suite import run_cells
from fedgen.benchmark.suite import TINY
from fedgen.evaluation import append_records, read_records
from fedgen.experiments.engine.trainings import Training
from tests.benchmark.entry_files import FEDERATED, PIXEL, make_attack, make_cost, make_record, make_records
from tests.benchmark.few_images import shorten

pytestmark = pytest.mark.usefixtures("few_images")


@pytest.fixture
def trained(monkeypatch):
    """The runs that are trained, in place of training them: their scores are twice the floor."""
    found = []

    def run(training):
        found.append(training.place.name)
        others = [make_record("pixels", "all", 9.0, training.seed, round=3), make_record("pixels", "worst", 9.0)]
        others += [make_record("pixels", "all", 0.9, training.seed, score=s) for s in ("authenticity", "fld")]
        others.append(make_record("pixels", "all", 9.0, training.seed, split="train"))
        append_records(training.place / "scores.jsonl", [*make_records(training.seed, 2.0, training.control), *others])
        return training.place

    monkeypatch.setattr(Training, "run", run)
    monkeypatch.setattr("fedgen.benchmark.run_suite.cost_of", lambda run: make_cost(run.control))
    monkeypatch.setattr(
        "fedgen.benchmark.run_suite.audit_of",
        lambda cell, folder, picture: (make_attack(), PIXEL if picture else ""),
    )
    return found


def test_a_cell_becomes_an_entry_of_its_last_round_in_avg_and_all(tmp_path, trained, capsys):
    entries = run_cells(TINY, TINY.cells, tmp_path)
    assert [entry.name for entry in entries] == [cell.name for cell in TINY.cells]
    assert len(trained) == 6
    assert {name.rsplit("-", 1)[-1] for name in trained[4:]} == {"centralised"}
    recipe = yaml.safe_load((tmp_path / "recipes" / "digits-by-class-wgan-gp-fedavg.yaml").read_text())
    assert recipe == entries[0].form["recipe"] == TINY.cells[0].recipe()
    # two embeddings in avg and all, the floor of each, recall, coverage, four audits and the floors of two
    assert len(entries[0].records[0]) == 16
    assert entries[0].form["nearest"] == PIXEL
    assert f"1 of 3: {FEDERATED}: 2 times the floor (2 to 2)" in capsys.readouterr().out


def test_what_is_done_is_not_done_again_and_what_is_of_another_recipe_is(tmp_path, trained, capsys):
    run_cells(TINY, TINY.cells[:1], tmp_path)
    assert "(kept)" not in capsys.readouterr().out
    run_cells(TINY, TINY.cells, tmp_path)
    assert [line.endswith(" (kept)") for line in capsys.readouterr().out.splitlines()] == [True, False, False]
    assert len(trained) == 6
    longer = replace(TINY.cells[0], budget=replace(TINY.cells[0].budget, interval=3))
    path = tmp_path / "entries" / f"{longer.slug}.json"
    before = path.read_text()
    with pytest.raises(ValueError, match="communication_interval"):  # it is not the suite's
        run_cells(TINY, [longer], tmp_path)
    assert len(trained) == 8
    assert path.read_text() != before


def test_an_entry_that_was_changed_is_refused_before_anything_is_trained(tmp_path, trained):
    run_cells(TINY, TINY.cells[:1], tmp_path)
    (path,) = (tmp_path / "entries").iterdir()
    form = json.loads(path.read_text())
    form["claims"]["number"] = 1.0
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=rf"entry {FEDERATED} \(.*\) is refused: it claims number 1"):
        run_cells(TINY, TINY.cells, tmp_path)
    assert len(trained) == 2


def test_after_a_failure_no_further_run_starts(tmp_path, monkeypatch):
    started = []

    def fail(training):
        started.append(training)
        raise ChildProcessError("no memory")

    monkeypatch.setattr(Training, "run", fail)
    with pytest.raises(ChildProcessError, match="memory"):
        run_cells(TINY, TINY.cells, tmp_path)
    assert len(started) < 6
    assert not (tmp_path / "entries").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, few_images, forked):
    """The folder of a whole tiny suite."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as changed:
        shorten(changed)
        changed.chdir(folder)
        assert main(["benchmark", "run", "tiny", "--output", "results"]) == 0
    return folder / "results"


@pytest.mark.slow
def test_a_suite_that_is_killed_goes_on_and_ends_with_the_same_scores(whole, tmp_path, monkeypatch):
    undisturbed = next(e for e in map(read_entry, (whole / "entries").iterdir()) if e.name == FEDERATED)
    (tmp_path / "results" / "runs").mkdir(parents=True)
    for path in (whole / "runs").glob("*-fedavg-*-seed0*"):  # done before the suite is killed
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, tmp_path / "results" / "runs" / path.name)
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)
    command = ["benchmark", "run", "tiny", "--output", "results", "--cells", FEDERATED]
    if not (suite := os.fork()):
        os.setsid()
        try:
            main(command)
        finally:
            os._exit(1)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("results/runs/*-seed1/last.ckpt")):
        assert time.monotonic() < end
        assert os.waitpid(suite, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    os.killpg(suite, signal.SIGKILL)  # and the run under way, as a machine that fails
    os.waitpid(suite, 0)
    assert main(command) == 0
    (path,) = Path("results/entries").iterdir()
    check(resumed := read_entry(path))
    logs = {path.name.rpartition("-")[2]: path.read_text() for path in Path("results/runs").glob("*.log")}
    assert "Resuming" in logs["seed1.log"]
    assert logs["seed0.log"] == next((whole / "runs").glob("*-fedavg-*-seed0.log")).read_text()
    assert resumed.records == undisturbed.records
    timed = ("client_seconds", "peak_memory")
    kept = [{k: v for k, v in one.claims.items() if k not in timed} for one in (resumed, undisturbed)]
    assert kept[0] == kept[1]
    assert [run["costs"]["turns"] for run in resumed.form["runs"]] == [16, 16]


@pytest.mark.slow
def test_the_tiny_suite_runs_whole_with_its_controls(whole, capsys, monkeypatch):
    shorten(monkeypatch)
    assert main(["benchmark", "table", str(whole)]) == 0
    shown = capsys.readouterr().out
    assert "wgan-gp / " in shown
    entries = {path.stem: read_entry(path) for path in (whole / "entries").iterdir()}
    sent = {name.rsplit("-", 1)[-1]: entry.claims["sent_bytes"] for name, entry in entries.items()}
    assert sent["fedavg"] > 100_000
    assert sent["local"] == sent["centralised"] == 0
    assert all(entry.claims["client_seconds"] > 0 for entry in entries.values())
    assert all(entry.form["samples"].startswith("data:image/png;base64,") for entry in entries.values())
    audits = {"memorisation", "authenticity", "authenticity floor", "fld", "fld floor", "mifid", "mifid floor"}
    assert all(set(entry.claims["beside"]) == {"recall", "coverage", *audits} for entry in entries.values())
    assert all(entry.form["nearest"].startswith("data:image/png;base64,") for entry in entries.values())
    for entry in entries.values():
        assert all(run["membership"]["signal"] == "critic" for run in entry.form["runs"])
        assert [len(run["membership"]["clients"]) for run in entry.form["runs"]] == [3, 3]
    run = next((whole / "runs").glob("*fedavg*-seed0"))
    stored = json.loads((run / "membership.json").read_text())["audits"][0]["clients"]
    kept = next(e for n, e in entries.items() if n.endswith("fedavg")).form["runs"][0]["membership"]["clients"]
    assert [one["advantage"] for one in kept] == [one["advantage"] for one in stored]
    assert {record.split for record in read_records(run / "scores.jsonl")} == {"train", "report"}
