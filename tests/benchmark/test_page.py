"""The leaderboard's page: one file whose texts stay texts, and whose columns sort in a real browser."""

import base64
import hashlib
import html
import re

import pytest

from fedgen.__main__ import main
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.leaderboard import page_of, write_leaderboard
from fedgen.foreign_text import printable_lines
from tests.benchmark.entry_files import CENTRALISED, FEDERATED, LOCAL, PIXEL, make_form, write_form
from tests.reports.folders import HOSTILE


@pytest.fixture
def entries(tmp_path):
    cells = {FEDERATED: (10.0, 10.0), LOCAL: (90.0, 90.0), CENTRALISED: (2.0, 2.0)}
    return [read_entry(write_form(tmp_path, cell=cell, ratios=own)) for cell, own in cells.items()]


def test_the_page_holds_tables_answers_samples_and_provenance(entries):
    page = page_of(entries, ["entry x is refused: it claims"])
    rows = re.findall(r'<tr><td class="number" data-sort="(\d)"><bdi>(\d)</bdi></td><td><bdi>wgan-gp</bdi></td>', page)
    assert rows == [("1", "1"), ("2", "2"), ("3", "3")]
    assert "wgan-gp / centralised &lt; wgan-gp / fedavg &lt; wgan-gp / local" in page
    assert page.count(f'<img class="pixels" alt="images of wgan-gp / local" src="{PIXEL}">') == 1
    assert page.count(f'<img class="pixels" alt="nearest images of wgan-gp / local" src="{PIXEL}">') == 1
    assert page.count(PIXEL) == 6
    assert page.count('data-sort="0.51"><bdi>0.51</bdi></td><td class="number" data-sort="0.44"><bdi>0.44 (0.46)') == 3
    assert page.count('data-sort="3.0"><bdi>3</bdi></td><td class="number" data-sort="70.0"><bdi>70 (20)</bdi>') == 3
    assert len(re.findall(r'data-sort="0\.155\d*"><bdi>0\.16 \[0\.13, 0\.18\]</bdi></td></tr>', page)) == 3
    assert page.count("<tr><td><bdi>client a</bdi></td>" + "<td><bdi>0.20 [0.17, 0.24]</bdi></td>" * 3) == 1
    heads = re.findall(r'<button type="button">(.*?)</button>', page.split("</thead>")[0])
    assert heads[-7:] == ["recall", "coverage", "memorisation", "authenticity", "fld", "mifid", "attack"]
    assert "entry x is refused: it claims" in page
    assert "torch" in page
    assert "<bdi>2 seeds; 30 rounds of 2 local iterations, 5 of 10 clients in each</bdi><br>" in page
    assert "https://" not in page


def test_the_policy_allows_this_pages_script_and_style_alone(entries):
    page = page_of(entries, [])
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[1])
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy


def test_texts_of_strangers_stay_text(tmp_path):
    form = make_form()
    form["provenance"]["machine"]["processor"] = "<img src=x onerror=alert(1)>"
    form["provenance"]["versions"]["torch"] = "</script><script>alert(2)</script>"
    page = page_of([read_entry(write_form(tmp_path, form))], [HOSTILE])
    assert "<img src=x" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert html.escape("<img src=x onerror=alert(1)>") in page
    assert html.escape(printable_lines(HOSTILE)[:20]) in page


def test_another_file_is_not_replaced(tmp_path, entries, capsys):
    page = write_leaderboard(entries, [], tmp_path / "a.html")
    assert write_leaderboard(entries, [], page) == page
    (tmp_path / "letter.html").write_text("<p>Dear all</p>")
    assert main(["benchmark", "table", str(tmp_path), "--output", str(tmp_path / "letter.html")]) == 2
    assert "letter.html is there already and is no leaderboard; choose another --output" in capsys.readouterr().err
    assert main(["benchmark", "table", str(tmp_path)]) == 0
    assert (
        "<title>Federated generation: tiny - fedgen leaderboard</title>" in (tmp_path / "leaderboard.html").read_text()
    )


def test_no_entry_is_said(tmp_path):
    assert "No entry is left." in page_of([], [])
