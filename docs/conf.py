"""Sphinx configuration: `make docs` writes the site to build/docs/index.html."""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

import fedgen
from fedgen.benchmark.leaderboard import page_of, read_all
from fedgen.lazy import homes

project = "fedgen"
author = "the fedgen authors"
copyright = "2026, the fedgen authors"
release = fedgen.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb", "sphinx_copybutton"]
extensions += ["sphinx.ext.mathjax", "sphinx-mathjax-offline"]  # formulas without a network
exclude_patterns = ["conf.py"]

html_theme = "furo"
html_title = f"fedgen {release}"
html_theme_options = {"top_of_page_buttons": [], "footer_icons": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_additional_pages = {"search": "search.html"}  # instead of Sphinx's, which fetches pages: browsers refuse from disk
templates_path = ["_templates"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
default_role = "code"

myst_enable_extensions = ["dollarmath"]
mathjax3_config = {"chtml": {"scale": 0.95}}
myst_heading_anchors = 4  # links to headings as on a forge
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent.parent / "build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True  # what a tutorial writes is not kept
nb_merge_streams = True


PACKAGES = [
    "clients",
    "clients.partitions",
    "clients.samplers",
    "clients.heterogeneity",
    "data",
    "embeddings",
    "federated",
    "federated.compression",
    "models",
    "scores",
    "metrics",
    "losses",
    "statistics",
    "evaluation",
    "callbacks",
    "hub",
]


SCORES = "scores.definitions"  # a page of every score's class


def directive(package: str, name: str) -> str:
    """Return the directive that documents a public name of a package under the name that users import."""
    value = getattr(import_module(package), name)
    if inspect.isclass(value):
        return f".. autoclass:: {package}.{name}\n   :members:\n"
    kind = "autofunction" if callable(value) else "py:data"
    return f".. {kind}:: {package}.{name}\n"


def write_reference(app: Any) -> None:
    """Write a page for each package into docs/api, from its `__all__`, and an index with the names of the root."""
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    for package in PACKAGES:
        module = import_module(f"fedgen.{package}")
        names = [name for name in module.__all__ if not name.startswith("_")]
        body = "\n".join(directive(module.__name__, name) for name in names)
        write(folder / f"{package}.md", f"# {module.__name__}\n\n{module.__doc__}\n\n```{{eval-rst}}\n{body}```\n")
    write(folder / f"{SCORES}.md", scores_page())
    root = "\n".join(root_row(name) for name in fedgen.__all__ if not name.startswith("_"))
    pages = "\n".join([*PACKAGES, SCORES])
    text = f"# API reference\n\nThe names of `fedgen` itself:\n\n| name | what it is |\n|---|---|\n{root}\n\n"
    write(folder / "index.md", f"{text}Each package:\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n")


def scores_page() -> str:
    """Return the page of all scores: a recipe's names, and below each file's title its classes with their options."""
    folder = import_module(f"fedgen.{SCORES}")
    files = dict.fromkeys(definition.__module__ for definition in folder.definitions().values())
    body = "\n".join(f".. automodule:: {file}\n   :members:\n   :show-inheritance:\n" for file in files)
    names = ", ".join(f"`{name}`" for name in folder.definitions())
    return f"# fedgen.{SCORES}\n\n{folder.__doc__}\n\n{names}.\n\n```{{eval-rst}}\n{body}```\n"


def write_entries(app: Any) -> None:
    """Write the leaderboard's page of the entries in docs/entries beside the style sheet, where its page links to."""
    source = Path(app.srcdir)
    entries, refused = read_all(sorted((source / "entries").iterdir()))
    if refused:
        raise ValueError("; ".join(refused))
    write(source / "_static" / "leaderboard.html", page_of(entries, refused))


def root_row(name: str) -> str:
    """Return the row of a name of the root: where it is documented, and the first sentence of its docstring."""
    package = homes("fedgen")[name].removeprefix("fedgen.")
    first = inspect.getdoc(getattr(fedgen, name)).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    link = f"[`{name}`](#fedgen.{package}.{name})" if package in PACKAGES else f"`{name}`"
    return f"| {link} | {first} |"


def write(path: Path, text: str) -> None:
    """Write a page if it changed, so that an unchanged one is not built again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of docstrings, which are written to be read in the source.

    They have names in single backticks, plain stars, bars and underscores, pages as docs/name.md, and lists without an
    empty line before them. Examples stay as they are.
    """
    written = lines[:]
    lines.clear()
    in_example = False
    for line in written:
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if in_example:
            lines.append(line)
            continue
        if line.lstrip().startswith("- ") and lines and lines[-1].strip() and not in_list(lines):
            lines.append("")
        parts = re.split(r"(`+[^`]+`+)", line)
        lines.append("".join(literal(part) if part.startswith("`") else escaped(part) for part in parts))


def in_list(lines: list[str]) -> bool:
    """Whether the paragraph that ends here has begun with a list's item."""
    paragraph = lines[max((index + 1 for index, line in enumerate(lines) if not line.strip()), default=0) :]
    return any(line.lstrip().startswith("- ") for line in paragraph)


def literal(part: str) -> str:
    text = part.strip("`")
    return linked(text) if PAGE.fullmatch(text) else f"``{text}``"


def escaped(part: str) -> str:
    return linked(re.sub(r"(?<=\w)_(?=\W|$)", r"\_", re.sub(r"([*|])", r"\\\1", part)))


PAGE = re.compile(r"docs/([\w-]+)\.md")


def linked(text: str) -> str:
    """Return a text in which pages are links that read as their titles."""
    return PAGE.sub(r":doc:`/\1`", text)


def keep_whole(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Let no line end within an option or a short name, or between a formula and its punctuation."""
    if "body" in context:
        body = re.sub(r'<span class="pre">(?=[^<]{1,30}<)', '<span class="pre whole">', context["body"])
        formula = r'\(*<span class="math [^"]*">[^<]*</span>[,.;:)]*'
        context["body"] = re.sub(formula, r'<span class="whole">\g<0></span>', body)


NAVIGATION: dict[int, str] = {}


def share_navigation(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Give pages of source code the navigation of others in as many folders: it would take most of their time."""
    if page.startswith("_modules/"):
        make, folders = context["toctree"], page.count("/")

        def toctree(**options: Any) -> str:
            if folders not in NAVIGATION:
                NAVIGATION[folders] = make(**options)
            return NAVIGATION[folders]

        context["toctree"] = toctree


def spread_tutorials(app: Any, env: Any, names: list[str]) -> None:
    """Put tutorials, whose code runs, far from each other: pages beside each other are read by the same process."""
    run = [name for name in names if name.startswith("tutorials/")]
    names[:] = [name for name in names if name not in run]
    for number, name in enumerate(run):
        names.insert(number * len(names) // len(run), name)


PART = (nodes.section, addnodes.desc)  # what the search finds: a section, or a documented name
UNSEEN = (*PART, nodes.title, nodes.Invisible, nodes.raw, nodes.math_block, addnodes.desc_signature)


def write_pages(app: Any, error: Exception | None) -> None:
    """Write the text of all pages as a script for search.js: browsers do not read files from disk."""
    pages = [] if error else [page_for_search(app, name) for name in sorted(app.env.found_docs)]
    text = f"const PAGES = {json.dumps(pages, ensure_ascii=False)};\n"
    (Path(app.outdir) / "_static" / "pages.js").write_text(text, encoding="utf-8")


def page_for_search(app: Any, name: str) -> dict[str, Any]:
    """Return a page's title and address, and title, anchor and text of each of its parts."""
    parts = [
        {
            "title": part[0].get("fullname") or part[0].astext(),
            "anchor": "".join((part["ids"] or part[0]["ids"])[:1]),
            "text": " ".join(blocks(part)),
        }
        for part in app.env.get_doctree(name).findall(lambda node: isinstance(node, PART))
    ]
    return {"title": app.env.titles[name].astext(), "address": app.builder.get_target_uri(name), "sections": parts}


def blocks(node: Any) -> Iterator[str]:
    """Yield the paragraphs, cells and code below a node that are in no part of their own."""
    for child in node.children:
        if isinstance(child, nodes.TextElement) and not isinstance(child, UNSEEN):
            yield " ".join("".join(map(plain, child.findall(nodes.Text))).split())
        elif not isinstance(child, UNSEEN):
            yield from blocks(child)


def plain(text: nodes.Text) -> str:
    """Return a text, a formula's without TeX's signs."""
    is_formula = isinstance(text.parent, nodes.math)
    return re.sub(r"\\(?:operatorname|mathrm|text|[lr]vert|[lr]Vert|,)|[\\{}]", "", text) if is_formula else text


def without_own_search(app: Any) -> None:
    app.builder.search = False  # Sphinx's index


def setup(app: Any) -> None:
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True  # it adds a file, and does not say
    app.connect("builder-inited", without_own_search)
    app.connect("env-before-read-docs", spread_tutorials)
    app.connect("html-page-context", keep_whole)
    app.connect("html-page-context", share_navigation)
    app.connect("build-finished", write_pages)
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_entries)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon reads sections
