"""All benchmarks one after the other: figures beyond their limits are measured again."""

import sys

import pytest

from benchmarks.__main__ import NAMES, Measured, main, settle


def figure(value, limit=1.0, name="a ratio"):
    within = limit is None or value <= limit
    return {"benchmark": "rounds", "name": name, "value": value, "unit": "1", "limit": limit, "within": within}


def runs(*values, status=0):
    """Measures that give one value after the other, and how often they were asked."""
    left = list(values)
    asked = []

    def measure(name):
        asked.append(name)
        value = left.pop(0)
        figures = [figure(5.0 + value, None, "seconds"), figure(value)] if value is not None else []
        return Measured(status or int(value is None or value > 1), figures)

    return measure, asked


def test_a_benchmark_within_its_limits_is_run_once():
    measure, asked = runs(0.9)
    assert settle("rounds", measure) == Measured(0, [figure(5.9, None, "seconds"), figure(0.9)])
    assert asked == ["rounds"]


@pytest.mark.parametrize(("values", "median", "status"), [((1.2, 0.9, 0.8), 0.9, 0), ((1.2, 0.9, 1.1), 1.1, 1)])
def test_one_beyond_a_limit_is_run_twice_more_and_the_median_counts(values, median, status):
    measure, asked = runs(*values)
    found = settle("rounds", measure)
    assert asked == ["rounds"] * 3
    assert found.status == status
    seconds, ratio = found.figures
    assert (ratio["value"], ratio["within"], ratio["runs"]) == (median, not status, 3)
    assert (seconds["value"], seconds["within"]) == (5.0 + median, True)


def test_one_that_fails_is_not_mended_by_running_it_again():
    measure, asked = runs(0.9, status=1)
    assert settle("rounds", measure).status == 1
    measure, asked = runs(None)
    assert settle("rounds", measure) == Measured(1, [])
    assert len(asked) == 1
    measure, asked = runs(1.2, 0.9, None)
    assert settle("rounds", measure).status == 1
    measure, asked = runs(1.2, 0.9, 0.8, status=1)  # its figures are within, and it never comes through
    assert settle("rounds", measure).status == 1


def test_an_unknown_name_is_refused_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "rounds", "round"])
    assert main() == 2
    assert "no benchmark 'round'; known: frechet" in capsys.readouterr().err


def test_all_benchmarks_are_there():
    import importlib.util

    assert all(importlib.util.find_spec(f"benchmarks.{name}") for name in NAMES)


def test_a_run_for_a_page_of_several_measures_once_whatever_comes_out(monkeypatch, capsys):
    measured, asked = runs(1.2)
    monkeypatch.setattr("benchmarks.__main__.measure", measured)
    monkeypatch.setattr("benchmarks.__main__.machine", dict)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--once", "rounds"])
    assert main() == 1
    assert asked == ["rounds"]
    told = capsys.readouterr()
    assert '"value": 1.2' in told.out
    assert "failed, or beyond a limit: rounds" in told.err
