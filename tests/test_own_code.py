"""Errors are told by the lines of the user's own code; libraries' and the package's are left out before it."""

import json
import linecache
from pathlib import Path

import pytest
import torch

import fedgen
from fedgen.__main__ import COMMANDS, main
from fedgen.federated import FedAvgStrategy
from fedgen.federated.state_table import UnexchangedStateWarning
from fedgen.own_code import _is_own, from_own_code, is_of_kit, own_frames
from fedgen.seeds import generator
from tests.federated.modules import Automatic, make_data, make_trainer


def broken():
    return json.loads("{")


def test_lines_begin_with_the_users_own():
    with pytest.raises(ValueError, match="Expecting") as found:
        broken()
    assert [one.name for one in own_frames(found.value)] == ["test_lines_begin_with_the_users_own", "broken"]
    found.value.add_note("as seen by all")
    told = from_own_code(found.value)
    assert told.startswith("Traceback (from your code on):\n  File ")
    assert told.count('return json.loads("{")') == 1
    assert told.endswith("char 1)\nas seen by all\n")


def failing(arguments):
    """A command with a mistake in a user's class."""
    broken()


def test_a_mistake_in_the_users_code_ends_a_command_with_its_lines(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "failing", ("tests.test_own_code:failing", ""))
    assert main(["failing"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback (from your code on):")
    assert "in broken" in told
    assert "__main__.py" not in told


class Remembers(Automatic):
    """Changes a tensor that is not in state_dict, of which a warning tells after the first round."""

    def training_step(self, batch, batch_idx):
        self.level = getattr(self, "level", 0) + torch.ones(())
        return super().training_step(batch, batch_idx)


def test_a_warning_shows_the_users_own_line_however_deep_it_is_raised():
    module = Remembers("SGD")
    module.level = torch.zeros(())
    with pytest.warns(UnexchangedStateWarning) as said:
        make_trainer(FedAvgStrategy(1, seed=0), 1).fit(module, make_data((8, 8)))
    (told,) = [one for one in said if one.category is UnexchangedStateWarning]
    assert (told.filename, linecache.getline(told.filename, told.lineno).strip()[:12]) == (__file__, "make_trainer")


def test_a_warning_of_a_command_without_own_code_is_the_packages(tmp_path):
    (tmp_path / "scores.jsonl").write_text("{")
    with pytest.warns(UserWarning, match="last") as said:
        main(["select", str(tmp_path)])
    assert is_of_kit(said[0].filename)


def test_a_folder_whose_name_begins_like_the_packages_is_own_code():
    assert _is_own(f"{Path(fedgen.__file__).parent}_mine/train.py")
    assert not _is_own(fedgen.__file__)


def test_an_error_that_came_through_no_own_code_has_no_lines():
    assert from_own_code(ValueError("never raised")) == ""
    assert own_frames(None) == []


def test_this_package_is_no_own_code():
    with pytest.raises(TypeError) as found:
        generator()
    assert len(own_frames(found.value)) == 1
