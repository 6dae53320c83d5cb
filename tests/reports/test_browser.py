"""The page in a real browser: what it shows is what was measured, everything can be used, and nothing complains."""

import base64
import json
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.leaderboard import write_leaderboard
from fedgen.evaluation.runs.scores_file import append_records, read_records
from fedgen.reports import write_report
from tests.benchmark.entry_files import CENTRALISED, FEDERATED, LOCAL, write_form
from tests.evaluation.test_numbers import SAID
from tests.reports.folders import HOSTILE, write_run

pytestmark = pytest.mark.browser
WIDTHS = (1280, 768, 360)
ROUNDS = tuple(range(9, 309, 10))


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A run of 100 clients over 30 checkpoints, one of them of a hostile name."""
    names = [HOSTILE, *(f"client {k}" for k in range(1, 100))]
    return write_report([write_run(tmp_path_factory.mktemp("page") / "run", 100, ROUNDS, names)])


def show(browser, path, width=1280, theme="light"):
    """Opens a page; returns the seconds of a processor until its charts were drawn."""
    phone = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get_log("browser")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = spent(browser)
    browser.get(path.as_uri())
    wait(browser, "return 'ready' in document.documentElement.dataset")
    wait(browser, "return document.querySelectorAll('.chart svg path').length > 0")
    after = spent(browser)
    return after - before if after > before else after  # another process counts from nothing


def spent(browser):
    """Seconds of a processor that the page's process has worked."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def wait(browser, script, seconds=10.0):
    """Until a script says yes."""
    end = time.monotonic() + seconds
    while not browser.execute_script(script):
        assert time.monotonic() < end, script
        time.sleep(0.02)


def complaints(browser):
    return [line["message"] for line in browser.get_log("browser")]


def one(browser, selector):
    return browser.find_element("css selector", selector)


def many(browser, selector):
    return browser.find_elements("css selector", selector)


def press(browser, selector, *keys):
    from selenium.webdriver.common.keys import Keys

    element = one(browser, selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.send_keys(*(getattr(Keys, key, key) for key in keys))


def slide(browser, selector, value):
    browser.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
        one(browser, selector), str(value),
    )  # fmt: skip


CURVES = '[data-part="scores"] .pair > div:first-child svg[role="img"]'
SCATTER = '[data-part="scores"] .pair > div:last-child svg[role="img"]'
TIP = '[data-part="scores"] .pair > div:{}-child .tip'


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_quick_fits_the_screen_and_has_nothing_to_complain_of(browser, page, width, theme, tmp_path):
    assert page.stat().st_size < 10_000_000
    assert show(browser, page, width, theme) < 2
    assert browser.execute_script("return document.documentElement.dataset.theme") == theme
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert complaints(browser) == []
    height = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = Path(os.environ.get("FEDGEN_SCREENSHOTS", tmp_path)) / f"{width}-{theme}.png"
    picture.write_bytes(base64.b64decode(taken["data"]))
    assert picture.stat().st_size > 50_000  # something is drawn


def test_text_stands_out_from_its_ground_in_both_themes(browser, page):
    """Contrast of at least 4.5 for text, 3 for lines, as WCAG 2 asks."""
    for theme in ("light", "dark"):
        show(browser, page, theme=theme)
        style = "getComputedStyle(document.documentElement).getPropertyValue"
        colours = {n: browser.execute_script(f"return {style}('--{n}').trim()") for n in
                   ("ground", "raised", "text", "faint", "accent", *(f"c{k}" for k in range(7)))}  # fmt: skip
        for name in ("text", "faint", "accent"):
            assert contrast(colours[name], colours["ground"]) >= 4.5, (theme, name)
        for name in (f"c{k}" for k in range(7)):
            assert contrast(colours[name], colours["ground"]) >= 3, (theme, name)


def contrast(first, second):
    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_a_page_says_numbers_as_tables_do(browser, page):
    show(browser, page)
    for value, error, said in SAID:
        known = error if error is None or math.isfinite(error) else None
        assert browser.execute_script("return formatted(...arguments)", value, known) == said


def test_every_value_that_keys_walk_through_is_the_records(browser, page):
    records = [json.loads(line) for line in (page.parent / "scores.jsonl").read_text().splitlines()]
    own = {
        (r["aggregate"], r["round"]): r["value"] for r in records if r["score"] == "kid" and r["generator"] == "model"
    }
    show(browser, page)
    press(browser, CURVES, "HOME")
    for round in ROUNDS:
        text = one(browser, TIP.format("first")).text
        assert text.splitlines()[0] == f"round {round}"
        assert [float(value) for value in re.findall(r"\(([-\d.e]+)\)", text)] == [
            own[how, round] for how in ("avg", "all")
        ]
        press(browser, CURVES, "ARROW_RIGHT")
    press(browser, SCATTER, "END")
    assert "by all, for sure" in one(browser, TIP.format("last")).text


def test_the_pointer_shows_values_too_and_a_drag_zooms(browser, page):
    from selenium.webdriver import ActionChains

    show(browser, page)
    chart = one(browser, CURVES)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    assert one(browser, TIP.format("first")).text.startswith("round 1")
    ticks = lambda: [text.text for text in many(browser, f"{CURVES} text") if text.text.isdigit()]  # noqa: E731
    before = ticks()
    ActionChains(browser).move_to_element_with_offset(chart, -100, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    whole = one(browser, '[data-part="scores"] .controls button')
    assert whole.text == "Whole range"
    assert whole.is_enabled()
    assert ticks() != before
    whole.click()
    assert ticks() == before
    press(browser, CURVES, "+")
    assert ticks() != before
    press(browser, CURVES, "0")
    assert ticks() == before
    assert complaints(browser) == []


def test_log_scale_every_client_the_worst_and_another_score(browser, page):
    show(browser, page)
    scores = '[data-part="scores"]'
    browser.execute_script("document.querySelector(arguments[0]).click()", f'{scores} button[aria-pressed="false"]')
    assert one(browser, f'{scores} button[aria-pressed="true"]').text == "Log scale"
    assert len(many(browser, f"{CURVES} .faint")) == 0
    many(browser, f"{scores} input[type=checkbox]")[0].click()
    assert len(many(browser, f"{CURVES} .faint")) == 100
    select = one(browser, f"{scores} select")
    assert [o.text for o in select.find_elements("css selector", "option")] == ["fid", "kid"]
    select.send_keys("fid")
    wait(browser, "return document.querySelector('.chart .title').textContent.startsWith('fid')")
    browser.refresh()  # what was chosen stays
    wait(browser, "return 'ready' in document.documentElement.dataset")
    wait(browser, "return document.querySelector('.chart .title').textContent.startsWith('fid')")
    assert len(many(browser, f"{CURVES} .faint")) == 100
    browser.execute_script("sessionStorage.clear()")
    assert complaints(browser) == []


def test_clients_can_be_found_sorted_paged_and_drawn(browser, page):
    show(browser, page)
    table = "table.clients"
    rows = lambda: [row.text for row in many(browser, f"{table} tbody tr")]  # noqa: E731
    assert len(rows()) == 100
    first = one(browser, f"{table} tbody button")
    assert first.text.startswith("</script><script>")  # as text
    assert browser.execute_script("return window.hacked") is None
    many(browser, f"{table} th button")[3].click()
    assert one(browser, f"{table} th[aria-sort='ascending']").text.startswith("labels")
    wanted = next(b for b in many(browser, f"{table} th button") if b.text == "kid")
    wanted.click()
    next(b for b in many(browser, f"{table} th button") if b.text.startswith("kid")).click()
    assert rows()[0].startswith("client 99")
    one(browser, f"{table} tbody button").click()
    assert len(many(browser, f"{CURVES} .picked")) == 1
    one(browser, "input[type=search]").send_keys("client 7")
    assert len(rows()) == 11
    assert len(many(browser, f"{table} .bar rect")) == 11  # the score less the floor
    slide(browser, '[data-part="clients"] input[type=range]', 0)
    assert one(browser, '[data-part="clients"] output').text == f"round {ROUNDS[0]}"
    records = [json.loads(line) for line in (page.parent / "scores.jsonl").read_text().splitlines()]
    (record,) = [r for r in records if (r["score"], r["aggregate"], r["round"]) == ("kid", "avg", ROUNDS[0])]
    value = record["per_client"][record["client_names"].index("client 7")]
    titles = [cell.get_attribute("title") for cell in many(browser, f"{table} td.number[title]")]
    assert f"{value:.6g}" in titles
    assert complaints(browser) == []


def test_the_page_opens_with_the_score_and_the_round_of_its_verdict(browser, tmp_path):
    folder = write_run(tmp_path / "run")
    records = read_records(folder / "scores.jsonl")
    best = next(one for one in records if (one.name, one.round) == ("kid_all", 1))
    append_records(folder / "scores.jsonl", [replace(best, value=0.5)])
    show(browser, write_report([folder]))
    assert "Round 1, the best of 3 by kid_all" in one(browser, "body").text
    assert [one(browser, f'[data-part="{part}"] output').text for part in ("clients", "samples")] == ["round 1"] * 2
    assert one(browser, '[data-part="scores"] select option:checked').text == "kid"
    assert "kid" in [heading.text for heading in many(browser, "table.clients th")]


def test_samples_follow_their_slider_and_the_theme_its_button(browser, page):
    show(browser, page)
    image = '[data-part="samples"] img.generated'
    last = one(browser, image).get_attribute("src")
    slide(browser, '[data-part="samples"] input[type=range]', 0)
    assert one(browser, image).get_attribute("src") != last
    assert one(browser, '[data-part="samples"] output').text == f"round {ROUNDS[0]}"
    assert browser.execute_script("return document.querySelector(arguments[0]).naturalWidth", image) > 0
    assert browser.execute_script("return document.querySelector('img.real').naturalWidth") > 0
    real = "document.querySelector('img.real')"
    shown, own = (browser.execute_script(f"return {real}.{name}") for name in ("width", "naturalWidth"))
    assert max(shown, own) % min(shown, own) == 0  # pixels keep their shape
    one(browser, "#theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    browser.execute_script("sessionStorage.clear()")


def test_the_recipe_can_be_copied_and_prints_are_light(browser, page):
    show(browser, page, theme="dark")
    browser.execute_script("document.querySelector('details.recipe').open = true")
    button = one(browser, "button.copy")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    wait(browser, "return document.querySelector('button.copy').textContent === 'Copied'")
    assert "seed_everything: 0" in one(browser, "details.recipe pre").text
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"


def test_everything_can_be_reached_by_tab(browser, page):
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    seen = set()
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        seen.add(
            browser.execute_script(
                "const e = document.activeElement; return e.id || e.tagName.toLowerCase() + (e.type || '')"
            )
        )
    assert {"theme", "selectselect-one", "inputcheckbox", "svg", "buttonbutton", "inputsearch", "inputrange"} <= seen


def test_several_runs_a_thousand_clients_and_a_frame_of_a_notebook(browser, tmp_path):
    runs = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b"))]
    both = write_report(runs, tmp_path / "both.html")
    show(browser, both)
    assert "All runs are of one recipe" in one(browser, "#compared").text
    lines = "#compared .chart svg[role=img] .line"
    assert len(many(browser, lines)) == 2
    one(browser, "#compared select").send_keys("kid_all")
    # each key pressed draws the chart anew
    title = "document.querySelector('#compared .chart .title')?.textContent"
    wait(browser, f"return {title}?.startsWith('kid_all')")
    assert complaints(browser) == []
    large = write_report([write_run(tmp_path / "large", 1000, (0, 1), pictures=False)])
    assert show(browser, large) < 2
    assert len(many(browser, "table.clients tbody tr")) == 100
    browser.execute_script("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Next').click()")
    assert "101 to 200 of 1000" in one(browser, '[data-part="clients"]').text
    from fedgen.reports import report

    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>n</title>{report(runs[0])._repr_html_()}")
    browser.get(notebook.as_uri())
    browser.switch_to.frame(0)
    wait(browser, "return 'ready' in document.documentElement.dataset")
    wait(browser, "return document.querySelectorAll('.chart svg path').length > 0")
    browser.switch_to.default_content()
    assert complaints(browser) == []


@pytest.mark.parametrize(("width", "is_wide"), [(1280, False), (820, True)])
def test_on_a_tablet_headings_wrap_and_a_shadow_shows_that_a_table_goes_on(browser, page, width, is_wide):
    show(browser, page, width=width)
    last = many(browser, "table.clients thead th")[-1]
    assert last.text == "rounds left out"
    style = "const [one, name] = arguments; return getComputedStyle(one)[name]"
    frame = browser.execute_script("return arguments[0].closest('.scroll')", last)
    assert (browser.execute_script(style, frame, "backgroundImage") != "none") == is_wide
    assert (browser.execute_script(style, last, "whiteSpace") == "normal") == is_wide


def test_a_leaderboard_sorts_by_the_numbers_of_a_column(browser, tmp_path):
    ratios = {FEDERATED: (10.0, 10.0), LOCAL: (90.0, 90.0), CENTRALISED: (2.0, 2.0)}
    entries = [read_entry(write_form(tmp_path, cell=cell, ratios=own)) for cell, own in ratios.items()]
    path = write_leaderboard(entries, [], tmp_path / "leaderboard.html")
    browser.get_log("browser")
    browser.get(path.as_uri())
    wait(browser, "return 'ready' in document.documentElement.dataset")

    def column(place):
        return [one.text for one in many(browser, f"table.sortable tbody tr td:nth-child({place})")]

    assert column(4) == ["2", "10", "90"]
    press(browser, "table.sortable th:nth-child(4) button", "ENTER")
    assert column(4) == ["2", "10", "90"]  # as numbers: as texts 10 stands before 2
    press(browser, "table.sortable th:nth-child(4) button", "ENTER")
    assert column(4) == ["90", "10", "2"]
    assert one(browser, "table.sortable th:nth-child(4)").get_attribute("aria-sort") == "descending"
    press(browser, "table.sortable th:nth-child(3) button", "ENTER")
    assert column(3) == ["centralised", "fedavg", "local"]
    assert browser.execute_script("return document.querySelector('img.pixels').naturalWidth") == 1
    assert complaints(browser) == []
