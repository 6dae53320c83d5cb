"""The README's code runs as written, only shorter."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_snippet_is_at_most_15_lines_and_selects_a_checkpoint(tmp_path, monkeypatch, capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 15
    shorter = snippet.replace("max_epochs=2400", "max_epochs=2").replace("num_images=1000", "num_images=20")
    assert shorter != snippet
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter.replace('"cpu"', '"cpu", logger=False, enable_progress_bar=False'), "README.md", "exec"), {})
    assert "round=00001.ckpt" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(set(re.findall(r"recipes/\w+\.yaml|docs/\w+\.png|CITATION\.cff", README))))
def test_files_that_the_readme_names_exist(path):
    assert (Path(__file__).parent.parent / path).exists()
