"""The page on state in clients' turns: its code runs as written, and prints the table that the page shows."""

import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs" / "state-in-turns.md").read_text()


def test_the_snippet_prints_the_table_of_the_page(capsys, monkeypatch, tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (table,) = re.findall(r"```\n(  trained.*?)```", PAGE, re.DOTALL)
    quiet = "logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False"
    monkeypatch.chdir(tmp_path)
    exec(
        compile(snippet.replace('accelerator="cpu"', f'accelerator="cpu", {quiet}'), "docs/state-in-turns.md", "exec"),
        {},
    )
    assert capsys.readouterr().out == table


def test_the_page_is_short():
    assert len(PAGE.split()) <= 1200
