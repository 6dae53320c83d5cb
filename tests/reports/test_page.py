"""The page: one file, whatever its names hold; small and quick enough."""

import base64
import hashlib
import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import fedgen
from fedgen.__main__ import main
from fedgen.cli.run import select_checkpoint
from fedgen.evaluation import append_records
from fedgen.foreign_text import printable_lines
from fedgen.reports import report, write_report
from fedgen.reports.charts import panels
from fedgen.reports.page import RunPage
from tests.counted_calls import count_calls
from tests.evaluation.samples import record
from tests.reports.folders import HOSTILE, make_records, write_run

ROOT = Path(__file__).parents[2]


def data_of(page):
    """What scripts of a page draw."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_charts_hold_the_very_numbers_of_the_records():
    records = make_records()
    (fid, _) = panels(records)
    lines = {line["aggregate"]: line for line in fid["lines"]}
    for aggregate in ("avg", "all"):
        own = [r for r in records if r.name == f"fid_{aggregate}" and r.is_model]
        assert lines[aggregate]["values"] == [r.value for r in own]
        assert lines[aggregate]["errors"] == [r.standard_error for r in own]
    assert lines["all"]["floor"] == {"value": 1.0, "error": 0.4, "images": 50}
    assert (fid["pairs"], fid["pairs_left"]) == ([[1, 2, True]], 0)
    assert fid["clients"]["values"][0] == pytest.approx([29.9, 30.0, 30.1])


def test_pictures_are_whole(tmp_path):
    folder = write_run(tmp_path / "run")
    page = report(folder).html
    samples = data_of(page)["runs"][0]["samples"]
    files = [(folder / "samples" / f"round={sample['round']:05d}.png").read_bytes() for sample in samples]
    assert len(files) == 3
    encoded = [base64.b64encode(file).decode() for file in files]
    assert [sample["uri"] for sample in samples] == [f"data:image/png;base64,{text}" for text in encoded]
    assert f'src="data:image/png;base64,{encoded[-1]}"' in page


def test_names_of_strangers_stay_text(tmp_path):
    folder = write_run(tmp_path / "<b>run", names=[HOSTILE, "client 1", "x`y"], reference=HOSTILE)
    (folder / "recipe.yaml").write_text(f"seed_everything: 0\nmodel: {json.dumps(HOSTILE)}\n")
    page = report(folder).html
    assert "<img src=x" not in page
    assert "<script>window" not in page
    assert "<b>run" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert data_of(page)["runs"][0]["clients"][0]["name"] == printable_lines(HOSTILE)  # set as text by scripts
    assert "\u202e" not in page.split('id="data">')[0].split("<body>")[1].split("<pre")[0]


def test_the_policy_allows_this_pages_script_and_style_alone(tmp_path):
    page = report(write_run(tmp_path / "run")).html
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[1])
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert not re.search(r'\sstyle="|\son\w+="', page)


@pytest.mark.parametrize("checkpoint", ["../up.ckpt", "/etc/passwd", "a\\b", "..", "", "a\0b"])
def test_a_records_checkpoint_names_no_other_place(checkpoint):
    with pytest.raises(ValueError, match="checkpoint"):
        type(make_records()[0]).from_json({**make_records()[0].to_json(), "checkpoint": checkpoint})


@pytest.mark.slow
def test_a_hundred_clients_over_thirty_checkpoints_are_written_in_a_moment(tmp_path):
    """Some 250,000 calls, a tenth of a second."""
    folder = write_run(tmp_path / "run", clients=100, rounds=tuple(range(0, 300, 10)), pictures=False)
    page = report(folder)  # imports
    assert count_calls(lambda: report(folder)) < 500_000
    assert len(page.html) < 1_000_000


@pytest.mark.slow
def test_thousands_of_columns_take_time_by_their_number(tmp_path):
    """Each look at a column once sorted all records into columns: 1,500 of them took half a minute."""

    def calls(scores):
        records = make_records(2, (0, 1, 2), scores=[f"score{k}" for k in range(scores)])
        append_records(tmp_path / str(scores) / "scores.jsonl", records)

        def read():
            report(tmp_path / str(scores))
            select_checkpoint(tmp_path / str(scores), "score0_all")

        return count_calls(read)

    calls(2)  # imports
    assert calls(200) < 10 * calls(25)  # eight times as many


@pytest.mark.slow
def test_of_a_thousand_clients_evenly_spaced_rounds_are_shown(tmp_path):
    scores = ["fid", "kid", "sw1", "sw2"]
    folder = write_run(tmp_path / "run", clients=1000, rounds=tuple(range(40)), scores=scores, pictures=False)
    page = report(folder).html
    assert len(page) < 10_000_000
    own = data_of(page)["runs"][0]["panels"][0]
    assert own["clients"]["left_out"] == 40 - len(own["clients"]["rounds"])
    assert own["clients"]["rounds"][-1] == 39
    assert len(own["lines"][0]["values"]) == 40


@pytest.mark.slow
def test_of_thousands_of_inverted_pairs_those_beyond_error_are_drawn(tmp_path):
    found = []
    for round in range(80):  # avg rises and all falls: all 3,160 pairs are inverted, those of neighbours within error
        own = {"standard_error": 0.4, "checkpoint": f"round={round:05d}.ckpt"}
        found += [record("fid", "avg", float(round), round, **own), record("fid", "all", 90.0 - round, round, **own)]
    append_records(tmp_path / "scores.jsonl", found)
    fid = data_of(report(tmp_path).html)["runs"][0]["panels"][0]
    assert (len(fid["pairs"]), fid["pairs_left"]) == (2000, 1160)
    assert all(beyond for _, _, beyond in fid["pairs"])


def test_values_that_are_no_numbers_and_clients_that_changed_have_a_page(tmp_path):
    folder = write_run(tmp_path / "run", pictures=False)
    more = make_records(2, rounds=(7,), names=["a", "b"])
    for value in (math.nan, math.inf):
        more = [replace(one, value=value, per_client=[value] * len(one.per_client)) for one in more]
        append_records(folder / "scores.jsonl", [one for one in more if one.is_model])
        page = report(folder).html
        line = data_of(page)["runs"][0]["panels"][0]["lines"][0]
        assert line["values"][-1] == str(value)
    alone = tmp_path / "alone"
    alone.mkdir()
    append_records(alone / "scores.jsonl", [one for one in make_records() if one.is_floor])
    assert "No model has been scored yet" in report(alone).html


@pytest.mark.slow
def test_of_many_logged_values_few_points_are_shown(tmp_path):
    folder = write_run(tmp_path / "run", pictures=False)
    names = [f"value {k}" for k in range(400)]
    rows = [f"{step}," + ",".join(["1.5"] * 400) for step in range(300)]
    (folder / "logs" / "metrics.csv").write_text("\n".join([",".join(["step", *names]), *rows]) + "\n")
    page = report(folder).html
    assert "100 more logged values are not in this page" in page
    assert len(page) < 1_000_000


def test_a_page_replaces_pages_and_nothing_else(tmp_path):
    folder = write_run(tmp_path / "run")
    assert write_report([folder]) == write_report([folder]) == folder / "report.html"
    other = tmp_path / "notes.html"
    other.write_text("mine")
    with pytest.raises(ValueError, match="report"):
        write_report([folder], other)
    assert other.read_text() == "mine"
    assert list(folder.glob(".report.html.*")) == []
    with pytest.raises(PermissionError, match=r"cannot write in /proc: .*; choose another folder"):
        write_report([folder], Path("/proc/x.html"))


def test_a_caution_stands_once(tmp_path):
    few = "fid is biased upwards, as there are fewer samples than features (64): 50 generated"
    folder = write_run(tmp_path / "run", note=f"mixture of local models; {few}")
    page = report(folder).html
    assert page.count(few) == 1
    assert page.count("mixture of local models") > 1


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing(tmp_path):
    found = fedgen.report(write_run(tmp_path / "run", names=[HOSTILE, "b", "c"]))
    frame = found._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == found.html
    assert "<script" not in frame


def test_the_page_of_reading_reports_runs_as_written(tmp_path, monkeypatch):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "report.md").read_text(), re.DOTALL)
    write_run(tmp_path / "checkpoints" / "demo")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(snippet, "report.md", "exec"), names)
    assert repr(names["found"]).startswith("Report(checkpoints/demo; ")
    assert (tmp_path / "demo.html").read_text() == names["found"].html


def test_a_column_without_a_picture_over_time_is_a_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["report", str(write_run(tmp_path / "run")), "--column", "kid_all"])
    assert "--column names the score that --over_time FILE plots: give both, or neither" in capsys.readouterr().err


def test_the_command_writes_one_page_of_several_runs(tmp_path, monkeypatch, capsys):
    runs = [str(write_run(tmp_path / name, seed=seed)) for seed, name in enumerate("ab")]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *runs]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert [run["name"] for run in data_of(page)["runs"]] == ["a", "b"]
    assert "Side by side" in page
    assert main(["report", str(tmp_path / "none")]) == 2


def test_a_page_of_a_run_that_trains_says_so_and_draws_no_conclusion_of_its_end(tmp_path):
    page = RunPage(write_run(tmp_path / "run"))
    assert page.write(live=True)
    assert 'id="live"' in page.path.read_text()
    assert "still improving" not in page.path.read_text()
    assert page.write()  # training is over
    assert 'id="live"' not in page.path.read_text()
    assert "kid_all was still improving when training ended" in page.path.read_text()


def test_training_goes_on_where_the_page_cannot_be_written(tmp_path):
    page = RunPage(write_run(tmp_path / "run"))
    page.path.write_text("mine")
    with pytest.warns(UserWarning, match="written"):
        assert not page.write()
    assert not RunPage(tmp_path / "empty").write()
