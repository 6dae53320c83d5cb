"""The entries in docs/entries, and the page that shows them."""

import re
from pathlib import Path

import pytest
import torch

from fedgen.__main__ import main
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.leaderboard import read_all
from fedgen.benchmark.suite import SMALL
from fedgen.experiments.engine.trainings import fingerprint
from fedgen.federated import Scaffold
from fedgen.federated.server_model import trained_parameters
from tests.benchmark.test_suite import build

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "entries" / "small"


@pytest.mark.slow
def test_every_published_entry_is_one_of_the_suite_and_shows_what_it_claims():
    entries, refused = read_all([RESULTS])
    assert refused == []
    cells = {cell.name: cell for cell in SMALL.cells}
    for entry in entries:
        assert entry.form["recipe_hash"] == fingerprint(cells[entry.name].recipe())
        assert entry.form["seeds"] == list(SMALL.seeds)
        assert not (entry.form["provenance"]["commit"] or "").endswith("+")


def test_scaffolds_clients_sent_a_variate_of_each_trained_parameter_beside_what_averaging_sends():
    with torch.device("meta"):
        model = build(SMALL.cell("mnist5k/by-class/wgan-gp/scaffold").recipe()["model"])
    beside = Scaffold().num_bytes(dict(enumerate(trained_parameters(model, ()))))
    files = (RESULTS / f"mnist5k-by-class-wgan-gp-{name}.json" for name in ("scaffold", "fedavg"))
    scaffold, averaging = ([run["costs"]["message_bytes"] for run in read_entry(file).form["runs"]] for file in files)
    assert [one - other for one, other in zip(scaffold, averaging, strict=True)] == 3 * [beside]


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["benchmark", "table", str(RESULTS), "--output", str(tmp_path / "leaderboard.html")]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines() if not line.startswith("leaderboard: ")]
    page = (DOCS / "leaderboard.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert [line.rstrip() for line in shown.splitlines()] == printed, (
        "docs/leaderboard.md: put there what `COLUMNS=100 fedgen benchmark table docs/entries/small` prints"
    )
    assert f"{len(list(RESULTS.glob('*.json')))} of {len(SMALL.cells)} cells" in page
