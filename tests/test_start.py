"""Commands import only what they need: help no torch, and what is checked or ranked no Lightning."""

import ast
import resource
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedgen.__main__ import COMMANDS
from fedgen.evaluation import PRESETS, ScoreRecord, append_records
from fedgen.evaluation.names import NAMES
from tests.reports.folders import write_run

# of Lightning comes torchmetrics, and with that all the others
HEAVY = {
    "lightning",
    "torchmetrics",
    "torchvision",
    "diffusers",
    "sklearn",
    "scipy",
    "matplotlib",
    "transformers",
    "flwr",
}
ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys
from fedgen.__main__ import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
sys.exit(status)
"""
HELP = """
import sys
from fedgen.__main__ import main
for arguments in {asked}:
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code
print(*{{name.split(".")[0] for name in sys.modules}}, file=sys.stderr)
"""


def run(*arguments, folder=ROOT):
    """What a command returns, prints, says at the end of its errors, and the packages that it has imported."""
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    *errors, imported = result.stderr.splitlines()
    return result.returncode, result.stdout, "\n".join(errors), set(imported.split())


@pytest.fixture
def folder(tmp_path):
    """A run folder with the scores of two rounds."""
    own = {"standard_error": 0.1, "split": "train", "embedding": "pixels", "embedding_fingerprint": "0"}
    shared = {"reference": "digits/train", "num_generated": 100, "num_clients": 2, "seed": 0}
    append_records(
        tmp_path / "scores.jsonl",
        [
            ScoreRecord("fid", aggregate, value, round=round, **own, **shared)
            for round, value in ((0, 3.0), (1, 2.0))
            for aggregate in ("avg", "all")
        ],
    )
    return tmp_path


@pytest.mark.slow
def test_a_limit_on_files_sizes_is_named():
    """Python's temporary files say of it that there is no folder for them."""
    command = [sys.executable, "-m", "fedgen", "fit", "quickstart"]
    options = {"preexec_fn": partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0)), "cwd": ROOT}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert ended.returncode == 2
    assert "more than 0 bytes here: ulimit -f" in ended.stderr


def test_help_imports_no_torch():
    asked = [[name, option] for name in COMMANDS for option in ("--help", "--help-all")]
    asked.remove(["fit", "--help-all"])  # that one has Lightning's options
    asking = HELP.format(asked=asked)
    result = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, cwd=ROOT, timeout=300)
    *errors, imported = result.stderr.splitlines()
    assert (result.returncode, errors) == (0, [])
    said = Counter(usage.split()[0] for usage in result.stdout.split("usage: fedgen ")[1:])
    assert said >= Counter(name for name, _ in asked)
    imported = set(imported.split())
    assert imported & (HEAVY | {"torch"}) == set()


def test_a_choice_among_checkpoints_imports_no_torch(folder):
    status, shown, errors, imported = run("select", folder)
    assert (status, errors) == (0, "")
    assert "fid_all" in shown
    assert imported & (HEAVY | {"torch"}) == set()


def test_a_page_of_a_run_imports_no_torch(tmp_path):
    status, _, errors, imported = run("report", write_run(tmp_path / "run"))
    assert (status, errors) == (0, "")
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert imported & (HEAVY | {"torch"}) == set()


CHECKED = [
    (["evaluate", "--generated", "none", "--clients", "nobody"], "there is no nobody"),
    (["evaluate", "nowhere", "pixels"], "nowhere/recipe.yaml does not exist"),
    (["clients", "nowhere.yaml"], "nowhere.yaml does not exist"),
    (["fit", "nowhere.yaml"], "there is no recipe nowhere.yaml"),
    (["fit", "--config=nowhere", "--trainer.max_epochs", "3"], "there is no recipe nowhere;"),
    (["fit", "modle.yaml"], "modle.yaml: Option 'modle' is not accepted; did you mean 'model'?"),
    (["convert", "empty.pkl", "empty.safetensors"], "empty.pkl is empty"),
    (["benchmark", "run", "nowhere"], "there is no suite 'nowhere'"),
    (["benchmark", "run", "tiny", "--cells", "nowhere"], "--cells: there is no 'nowhere'"),
]
EACH = """
import io, sys
from contextlib import redirect_stderr
from fedgen.__main__ import main
found = []
for arguments in {commands}:
    with redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
    found.append((status, errors.getvalue(), {{name.split(".")[0] for name in sys.modules}} & {heavy}))
print(found)
"""


@pytest.mark.slow
def test_what_is_given_is_checked_without_lightning(tmp_path):
    """By one process, one command after the other."""
    (tmp_path / "empty.pkl").touch()
    (tmp_path / "modle.yaml").write_text("modle: 1")
    code = EACH.format(commands=[arguments for arguments, _ in CHECKED], heavy=HEAVY)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert result.returncode == 0, result.stderr
    found = ast.literal_eval(result.stdout.splitlines()[-1])
    for (arguments, said), (status, errors, imported) in zip(CHECKED, found, strict=True):
        assert status == 2, arguments
        assert said in errors, arguments
        assert imported == set(), arguments


@pytest.mark.slow
def test_stored_features_are_scored_without_lightning_and_matplotlib_draws(tmp_path):
    for name, shift in (("ours", 0.0), ("one", 1.0), ("two", 2.0)):
        features = np.random.default_rng(0).normal(shift, 1.0, (20, 4)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", features=features)
    status, shown, errors, imported = run(
        "evaluate", "--generated", "ours.npz", "--clients", "one.npz", "two.npz", folder=tmp_path
    )
    assert (status, errors) == (0, "")
    assert "fid" in shown
    assert imported & HEAVY - {"matplotlib", "scipy"} == set()


def test_the_names_of_presets_that_options_list_are_those_of_presets():
    assert {name: preset.name for name, preset in PRESETS.items()} == {name: name for name in NAMES}
