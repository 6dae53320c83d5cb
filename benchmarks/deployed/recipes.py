"""What is deployed: the quickstart's recipe, and Flower's minimal app of the same training."""

import copy
import shutil
import statistics
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from benchmarks.deployed import minimal, with_lightning
from tests.flower.runs import IMAGES

ROOT = Path(__file__).parents[2]
MINIMAL = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "minimal"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
[tool.flwr.app.components]
serverapp = "minimal.minimal:server"
clientapp = "minimal.CLIENT:client"
[tool.flwr.app.config]
rounds = 1
clients = 3
cohort = 3
stamps = ""
data = ""
"""


def quickstart(rounds: int, cohort: int, stamps: Path | None = None) -> dict[str, Any]:
    """The quickstart's recipe for so many clients in each round, without scores."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "recipes" / "quickstart.yaml").read_text())
    trainer, data = found["trainer"], found["data"]["init_args"]
    trainer |= {"max_epochs": rounds, "logger": False, "callbacks": []}
    if stamps is not None:
        trainer["callbacks"] = [{"class_path": "benchmarks.deployed.stamps.Stamps", "init_args": {"path": str(stamps)}}]
    trainer["strategy"]["init_args"]["cohort_size"] = cohort
    data["data"] = copy.deepcopy(IMAGES)
    return found


def seconds_of(stamps: Path) -> float:
    """A round's median seconds, of those after the first."""
    times = [float(line) for line in stamps.read_text().split()]
    return statistics.median(after - before for before, after in list(pairwise(times))[1:])


def write_minimal(folder: Path, client: ModuleType = minimal) -> None:
    """Writes the minimal app, with the clients of one of its two modules."""
    (folder / "minimal").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(MINIMAL.replace("CLIENT", client.__name__.rpartition(".")[2]))
    (folder / "minimal" / "__init__.py").write_text("")
    for module in (minimal, with_lightning):
        shutil.copy(str(module.__file__), folder / "minimal")
