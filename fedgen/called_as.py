"""Words that this process was started by, for the commands that it suggests."""

import shlex
import shutil
import sys
from pathlib import Path

NAME = "fedgen"


def program() -> str:
    """Return the words that start the command line as its user did: "fedgen", "python -m fedgen", ".venv/bin/fedgen".

    In other programs, such as a notebook, it is "fedgen".
    """
    started = Path(sys.argv[0] or NAME)
    if started.resolve() == Path(__file__).resolve().with_name("__main__.py"):
        return f"{shlex.quote(sys.orig_argv[0])} -m {NAME}"
    found = shutil.which(NAME)
    if started.name != NAME or len(started.parts) == 1 or (found and started.resolve() == Path(found).resolve()):
        return NAME
    return shlex.quote(str(started))
