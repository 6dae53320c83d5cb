"""Whatever text strangers put into a folder's fields, a page shows it and does nothing else with it."""

import json
import re

import pytest

from fedgen.foreign_text import is_hidden
from fedgen.reports import report
from fedgen.reports.figures.curves import draw_clients, draw_curves
from tests.reports.folders import make_records, write_run

TEXTS = {
    "a terminal's commands": "\x1b[2J\x1b]0;title\x07\x9b1A",
    "no bytes": "a\0b",
    "directions of writing": "\u202eevil\u2066\u200f",
    "from right to left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "formulas": "$$ $\\frac{a}{$ $\\nothing$",
    "lines": "a\nb\r\nc\u2028d\u2029e\x85f",
    "halves of characters": "a\ud800b\udfff",
    "marks upon marks": "Z" + "\u0301\u0336\u0489" * 60,
    "nothing to see": "a\u200b\u200d\ufeff\u00adb",
    "a script": "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1><!--",
    "a template": "{{1234567*7654321}}{% for a in b %}${1234567*7654321}<%= 1234567*7654321 %>",
    "a long name": "x" * 100_000,
}
PRODUCT = 1234567 * 7654321  # of which the template would say what it is


def words_of(text):
    """Fields of records that say of what and how a score was measured."""
    return {
        "names": [text, text + "1", "c"],
        "embedding": text,
        "embedding_fingerprint": text,
        "reference": text,
        "note": f"{text}; fewer images than {text}",
        "weights": text,
        "score_settings": {text: text},
        "embedding_settings": {text: text},
        "sampling": {text: text},
        "optimised_on": [text],
        "terms": {text: 1.0},
    }


def names_of(text):
    """Fields of records that columns are named by."""
    return {"scores": (text, "kid"), "split": text}


def write_texts(folder, text):
    """A run's folder with a text in every field that a page shows, but for records."""
    write_run(folder, pictures=False, recipe=False)
    recipe = {"seed_everything": text, "model": {"class_path": text}, text: text}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))  # which is YAML, too
    about = json.loads((folder / "federation.json").read_text())
    about |= {"versions": {text: text}, "classes": [text, "cat"], "real": [text]}
    about["clients"][0] |= {"name": text, "role": text}
    (folder / "federation.json").write_text(json.dumps(about))
    entries = [{"round": 1, "client": 0, "name": text, "reason": f"ValueError: {text}"}]
    entries += [{**entries[0], "kind": "remark"}]
    (folder / "left_out.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    readable = text.encode(errors="replace").decode()
    (folder / "state.txt").write_text(f"trained, averaged: 217 kB a round: {readable}\n")
    heading = readable.replace('"', '""')
    (folder / "logs" / "metrics.csv").write_text(f'step,"{heading}"\n1,0.5\n2,0.25\n', newline="")
    return folder


def write_experiment(folder, text):
    """An experiment's folder with a text in every field."""
    folder.mkdir()
    results = {"experiment": text, "numbers": {text: {text: [1, text]}}, "settings": {text: text, "seed": text}}
    (folder / "results.json").write_text(json.dumps({**results, "versions": {text: text}}))
    (folder / "conclusions.txt").write_text(text.encode(errors="replace").decode())
    return folder


def check_page(page):
    """Fails for a page in which a text acts, on the page, on a terminal or in an editor."""
    shown = set(page) - set("\n\t")
    assert not {character for character in shown if is_hidden(character)}
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img src=x" not in page
    assert str(PRODUCT) not in page
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    texts = set(texts_in(data))
    assert not {text for text in texts if any(is_hidden(c) for c in set(text) - set("\n\t"))}
    assert len(page) < 2_000_000
    page.encode()


def texts_in(value):
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from texts_in(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_shows_any_text_of_a_runs_files(name, tmp_path):
    check_page(report(write_texts(tmp_path / "run", TEXTS[name])).html)


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_shows_any_text_of_an_experiments_files(name, tmp_path):
    check_page(report(write_experiment(tmp_path / "run", TEXTS[name])).html)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(TEXTS), 3))
def test_a_page_and_figures_show_any_texts_of_records(first, tmp_path):
    some = list(TEXTS.values())[first : first + 3]
    text = " ".join(some)
    words, names = words_of(text), names_of(text)
    for changes in (words, names):
        folders = [write_run(tmp_path / place, pictures=False, seed=k, **changes) for k, place in enumerate("ab")]
        check_page(report(*folders).html)
    own = {"scores": names["scores"][:1], "names": [*words["names"], *some]}
    records = make_records(6, **{**words, **names, **own})
    assert draw_clients(records, tmp_path / "clients.png").stat().st_size > 1000
    assert draw_curves(records, tmp_path / "curves.png").stat().st_size > 1000
