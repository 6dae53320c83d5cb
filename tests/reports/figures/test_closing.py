"""The last lines of a run: in words, where to look, what next."""

import shlex

import pytest
from rich.console import Console

from fedgen.__main__ import COMMANDS
from fedgen.evaluation.runs.scores_file import append_records
from fedgen.reports.sentences import beside, closing_lines, conclusions, looks, next_steps, report_run
from tests.evaluation.samples import record

RECORDS = [record("fid", how, value + round, round) for how, value in (("avg", 5), ("all", 2)) for round in (0, 1)]


def run(folder, recipe=True):
    (folder / "samples").mkdir(parents=True)
    (folder / "logs").mkdir()
    for name in ("samples/round=00000.png", "samples/round=00001.png", "logs/events.out.tfevents.1.host"):
        (folder / name).write_bytes(b"")
    if recipe:
        (folder / "recipe.yaml").write_text("")
    append_records(folder / "scores.jsonl", RECORDS)
    return folder


def steps(folder):
    return next_steps(RECORDS, folder, recipe="quickstart")


def test_the_terminal_and_the_page_say_the_same(tmp_path):
    folder = run(tmp_path / "quick")
    printed = " ".join(line.strip() for line in closing_lines(folder, RECORDS, width=90))
    told = [line.strip("`. ").removeprefix("Next: ") for line in conclusions(RECORDS, str(folder))]
    parts = [part for line in told for part in line.strip("`").split("` ")]
    assert [part for part in parts if part not in printed] == []


@pytest.mark.slow
def test_headings_come_in_order_and_say_what_was_found(tmp_path, capsys):
    folder = run(tmp_path / "quick")
    report_run(folder, Console(width=200), "quickstart")
    out = capsys.readouterr().out
    short, look, then = (out.index(heading) for heading in ("In short:\n", "To look at:\n", "What next:\n"))
    assert short < look < then
    assert "Both prefer round 0: fid_avg" in out
    assert f"  {folder}/curves.png\n" in out


def test_the_newest_grid_and_the_logs_are_named(tmp_path):
    found = looks(run(tmp_path / "a b"))
    assert found[0].startswith(f"{tmp_path}/a b/samples/round=00001.png  # samples, above real images")
    assert found[1] == f"tensorboard --logdir '{tmp_path}/a b/logs'"
    assert looks(tmp_path / "nothing") == []


def test_every_command_that_is_named_exists(tmp_path):
    commands = [shlex.split(line) for line in steps(run(tmp_path / "quick"))]
    assert {words[0] for words in commands} == {"fedgen"}
    assert {words[1] for words in commands} <= COMMANDS.keys()
    assert [words[1] for words in commands] == ["select", "evaluate", "fit", "fit"]
    assert ["fedgen", "fit", "quickstart", "--local_only"] in commands


def test_a_control_that_was_run_is_not_suggested_again_nor_of_a_control(tmp_path):
    folder = run(tmp_path / "quick")
    (tmp_path / "quick-local_only").mkdir()
    assert "--local_only" not in " ".join(steps(folder))
    assert "--centralised" in " ".join(steps(folder))
    assert "fedgen fit" not in " ".join(steps(run(tmp_path / "other-centralised")))


def test_a_run_in_python_has_no_recipe_to_score_again_or_to_fit(tmp_path):
    lines = closing_lines(run(tmp_path / "own", recipe=False), RECORDS)
    assert [line.split()[1] for line in lines if "fedgen " in line] == ["report", "select"]


def test_lines_are_told_apart_by_their_comments(tmp_path):
    commands = {"fedgen select a": "one", "fedgen fit": "another"}
    assert beside(commands, 40) == ["fedgen select a  # one", "fedgen fit       # another"]
    assert beside(commands, 25) == ["# one", "fedgen select a", "# another", "fedgen fit"]
    assert beside({}, 40) == []


def test_sentences_are_wrapped_at_words(tmp_path):
    lines = closing_lines(run(tmp_path / "quick"), RECORDS, width=60)
    said = lines[1 : lines.index("To look at:")]
    assert max(map(len, said)) <= 60
    whole = " ".join(line.strip() for line in said)
    assert whole.startswith("Take: Round 0, the best of 2 by fid_all 2.00±0.10; its score is 1.80 to 2.20 (95 %). As")


def test_nothing_scored_has_no_lines(tmp_path):
    assert closing_lines(tmp_path, []) == []
