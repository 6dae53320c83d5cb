"""The page on one's own model and embedding runs as written, only shorter."""

import re
import sys
from pathlib import Path

import pytest

from fedgen.__main__ import main
from fedgen.evaluation import Run

PAGE = (Path(__file__).parent.parent / "docs" / "your-model-and-embedding.md").read_text()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the page's two files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for language, name in (("python", "my_kit.py"), ("yaml", "my_recipe.yaml")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        lines = [line for line in block.splitlines() if line.strip()]
        assert len(lines) <= 20
        Path(name).write_text(block)
    yield tmp_path
    sys.modules.pop("my_kit", None)


def test_a_model_and_an_embedding_of_ones_own_train_and_score_from_a_recipe(here, capsys):
    shorter = ["--trainer.max_epochs", "2", "--trainer.callbacks.num_images", "60", "--trainer.logger", "false"]
    assert main(["fit", "--config", "my_recipe.yaml", *shorter]) == 0
    assert "embedding MyEmbedding" in " ".join(capsys.readouterr().out.split())
    again = "[{class_path: my_kit.MyEmbedding, name: wider, init_args: {width: 24}}]"
    assert main(["evaluate", "checkpoints/my_recipe", again, "--num_images", "60"]) == 0
    records = Run("checkpoints/my_recipe").records
    assert {record.embedding for record in records} == {"MyEmbedding", "pixels", "wider"}
