"""The README's code runs as written, only shorter."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_snippet_is_at_most_15_lines_and_selects_a_checkpoint(tmp_path, monkeypatch, capsys):
    snippet = SNIPPETS[0]
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 15
    shorter = snippet.replace("max_epochs=2400", "max_epochs=2").replace("num_images=1000", "num_images=20")
    assert shorter != snippet
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter.replace('"cpu"', '"cpu", logger=False, enable_progress_bar=False'), "README.md", "exec"), {})
    assert "round=00001.ckpt" in capsys.readouterr().out


def test_metrics_losses_and_the_shipped_network_work_as_written(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    draws = torch.Generator().manual_seed(0)
    clients = [torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=draws) for _ in range(2)]
    fake = (torch.rand(12, 1, 8, 8, generator=draws) * 2 - 1).requires_grad_()
    names = {"clients": clients, "generated": clients[1], "fake": fake}
    for snippet in SNIPPETS[1:]:
        exec(compile(snippet, "README.md", "exec"), names)
    assert len(SNIPPETS) == 4
    assert names["images"].shape == (16, 1, 32, 32)
    assert re.search(r"'fid_avg': tensor.*'fid_all': tensor", capsys.readouterr().out)
    assert fake.grad.abs().max() > 0


def test_the_page_on_losses_makes_a_model_that_knows_what_it_trains_on():
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "losses.md").read_text(), re.DOTALL)
    names = {}
    exec(compile(snippet, "losses.md", "exec"), names)
    assert names["model"].optimised_on == ["efficientnet-lite0-32"]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"recipes/\w+\.yaml|docs/\w+\.\w+|CITATION\.cff", README))))
def test_files_that_the_readme_names_exist(path):
    assert (ROOT / path).exists()
