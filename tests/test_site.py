"""The search page of the documentation, in a real browser and from disk, over pages written here."""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.browser
DOCS = Path(__file__).parent.parent / "docs"
LONG = "Rounds pass, models train, and scores are stored. " * 8


def page(name, title, *sections):
    parts = [{"title": head, "anchor": head.lower().replace(" ", "-"), "text": text} for head, text in sections]
    return {"title": title, "address": f"{name}.html", "sections": parts}


PAGES = [
    page("api/federated", "fedgen.federated", ("Turn", "Of a client: left out. Resume. Medical."), ("Fit", LONG)),
    page("concepts", "Concepts", ("Concepts", LONG),
         ("Rounds cut short", f"{LONG}A client whose step raises is left out of the round.")),
    page("data", "Your own data", ("Your own data", "Take <b>any</b> data & labels."),
         ("From disk", "MedMNIST holds medical images.")),
    page("resume", "Resume a run", ("Resume a run", "A stopped run continues."), ("In Python", LONG)),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the search page, as its template has it, and its two scripts."""
    folder = tmp_path_factory.mktemp("site")
    template = (DOCS / "_templates" / "search.html").read_text()
    (content,) = re.findall(r"{% block content %}(.*?){% endblock %}", template, re.DOTALL)
    (scripts,) = re.findall(r"{% block scripts %}(.*?){% endblock %}", template, re.DOTALL)
    names = re.findall(r"'_static/(\w+\.js)'", scripts)
    loads = "".join(f'<script src="{name}"></script>' for name in names)
    (folder / "search.html").write_text(f'<!doctype html><meta charset="utf-8"><title>s</title>{content}{loads}')
    (folder / "pages.js").write_text(f"const PAGES = {json.dumps(PAGES)};")
    shutil.copy(DOCS / "_static" / "search.js", folder)
    return folder


def search(browser, site, query):
    """Searches for words; returns the line above the results."""
    browser.get_log("browser")
    browser.get(f"{(site / 'search.html').as_uri()}?q={quote(query)}")
    assert browser.get_log("browser") == []
    return browser.find_element("css selector", "#found").text


def texts(browser, selector):
    return [element.text for element in browser.find_elements("css selector", f"#results {selector}")]


@pytest.mark.parametrize(
    ("query", "title", "address", "excerpt"),
    [
        ("leave out client", "Concepts", "concepts.html#rounds-cut-short", "client whose step raises is left out"),
        ("resuming", "Resume a run", "resume.html", "A stopped run continues."),
        ("medical", "Your own data", "data.html#from-disk", "MedMNIST holds medical images."),
    ],
)
def test_the_page_that_tells_most_comes_first_with_its_words(browser, site, query, title, address, excerpt):
    assert search(browser, site, query) == f"2 pages for “{query}”."
    assert texts(browser, "h2") == [title, "fedgen.federated"]  # the reference is last
    links = [link.get_attribute("href") for link in browser.find_elements("css selector", "#results section a")]
    assert f"{site.as_uri()}/{address}" in links[:2]
    assert excerpt in texts(browser, "p")[0]
    assert len(texts(browser, "p")[0]) < 260
    assert browser.find_element("css selector", "input[name=q]").get_attribute("value") == query


def test_words_that_were_found_are_bold_and_others_are_not(browser, site):
    search(browser, site, "what is left out of a round")
    assert {word.lower() for word in texts(browser, "section:first-child mark")} == {"left", "out", "round", "rounds"}


def test_signs_of_html_are_text_and_unknown_words_find_nothing(browser, site):
    search(browser, site, "labels")
    assert texts(browser, "p") == ["Take <b>any</b> data & labels."]
    assert search(browser, site, "<i>zebra") == "No pages for “<i>zebra”."
    assert search(browser, site, "?!") == "No pages for “?!”."
    assert search(browser, site, "") == ""
    assert texts(browser, "h2") == []
