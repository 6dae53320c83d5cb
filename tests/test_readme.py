"""The code of the README and of the pages beside it runs as written, only shorter; what they name exists."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from fedgen.__main__ import main
from fedgen.recipe.recipe_files import time_and_score
from tests.launched import Imported, end

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README, QUICKSTART, FOLDERS, STYLEGAN2, LOSSES, YOUR_MODEL, YOUR_DATA = (
    (ROOT / name).read_text()
    for name in (
        "README.md",
        "docs/quickstart.md",
        "docs/score-folders.md",
        "docs/stylegan2.md",
        "docs/losses.md",
        "docs/your-model-and-embedding.md",
        "docs/your-data.md",
    )
)
PLACES = re.findall(r"^\| (.+?) \| `(fedgen fit .+?)` \|$", QUICKSTART, re.MULTILINE)  # where to run it


RECIPES = (ROOT / "docs" / "recipes.md").read_text()


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def lines(snippet):
    return [line for line in snippet.splitlines() if line.strip()]


def test_the_readme_is_short_and_has_two_figures():
    assert len(README.encode()) <= 8000
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 2


@pytest.mark.filterwarnings("ignore:.*no last checkpoint available")  # of a first start
@pytest.mark.slow
def test_ones_own_module_and_data_take_at_most_15_lines(tmp_path, monkeypatch, capsys):
    """With the classes of the two pages on one's own model and data as `my_project`."""
    (snippet,) = snippets(README)
    assert len(lines(snippet)) <= 15
    own = snippets(YOUR_MODEL)[0] + re.search(r"import torch\n.*?(?=\naugmented)", snippets(YOUR_DATA)[0], re.DOTALL)[0]
    (tmp_path / "my_project.py").write_text(own + "\nMyDataset = Scans\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shorter = snippet.replace("max_epochs=200", "max_epochs=2, logger=False")
    shorter = shorter.replace("every_n_rounds=50", "every_n_rounds=1").replace("num_images=1000", "num_images=60")
    exec(compile(shorter, "README.md", "exec"), {})
    assert re.search(r"round=0000[01]\.ckpt", capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore:.*no last checkpoint available")  # of a first start
@pytest.mark.slow
def test_the_quickstart_in_python_is_at_most_15_lines_and_selects_a_checkpoint(tmp_path, monkeypatch, capsys):
    (snippet,) = snippets(QUICKSTART)
    assert len(lines(snippet)) <= 15
    shorter = snippet.replace("max_epochs=1200", "max_epochs=2").replace("num_images=1000", "num_images=20")
    assert shorter != snippet
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter.replace('"cpu"', '"cpu", logger=False'), "quickstart.md", "exec"), {})
    out = " ".join(capsys.readouterr().out.split())
    assert "round=00001.ckpt" in out
    (embedding,) = re.findall(r"embeddings: \[(.+?)\]", (ROOT / "recipes" / "demo.yaml").read_text())
    shown = re.sub("[^a-z0-9_ -]+ *", "", out)
    assert re.search(f"embedding {embedding}.{{,40}} round fid_avg fid_all", shown)  # the demo's table
    assert (tmp_path / "checkpoints" / "mine" / "curves.png").exists()


@pytest.mark.slow
def test_metrics_losses_and_the_shipped_network_work_as_written(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    draws = torch.Generator().manual_seed(0)
    clients = [torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=draws) for _ in range(2)]
    fake = (torch.rand(12, 1, 8, 8, generator=draws) * 2 - 1).requires_grad_()
    names = {"clients": clients, "generated": clients[1], "fake": fake}
    for snippet in [*snippets(FOLDERS), *snippets(STYLEGAN2)]:
        exec(compile(snippet, "docs", "exec"), names)
    assert names["images"].shape == (16, 1, 32, 32)
    assert re.search(r"'fid_avg': tensor.*'fid_all': tensor", capsys.readouterr().out)
    assert fake.grad.abs().max() > 0


def test_the_page_on_losses_makes_a_model_that_knows_what_it_trains_on():
    (snippet,) = snippets(LOSSES)
    names = {}
    exec(compile(snippet, "losses.md", "exec"), names)
    assert names["model"].optimised_on == ["efficientnet-lite0-32"]


def anchors(text):
    """The names that a page's headings are linked by."""
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_what_pages_link_to_or_name_exists():
    for page in PAGES:
        text = page.read_text()
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            name, _, heading = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), (page.name, link)
            assert not heading or heading in anchors(target.read_text()), (page.name, link)
        for path in re.findall(r"recipes/[a-z]\w+\.yaml", text):
            assert (ROOT / path).exists(), (page.name, path)


def test_the_page_of_recipes_names_each_of_them():
    names = {path.stem for path in (ROOT / "recipes").glob("*.yaml")}
    assert names - set(re.findall(r"`(\w+)`", RECIPES)) == set()


def test_the_page_of_recipes_has_the_times_and_scores_of_the_recipes():
    rows = re.findall(r"^\| (`.+?) \|.*\| ([\d., ]+) \(([\d.]+)\) \|.*\| (.+?) \|$", RECIPES, re.MULTILINE)
    assert len(rows) > 10
    for names, scores, real, times in rows:
        for name, score in zip(re.findall(r"`(\w+)`", names), scores.split(", "), strict=True):
            said = time_and_score(ROOT / "recipes" / f"{name}.yaml")
            assert said == f"Time: {times}. FID-all: {score}; real images: {real}."


@pytest.mark.slow
def test_the_table_of_where_to_run_it_has_commands_that_work_and_train_the_same(tmp_path, monkeypatch):
    """As written, but for fewer rounds and images; the third is in tests/flower/test_engine.py."""
    monkeypatch.chdir(ROOT)
    assert [place for place, _ in PLACES] == ["one process", "several processes, GPUs or nodes"]
    shorter = ["--trainer.max_epochs", "1", "--trainer.callbacks.num_images", "50", "--trainer.callbacks.page", "false"]
    shorter += ["--trainer.callbacks.embeddings", "[pixels]"]
    script, found = Imported("tests.training.fit_command"), []
    for number, (_, command) in enumerate(PLACES):
        program, *arguments = shlex.split(command)
        assert program == "fedgen"
        run = [*arguments, *shorter, "--trainer.default_root_dir", str(tmp_path / str(number))]
        if number:
            end(script.start(*run, ranks=2))
        else:
            monkeypatch.setattr(sys, "argv", ["fedgen"])
            assert main(run) == 0
        found.append(torch.load(tmp_path / str(number) / "last.ckpt", weights_only=True)["state_dict"])
    for name, tensor in found[0].items():  # Adam makes steps of the rounding in gradients that are 0
        torch.testing.assert_close(found[1][name], tensor, rtol=0, atol=2e-3)
