"""The page of figures, made of what benchmarks print."""

import json

import pytest

from benchmarks.page import page
from benchmarks.report import machine, report

MACHINE = json.dumps({"machine": {"processor": "one", "torch": "2.0"}})


def figure(value, limit=None, name="a step"):
    line = {"benchmark": "rounds", "name": name, "value": value, "unit": "ratio", "limit": limit, "within": True}
    return json.dumps(line)


def test_a_figure_is_the_median_over_runs_with_its_spread():
    runs = ["\n".join([MACHINE, "a warning", figure(value, 1.5)]) for value in (1.0, 2.0, 1.25)]
    text = page(runs)
    assert "`make bench`, 3 runs" in text
    assert "processor one, torch 2.0." in text
    assert "## `python -m benchmarks.rounds`" in text
    assert "| a step | 1.25 (1 to 2) | ratio | 1.5 |" in text


def test_a_benchmark_that_fewer_runs_hold_says_how_many():
    other = figure(1.0).replace("rounds", "ddpm")
    text = page(["\n".join([MACHINE, figure(1.0), other]), "\n".join([MACHINE, figure(1.0)])])
    assert "`make bench`, 2 runs" in text
    assert text.count("Of ") == 1
    assert "## `python -m benchmarks.ddpm`\n\nOf one run.\n" in text


def test_a_figure_beyond_its_limit_is_marked_and_bars_are_escaped():
    text = page(["\n".join([MACHINE, figure(2.0, 1.5), figure(3.0, name="a | b")])])
    assert "| a step | **2** | ratio | 1.5 (beyond) |" in text
    assert "| a \\| b | 3 | ratio | - |" in text


@pytest.mark.parametrize("other", ["", MACHINE.replace("one", "two")])
def test_figures_of_other_machines_or_of_none_make_no_page(other):
    runs = [figure(1.0)] if not other else [MACHINE, other]
    with pytest.raises(ValueError, match="versions"):
        page(runs)


def test_two_figures_of_one_name_in_a_run_are_not_taken_for_two_runs():
    assert "| a step | 1 | s |" in page(["\n".join([MACHINE, figure(1.0).replace("ratio", "s"), figure(2.0)])])
    with pytest.raises(ValueError, match="benchmarks"):
        page(["\n".join([MACHINE, figure(1.0), figure(2.0)])])


def test_a_benchmark_prints_what_the_page_reads(capsys):
    assert report("a step", 1.234567, "ratio", 2.0)
    assert not report("a step", 3.0, "ratio", 2.0)
    own = json.dumps({"machine": machine()})
    text = page(["\n".join([own, line]) for line in capsys.readouterr().out.splitlines()])
    assert "| a step | **2.12** (1.23 to 3) | ratio | 2 (beyond) |" in text
