"""The two halves of the tests are all of them, and what must pass before a change lands runs both."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS = dict(re.findall(r"^([a-z-]+):.*##.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def chosen_by(target):
    """The marker expression of a target's only call of pytest."""
    (call,) = [line for line in TARGETS[target].splitlines() if "$(PYTEST)" in line]
    words = shlex.split(call)
    assert not [word for word in words if word.startswith("tests")]
    return words[words.index("-m") + 1]


def test_a_test_is_in_one_half_or_in_the_other():
    assert (chosen_by("test"), chosen_by("test-slow")) == ("not slow", "slow")


def test_before_a_change_lands_both_halves_the_static_checks_and_the_documentation_run():
    commands = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert commands == ["test", "test-slow", "check", "docs"]
    assert set(commands) <= NAMES


@pytest.mark.parametrize(
    ("page", "least"), [("README.md", {"demo", "test"}), ("CONTRIBUTING.md", {"test", "test-slow", "check"})]
)
def test_targets_that_are_documented_exist(page, least):
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert least <= named <= NAMES


def test_the_longest_files_come_first_and_exist():
    from tests.conftest import LONGEST

    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
