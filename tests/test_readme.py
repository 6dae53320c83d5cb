"""The README's code runs as written, only shorter."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PLACES = re.findall(r"^\| (.+?) \| `(fedgen fit .+?)` \|$", README, re.MULTILINE)  # where to run it
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_snippet_is_at_most_15_lines_and_selects_a_checkpoint(tmp_path, monkeypatch, capsys):
    snippet = SNIPPETS[0]
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 15
    shorter = snippet.replace("max_epochs=2400", "max_epochs=2").replace("num_images=1000", "num_images=20")
    assert shorter != snippet
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter.replace('"cpu"', '"cpu", logger=False, enable_progress_bar=False'), "README.md", "exec"), {})
    out = " ".join(capsys.readouterr().out.split())
    assert "round=00001.ckpt" in out
    (embedding,) = re.findall(r"embeddings: \[(.+?)\]", (ROOT / "recipes" / "quickstart.yaml").read_text())
    assert f"embedding {embedding} round fid_avg fid_all" in re.sub("[^a-z0-9_ -]+ *", "", out)  # the demo's table
    assert (tmp_path / "checkpoints" / "mine" / "curves.png").exists()


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


@pytest.mark.parametrize("path", sorted(set(re.findall(r"recipes/\w+\.yaml|docs/[\w-]+\.\w+|CITATION\.cff", README))))
def test_files_that_the_readme_names_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.slow
def test_the_table_of_where_to_run_it_has_commands_that_work_and_train_the_same(tmp_path):
    """As written, but for fewer rounds and images; the third is in tests/deploy/test_engine.py."""
    assert [place for place, _ in PLACES] == ["one process", "several processes, GPUs or nodes"]
    shorter = ["--trainer.max_epochs", "1", "--trainer.callbacks.num_images", "50"]
    found = []
    for number, (_, command) in enumerate(PLACES):
        program, *arguments = shlex.split(command)
        assert program == "fedgen"
        run = [sys.executable, "-W", "ignore", "-m", "fedgen", *arguments, *shorter]
        run += ["--trainer.default_root_dir", str(tmp_path / str(number))]
        own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(run, cwd=ROOT, env=own, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr[-3000:]
        found.append(torch.load(tmp_path / str(number) / "last.ckpt", weights_only=True)["state_dict"])
    for name, tensor in found[0].items():  # Adam makes steps of the rounding in gradients that are 0
        torch.testing.assert_close(found[1][name], tensor, rtol=0, atol=2e-3)
