"""`fedgen reproduce`."""

import pytest

from fedgen.__main__ import main
from fedgen.experiments import EXPERIMENTS
from fedgen.experiments.command import reproduce, with_flags


def test_help_lists_every_experiment_with_a_line(capsys):
    assert main(["reproduce", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and text in shown for name, (_, text) in EXPERIMENTS.items())


def test_an_unknown_name_is_one_message(capsys):
    assert main(["reproduce", "minibatch-bais"]) == 2
    assert "no experiment 'minibatch-bais'; did you mean minibatch-bias?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_explains_its_options(name, capsys):
    with pytest.raises(SystemExit):
        reproduce([name, "--help"])
    assert "--output" in capsys.readouterr().out


def test_a_yes_or_no_option_may_stand_alone():
    def experiment(quick: bool = False, seed: int = 0, overlap: bool = False) -> None: ...

    given = ["--quick", "--seed", "1", "--overlap"]
    assert with_flags(experiment, given) == ["--quick", "true", "--seed", "1", "--overlap", "true"]
    assert with_flags(experiment, ["--quick", "false"]) == ["--quick", "false"]
    assert with_flags(experiment, ["--quick", "True", "--overlap"]) == ["--quick", "true", "--overlap", "true"]
    assert with_flags(experiment, ["--quick=true"]) == ["--quick=true"]
