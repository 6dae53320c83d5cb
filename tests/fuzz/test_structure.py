"""Files that are whole outside and odd within end no process, hang none and fill no memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_files_that_are_changed_by_their_structure_are_refused_or_read(tmp_path):
    """In a process of its own, which a signal may end; half a minute, with a seed that stays."""
    command = [sys.executable, "-m", "tests.fuzz.structure", "30", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == []
    assert found["files"] > 200
