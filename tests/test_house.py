"""`make house`: counts of lines, and a reason for each goal that is not met."""

import ast
import re
import subprocess
import sys

import pytest

from benchmarks.house.measures import Measure, reasons
from benchmarks.house.source_counts import Lines, count_tests, lines_of

SOURCE = '''"""Says what the file is.

And more.
"""

import os  # 1


class Kind:
    """A kind."""

    size = """no docstring"""


def test_sizes():
    # a comment is code
    assert Kind.size
'''


def test_lines_are_code_docstrings_or_blank(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kind.py").write_text(SOURCE)
    (tmp_path / "notes.txt").write_text("not counted\n")
    found = Lines.of(tmp_path)
    assert found == Lines(code=6, docstrings=5, blank=6)
    assert found.all == len(SOURCE.splitlines()) == 17


def test_classes_and_tests_are_counted():
    tree = ast.parse(SOURCE)
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert (lines_of(kind), count_tests({"kind.py": tree})) == (4, 1)


def test_a_goal_that_is_not_met_is_told_with_its_reason_and_one_that_is_met_is_not():
    small, large = (Measure.of_number("lines", count, 300, reason="They are cheap.") for count in (300, 301))
    assert (small.is_met, large.is_met, large.today, large.goal) == (True, False, "301", "300")
    assert reasons([small, large]) == ["lines: They are cheap."]


def test_a_goal_that_is_not_met_and_has_no_reason_is_an_error_with_the_place_to_give_one():
    longer = Measure.of_number("lines of a class", 301, 300, "Kind")
    with pytest.raises(ValueError, match=r"lines of a class is 301 \(Kind\) and its goal 300: .*/measures\.py"):
        reasons([longer])


@pytest.mark.slow
def test_every_goal_of_the_package_is_met_or_has_a_reason():
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.house"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unmet, told = len(re.findall(r"│ no +│", done.stdout)), len(re.findall(r"^- ", done.stdout, re.MULTILINE))
    assert unmet == told
    assert re.search(r"│ files beside its own that name a score +│ 0 +│", done.stdout)
