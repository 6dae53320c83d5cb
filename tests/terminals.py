"""Programs on a pseudo terminal, where they show what a person sees."""

import fcntl
import logging
import os
import pty
import re
import struct
import sys
import termios
import warnings
from functools import partial
from pathlib import Path

from tests.launched import leave_after


def shown_on_terminal(code: str, folder: Path, columns: int = 80) -> str:
    """All that a script writes to a terminal of so many columns, as it was written; it must end well.

    It runs in a fork of this process, which has imported what takes seconds.
    """
    child, reader = pty.fork()
    if not child:
        leave_after(partial(_run, code, folder, columns))
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # Linux's word for the end: nobody holds the other side
        pass
    os.close(reader)
    text = shown.decode(errors="replace")
    assert os.waitpid(child, 0)[1] == 0, text[-3000:]
    return text


def _run(code: str, folder: Path, columns: int) -> None:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"
    os.chdir(folder)
    sys.stdin, sys.stdout, sys.stderr = (open(number, "rw"[number > 0], closefd=False) for number in range(3))  # noqa: SIM115
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):  # which log to what was there on import
        for handler in logging.getLogger(name).handlers:
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stderr  # the other one may be closed
    exec(compile(code, "script.py", "exec"), {"__name__": "__main__"})


def written_lines(shown: str) -> list[str]:
    """The lines of `shown_on_terminal`, each as often as it was written over, without colours and cursor moves."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown))
