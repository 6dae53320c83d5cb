"""The parts of the tests are all of them, and what must pass before a change lands runs them all."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
NAMES = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS = dict(re.findall(r"^([a-z-]+):.*##.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def chosen_by(target):
    """The marker expression of a target's only call of pytest."""
    (call,) = [line for line in TARGETS[target].splitlines() if "$(PYTEST)" in line]
    words = shlex.split(call)
    assert not [word for word in words if word.startswith("tests")]
    return words[words.index("-m") + 1]


def test_a_test_is_in_one_part_and_in_no_other():
    chosen = [chosen_by(target) for target in ("test", "test-slow", "test-fuzz", "test-browser", "test-gpu")]
    others = "not fuzz and not browser and not gpu"
    assert chosen == [f"not slow and {others}", f"slow and {others}", "fuzz", "browser", "gpu"]


def test_before_a_change_lands_all_tests_the_static_checks_and_the_documentation_run():
    commands = re.findall(r"^make ([^#\n]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    targets = [word for command in commands for word in command.split() if not word.startswith("-")]
    assert targets == ["test", "test-slow", "test-browser", "check", "docs"]
    assert set(targets) <= NAMES


def commands_of(target, venv):
    """What make would run, with nothing installed."""
    # --no-print-directory: a make inside a make ends with a line of its folder otherwise
    made = ["make", "-n", "--no-print-directory", target, f"VENV={venv}"]
    return subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_demo_installs_what_running_needs_alone_and_says_what_it_does(tmp_path):
    shown = commands_of("demo", tmp_path / "env")
    assert re.findall(r"pip install .*--editable '(.+)'", shown) == ["."]
    assert 'echo "Installing what running needs into' in shown
    told = [shown.index(words) for words in ("1 of 2", "reproduce gaussian-toy", "2 of 2", "fit demo")]
    assert told == sorted(told)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["test", "test-slow", "check", "setup"])
def test_tests_and_checks_install_their_tools_too_in_one_resolution(tmp_path, target):
    assert re.findall(r"pip install .*--editable '(.+)'", commands_of(target, tmp_path / "env")) == [".[dev]"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_oldest_flower_that_is_allowed_is_tested_in_an_environment_of_its_own(tmp_path):
    (tmp_path / ".ready").touch()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = [one for one in map(Requirement, extras["flower"]) if one.name == "flwr"]
    (oldest,) = [one.version for one in allowed.specifier if one.operator == ">="]
    own = f"{tmp_path}/flwr-{oldest}"
    *installs, _, tests = commands_of("test-flwr", tmp_path).splitlines()[-4:]
    assert {shlex.split(line)[-1] for line in installs} == {f"flwr=={oldest}.*"}
    assert all(f"pip --python {own}/bin/python install" in line for line in installs)
    assert f"{own}/bin/python -m pytest" in tests
    assert tests.endswith(" tests/flower")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_torchvision_that_does_not_load_is_told_right_after_installing(tmp_path):
    shown = commands_of("demo", tmp_path / "env")
    words = (
        "pip install --no-compile",
        "compileall",
        "-c 'import torchvision'",
        "--force-reinstall torch torchvision",
        "touch ",
        "1 of 2",
    )
    told = [shown.index(one) for one in words]
    assert told == sorted(told)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_what_is_installed_is_not_installed_again(tmp_path):
    for name in (".ready-run", ".ready"):
        (tmp_path / name).touch()
    assert "pip install" not in commands_of("demo", tmp_path) + commands_of("test", tmp_path)


@pytest.mark.parametrize(
    ("page", "least"),
    [("README.md", {"demo", "test"}), ("CONTRIBUTING.md", {"test", "test-slow", "test-fuzz", "check"})],
)
def test_targets_that_are_documented_exist(page, least):
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert least <= named <= NAMES


def test_the_longest_files_come_first_and_exist():
    from tests.conftest import LONGEST

    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
