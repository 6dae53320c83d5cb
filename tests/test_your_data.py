"""The code of docs/your-data.md runs as written, only shorter."""

import re
from pathlib import Path

import pytest
import torch

import fedgen

SNIPPETS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / "your-data.md").read_text(), re.DOTALL
)


@pytest.mark.filterwarnings("ignore:.*no last checkpoint available")  # of a first start
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_own_dataset_with_augmentation_takes_at_most_20_lines(tmp_path, monkeypatch, workers):
    lines = [line for line in SNIPPETS[0].splitlines() if line.strip()]
    own = lines[lines.index("class Scans(torch.utils.data.Dataset):") :]
    assert len(own) <= 20
    shorter = SNIPPETS[0].replace("max_epochs=100", "max_epochs=2, enable_progress_bar=False, logger=False")
    shorter = shorter.replace("every_n_rounds=10", "every_n_rounds=1").replace("num_images=1000", "num_images=50")
    shorter = shorter.replace("num_workers=2", f"num_workers={workers}").replace(
        "FedAvgStrategy(16)", "FedAvgStrategy(2)"
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(shorter, "docs/your-data.md", "exec"), names)
    (evaluation,) = (each for each in names["callbacks"] if isinstance(each, fedgen.FederatedEvaluation))
    found = {record.split for record in evaluation.evaluator.evaluate(noise).records}
    assert "train" in found
    assert len(names["data"].clients) == 10


def noise(count, draws):
    return torch.rand(count, 1, 8, 8, generator=draws) * 2 - 1


def test_the_other_snippets_are_python():
    assert len(SNIPPETS) == 4
    for snippet in SNIPPETS:
        compile(snippet, "docs/your-data.md", "exec")
    assert {"FederatedDataModule", "FederatedEvaluation", "FedAvgStrategy", "WGANGP"} <= set(fedgen.__all__)
