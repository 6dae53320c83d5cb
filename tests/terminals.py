"""Programs on a pseudo terminal, where they show what a person sees."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path


def shown_on_terminal(command: Sequence[str], folder: Path, columns: int = 80) -> str:
    """All that a program writes to a terminal of so many columns, as it was written; it must end with status 0."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    streams = {"stdin": writer, "stdout": writer, "stderr": writer}
    with subprocess.Popen(command, cwd=folder, env={**plain, "TERM": "xterm-256color"}, **streams) as process:
        os.close(writer)
        shown = b""
        try:
            while part := os.read(reader, 65536):
                shown += part
        except OSError:  # Linux's word for the end: nobody holds the other side
            pass
        os.close(reader)
    text = shown.decode(errors="replace")
    assert process.returncode == 0, text[-3000:]
    return text


def written_lines(shown: str) -> list[str]:
    """The lines of `shown_on_terminal`, each as often as it was written over, without colours and cursor moves."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown))
