"""Scripts that start several processes, as tests run them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(module, *arguments, **variables):
    """`python -m module arguments` with environment variables, begun; its output is kept."""
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    free = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "PYTEST_"))}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**free, "OMP_NUM_THREADS": "1", **variables}, **options)


def end(process):
    """What it said; it must have ended well."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]
    return out
