"""Suggested commands start as the user's own did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgen
from fedgen.own_code import program

MAIN = Path(fedgen.__file__).with_name("__main__.py")


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Two environments, each with the command; the first one is on the path."""
    for name in ("one", "two"):
        script = tmp_path / name / "fedgen"
        script.parent.mkdir()
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "one"))
    return tmp_path


def test_a_module_is_suggested_to_one_who_called_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(MAIN), "fit"])
    monkeypatch.setattr(sys, "orig_argv", ["my env/python", "-m", "fedgen", "fit"])
    assert program() == "'my env/python' -m fedgen"


def test_a_script_is_suggested_by_its_name_where_that_finds_it_and_by_its_path_elsewhere(scripts, monkeypatch):
    for started, told in {
        scripts / "one" / "fedgen": "fedgen",
        scripts / "two" / "fedgen": str(scripts / "two" / "fedgen"),
        "fedgen": "fedgen",
        "": "fedgen",
        "/usr/bin/ipython": "fedgen",
    }.items():
        monkeypatch.setattr(sys, "argv", [str(started), "fit"])
        assert program() == told


def test_a_real_process_says_so(tmp_path):
    own = {**os.environ, "PYTHONPATH": str(MAIN.parents[1])}
    command = [sys.executable, "-m", "fedgen", "fit", "nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=own, timeout=100)
    assert f"({sys.executable} -m fedgen fit --help lists" in ended.stderr
