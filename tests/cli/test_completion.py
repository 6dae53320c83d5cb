"""Shells complete commands, options, recipes and run folders: words first, then the shells themselves."""

import os
import pty
import re
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

import fedgen
from fedgen.__main__ import COMMANDS, main
from fedgen.cli.completion import candidates

SHELLS = [name for name in ("bash", "zsh") if shutil.which(name)]


def test_commands_and_what_follows_them_are_completed():
    assert candidates([""]) == [*COMMANDS, "--help", "--version"]
    assert candidates(["rep"]) == ["report", "reproduce"]
    assert candidates(["fit", "quick"]) == ["quickstart"]
    assert candidates(["reproduce", "gaussian-t"]) == ["gaussian-toy"]
    assert candidates(["benchmark", ""]) == ["run", "table", "tiny", "small", "full"]
    assert candidates(["completion", ""]) == ["bash", "zsh"]
    assert candidates(["nothing", ""]) == []


@pytest.mark.parametrize(
    ("command", "start", "option"),
    [("fit", "--loc", "--local_only"), ("select", "--ag", "--against"), ("report", "--o", "--output")],
)
def test_options_are_those_that_help_names(command, start, option):
    assert option in candidates([command, start])


def test_an_options_value_is_left_to_the_shell():
    assert candidates(["report", "--output", ""]) == []


def test_run_folders_are_found_here_in_checkpoints_and_below_what_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("here", "checkpoints/one", "checkpoints/two", "deep/er/three", "bad\x1b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "scores.jsonl").write_text("")
    (tmp_path / "no-run").mkdir()
    assert candidates(["select", ""]) == ["here", "checkpoints/one", "checkpoints/two"]
    assert candidates(["report", "checkpoints/t"]) == ["checkpoints/two"]
    assert candidates(["report", "a", "deep/er/"]) == ["deep/er/three"]
    assert candidates(["select", "no/such/"]) == []


def test_another_shell_is_refused_by_name(capsys):
    assert main(["completion", "fish"]) == 2
    assert "choose bash or zsh" in capsys.readouterr().err
    assert main(["completion"]) == 0


def typed(shell, keys, folder, environment):
    """What an interactive shell shows after keys that are typed one after the other, each at a prompt."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        plain = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
        os.execvpe(shell, [shell, *plain, "-i"], environment)
    shown = b""
    try:
        for text, awaited in keys:
            os.write(terminal, text)
            end = time.monotonic() + 60
            while awaited not in shown:
                assert time.monotonic() < end, shown.decode(errors="replace")
                if select.select([terminal], [], [], 0.2)[0]:
                    shown += os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_a_recipe_an_option_and_a_folder_with_a_space(shell, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "scores.jsonl").write_text("")
    command = tmp_path / "bin" / "fedgen"  # what was typed is shown; completion is the real one's
    command.write_text(
        f'#!/bin/sh\nif [ "$1" = completion ]; then exec {sys.executable} -m fedgen "$@"; fi\necho "GOT:$#:$*."\n'
    )
    command.chmod(0o755)
    paths = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(fedgen.__file__).parents[1])}
    environment = {**os.environ, **paths, "PS1": "> ", "TERM": "dumb"}
    setup = b"autoload -U compinit; compinit -u -D; " if shell == "zsh" else b""
    load = setup + b'eval "$(fedgen completion %s)"; echo REA""DY\n' % shell.encode()
    keys = [
        (load, b"READY"),
        (b"fedgen fit quicks\t\n", b"GOT:2:fit quickstart."),
        (b"fedgen fit --local_\t\n", b"GOT:2:fit --local_only."),
        (b"fedgen select my\t\n", b"GOT:2:select my run."),
    ]
    assert "GOT:2:select my run." in typed(shell, keys, tmp_path, environment)
