"""`fedgen reproduce`."""

import re
from dataclasses import fields

import pytest

from fedgen.__main__ import main
from fedgen.experiments import EXPERIMENTS
from fedgen.experiments.command import reproduce
from fedgen.experiments.engine.features import ImageChoice
from fedgen.experiments.engine.scored_checkpoints import TrainedChoice
from fedgen.experiments.ranking.class_generators import ClassChoice
from fedgen.experiments.ranking.critic_distance import wasserstein
from fedgen.experiments.ranking.neighbourhoods import NeighbourChoice
from fedgen.experiments.ranking.rising_variance import variance_limited
from fedgen.experiments.ranking.truncation import TruncationChoice
from fedgen.flags import with_flags


def test_help_lists_every_experiment_with_a_line(capsys):
    assert main(["reproduce", "--help"]) == 0
    screen = capsys.readouterr().out
    assert all(f"  {name} " in screen and text in screen for name, (_, text) in EXPERIMENTS.items())
    assert max(map(len, screen.splitlines())) <= 80


def test_an_unknown_name_is_one_message(capsys):
    assert main(["reproduce", "minibatch-bais"]) == 2
    assert "no experiment 'minibatch-bais'; did you mean minibatch-bias?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_explains_its_options(name, capsys):
    for asked in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            reproduce([name, asked])
        shown = capsys.readouterr().out
        assert "--output" in shown
        assert len(shown.splitlines()) <= 40 or asked == "--help-all"


SHARED = {
    "class-generators": ClassChoice, "wasserstein": ClassChoice, "variance-limited": NeighbourChoice,
    "intra-client-variance": NeighbourChoice, "manifold-metrics": NeighbourChoice, "wgan-gp-checkpoints": TrainedChoice,
    "perfect-generator": TrainedChoice, "truncation": TruncationChoice, "sample-size": ImageChoice,
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_options_that_experiments_share_are_explained_with_their_defaults(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit):
        reproduce([name, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    options = [one for one in fields(SHARED[name]) if one.name not in ("total_images", "by_network", "output")]
    for one in options:
        default = "null" if one.default is None else re.escape(str(one.default))
        explained = rf" --{one.name} \S+ [^-(]{{5}}.*?\(type: [^()]*, default: {default}\)"
        assert re.search(explained, shown), one.name
    assert all(f"--{hidden}" not in shown for hidden in ("total_images", "by_network", "options"))


@pytest.mark.slow
def test_an_option_that_no_experiment_has_is_refused_by_name(capsys):
    for name in SHARED:
        with pytest.raises(SystemExit):
            reproduce([name, "--neighbors", "pixels"])
        assert "--neighbors" in capsys.readouterr().err


def test_shared_yes_or_no_options_may_stand_alone_too():
    assert with_flags(variance_limited, ["--overlap", "--quick"]) == ["--overlap", "true", "--quick", "true"]
    assert with_flags(wasserstein, ["--last_activation", "--data"]) == ["--last_activation", "true", "--data"]


def test_a_yes_or_no_option_may_stand_alone():
    def experiment(quick: bool = False, seed: int = 0, overlap: bool = False) -> None: ...

    given = ["--quick", "--seed", "1", "--overlap"]
    assert with_flags(experiment, given) == ["--quick", "true", "--seed", "1", "--overlap", "true"]
    assert with_flags(experiment, ["--quick", "false"]) == ["--quick", "false"]
    assert with_flags(experiment, ["--quick", "True", "--overlap"]) == ["--quick", "true", "--overlap", "true"]
    assert with_flags(experiment, ["--quick=true"]) == ["--quick=true"]
