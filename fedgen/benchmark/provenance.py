"""Provenance of an entry: the release, the commit and the machine that its runs were made by."""

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypedDict

from fedgen import __version__
from fedgen.io.field_types import Fits, Text

LIBRARIES = ("torch", "lightning", "numpy")
_Word = Annotated[str, Text(200)]
_Commit = Annotated[str, Fits(re.compile(r"[0-9a-f]{40}\+?").fullmatch, "commit of 40 hex digits")]


class Machine(TypedDict):
    """The machine: what numbers and seconds may depend on, and nothing that names its owner."""

    system: _Word
    architecture: _Word
    processor: _Word
    cores: int
    memory: int


class Origin(TypedDict):
    """The origin of an entry; `commit` is None outside a checkout, and ends in "+" where files were changed."""

    fedgen: _Word
    commit: _Commit | None
    versions: dict[_Word, _Word]
    machine: Machine


def provenance() -> Origin:
    libraries = {name: version(name) for name in LIBRARIES}
    machine: Machine = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    versions = {"python": platform.python_version(), **libraries}
    return {"fedgen": __version__, "commit": _commit(), "versions": versions, "machine": machine}


def _commit() -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    head, changed = (_git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    return None if head is None else head + ("+" if changed else "")


def _git(root: Path, *words: str) -> str | None:
    try:
        found = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _processor() -> str:
    """The processor's name, as Linux has it; else what Python knows."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
