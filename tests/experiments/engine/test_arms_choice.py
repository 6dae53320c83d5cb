"""Options of experiments over paired seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from fedgen.experiments.engine.study import RUNS, ArmsChoice, ScoredArmsChoice


@dataclass(frozen=True)
class Own(ArmsChoice):
    LEAST: ClassVar = {**ArmsChoice.LEAST, "seeds": 2, "depth": 3}

    depth: int | None = None
    rounds: int | None = None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "seeds=1: give at least 2"),
        ({"depth": 2}, "depth=2: give at least 3"),
        ({"rounds": 0}, "rounds=0: give at least 1"),
        ({"parallel": 0}, "parallel=0: give at least 1"),
    ],
)
def test_a_number_below_its_least_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Own(**options)


def test_seeds_follow_the_first_and_none_is_no_number():
    assert list(Own(seeds=2, seed=5, depth=None).seeds_of) == [5, 6]


def test_runs_lie_where_they_are_asked_for_or_below_the_output_or_with_the_others():
    places = [
        ScoredArmsChoice(**given).folder
        for given in ({"runs": Path("a"), "output": Path("b")}, {"output": Path("b")}, {})
    ]
    assert places == [Path("a"), Path("b/runs"), RUNS]


def test_paths_and_speed_are_no_settings_of_the_numbers():
    other = ScoredArmsChoice(runs=Path("a"), output=Path("b"), recipes=Path("c"), parallel=4)
    assert other.settings() == ScoredArmsChoice().settings()
