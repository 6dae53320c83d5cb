"""Pages of the documentation site: their length, and their place in its contents."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_WORDS, MOST_IN_ALL = 1200, 32_000  # of a page, and of all pages: they only fall
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "api" not in page.parts),
    *sorted((ROOT / "docs" / "tutorials").glob("*.py")),
]


# pages that commands write; the last is a table that `fedgen benchmark table` prints
PRINTED = ("benchmark-figures.md", "gpu-figures.md", "optimizers.md", "foreign-modules.md", "leaderboard.md")


def test_a_page_can_be_read_at_one_sitting():
    lengths = {page.name: len(page.read_text().split()) for page in WRITTEN if page.name not in PRINTED}
    assert {name: words for name, words in lengths.items() if words > MOST_WORDS} == {}
    assert sum(lengths.values()) <= MOST_IN_ALL


def test_the_contents_name_every_page_once():
    index = (ROOT / "docs" / "index.md").read_text()
    named = [
        line
        for listing in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
        for line in listing.splitlines()
        if line and not line.startswith(":")
    ]
    pages = {
        str(page.relative_to(ROOT / "docs").with_suffix(""))
        for page in WRITTEN
        if page.is_relative_to(ROOT / "docs") and page.name != "index.md"
    }
    assert sorted(named) == sorted(pages | {"api/index"})


def test_every_figure_is_shown_by_a_page():
    shown = {name for page in WRITTEN for name in re.findall(r"!\[[^\]]*\]\((?:docs/)?(\w+\.png)\)", page.read_text())}
    assert {path.name for path in (ROOT / "docs").glob("*.png")} == shown
