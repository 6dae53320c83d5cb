"""The parts of the tests are all of them, and what must pass before a change lands runs them all."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = dict(re.findall(r"^([a-z-]+):.*##.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def chosen_by(target):
    """The marker expression of a target's only call of pytest."""
    (call,) = [line for line in TARGETS[target].splitlines() if "$(PYTEST)" in line]
    words = shlex.split(call)
    assert not [word for word in words if word.startswith("tests")]
    return words[words.index("-m") + 1]


def test_a_test_is_in_one_part_and_in_no_other():
    chosen = [chosen_by(target) for target in ("test", "test-slow", "test-browser")]
    assert chosen == ["not slow and not browser", "slow and not browser", "browser"]


def test_before_a_change_lands_all_tests_and_the_static_checks_run():
    commands = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert commands == ["test", "test-slow", "test-browser", "check"]
    assert set(commands) <= TARGETS.keys()


@pytest.mark.parametrize("page", ["README.md"])
def test_targets_that_are_documented_exist(page):
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert {"test", "test-slow", "demo", "check"} <= named <= TARGETS.keys()


def test_the_longest_files_come_first_and_exist():
    from tests.conftest import LONGEST

    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
