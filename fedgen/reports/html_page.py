"""Pages of one file that need neither a network nor anything installed: template, style, script, data and a policy."""

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from fedgen import __version__
from fedgen.foreign_text import printable, printable_lines
from fedgen.io.files import atomic_write
from fedgen.io.regular_files import open_regular
from fedgen.reports.pictures import DataUri

PARTS = Path(__file__).parent / "page"
LONGEST_TEXT = 1_000


@dataclass(frozen=True)
class HtmlPage:
    """One kind of page.

    Args:
        name: "report": of the template, `report.html.j2`, and of what it is to be replaced by.
        styles: files of its style, in `PARTS`.
        scripts: likewise.
    """

    name: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    @property
    def mark(self) -> str:
        """The words by which a page is known as one that may be replaced."""
        return f"fedgen {self.name}"

    @property
    def file(self) -> str:
        """The usual name of the file."""
        return f"{self.name}.html"

    def render(self, data: Any, **shown: Any) -> str:
        """The page.

        Args:
            data: plain values that the script draws.
            shown: what the template shows; texts are escaped there.
        """
        style, script = ("".join(map(_part, names)) for names in (self.styles, self.scripts))
        return (
            _environment()
            .get_template(f"{self.name}.html.j2")
            .render(
                mark=f"{self.mark} {__version__}",
                policy=_policy(style, script),
                style=style,
                script=script,
                data=htmlsafe_json_dumps(data, dumps=_dumps),
                made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                version=__version__,
                **shown,
            )
        )

    def save(self, html: str, path: str | Path) -> Path:
        """Writes a page, whole or not at all; returns its path.

        Raises:
            ValueError: if there is another file, which is none of this kind.
        """
        path = Path(path)
        self.require_own(path)
        with atomic_write(path) as file:
            file.write(html.encode("utf-8", errors="replace"))
        return path

    def require_own(self, path: Path) -> None:
        """Raises ValueError if a file is there that is no page of this kind."""
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give a file to write, as {path / self.file}")
        if path.exists():
            with open_regular(path) as file:
                if f'content="{self.mark}'.encode() not in file.read(2000):
                    raise ValueError(f"{path} is there already and is no {self.name}; choose another --output")


@cache
def _environment() -> Environment:
    """The templates, each compiled once in a process."""
    return Environment(loader=FileSystemLoader(PARTS), autoescape=True, undefined=StrictUndefined, finalize=_readable)


def _policy(style: str, script: str) -> str:
    """A policy by which the page loads nothing from anywhere and runs its own script alone."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}';"
        " base-uri 'none'; form-action 'none'"
    )


@cache
def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _readable(value: Any) -> Any:
    """Return what the template shows of a value: text without characters that act or hide; the page's parts as are."""
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _readable_parts(value: Any) -> Any:
    """Plain values with all their texts, keys too, made readable and of bounded length; pictures as they are."""
    if isinstance(value, dict):
        return {_readable_parts(key): _readable_parts(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_readable_parts(part) for part in value]
    return printable(value, LONGEST_TEXT) if isinstance(value, str) and not isinstance(value, DataUri) else value


def _dumps(value: Any, **options: Any) -> str:
    return json.dumps(_readable_parts(value), separators=(",", ":"), allow_nan=False, **options)
