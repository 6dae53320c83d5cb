"""Every experiment has a short run among the tests and a paragraph in the documentation."""

import re
from pathlib import Path

from fedgen.experiments import EXPERIMENTS
from tests.experiments import test_short_rankings as rankings
from tests.experiments.paired import test_short_runs as paired
from tests.experiments.paired import test_untrained_runs as untrained
from tests.experiments.participation import test_short_runs as participation

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def test_every_experiment_has_a_short_run():
    short = {*rankings.RUNS, *(row[0] for row in [*paired.RUNS, *participation.RUNS])}
    places = {f"{experiment.__module__}:{experiment.__name__}" for experiment in untrained.CASES}
    short |= {name for name, (where, _) in EXPERIMENTS.items() if where in places}
    assert short == set(EXPERIMENTS)


def test_the_page_on_experiments_names_each():
    named = set(re.findall(r"`([a-z0-9-]+)(?: --[^`]*)?`", PAGE.read_text()))
    assert sorted(set(EXPERIMENTS) - named) == []
