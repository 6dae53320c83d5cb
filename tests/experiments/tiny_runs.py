"""Run folders as `fedgen fit` leaves them, made in a moment: a tiny generator over digits, its weights at random."""

import gc
import json
import warnings
from pathlib import Path

import torch
import yaml

from fedgen.__main__ import main
from fedgen.evaluation.names import checkpoint_name
from fedgen.evaluation.runs.rebuild import RECIPE, rebuild
from fedgen.experiments.engine import arm_panels, study, trainings
from fedgen.experiments.engine.trainings import Training
from fedgen.seeds import isolated
from tests.launched import in_fork, look_at_classes

ROOT = Path(__file__).parents[2]
TINY = {
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 4,
        "strategy": {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": {"communication_interval": 2}},
    },
    "model": {
        "class_path": "fedgen.models.WGANGP",
        "init_args": {
            "generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 4}},
            "critic": {"class_path": "fedgen.models.networks.SmallCritic", "init_args": {"width": 4}},
        },
    },
    "data": {
        "class_path": "fedgen.clients.FederatedDataModule",
        "init_args": {
            "data": {"class_path": "fedgen.data.Digits"},
            "partition": {"class_path": "fedgen.clients.partitions.ByClass"},
        },
    },
}
# runs' pages, tables and grids take as long as such a training, and are tested elsewhere
QUIET = {"page": False, "report": False, "grid": 0}
# by a recipe's model the tensors that it is born with: rebuilding a run takes longer than scoring its images
BORN: dict[str, dict[str, torch.Tensor]] = {}


def fit(arguments: list[str], output) -> int:
    """`fedgen fit` in a fork of this process, as `fit_process.run_fit` has it of a server that imports all anew."""

    def train() -> int:
        warnings.simplefilter("default")  # which pytest made errors
        gc.disable()  # it would look through all that this process has imported
        return main(["fit", *arguments])

    return in_fork(train, output.fileno())


def train_in_forks(monkeypatch) -> None:
    """Trainings are forks of this process from here on, which has imported and looked up what each would."""
    look_at_classes(ROOT / "recipes/quickstart.yaml")
    monkeypatch.setattr(trainings, "run_fit", fit)


def draw_unwritten(monkeypatch) -> list[Path]:
    """Figures are drawn and not written from here on, which takes most of their time; returns where they would be."""
    drawn: list[Path] = []
    for module in (study, arm_panels):
        monkeypatch.setattr(module, "save_picture", lambda figure, path: drawn.append(path) or path)
    return drawn


def write_recipe(folder: Path, name: str = "quickstart.yaml") -> Path:
    """The folder, with the tiny recipe in it under a name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(TINY))
    return folder


def settings_of(training: Training) -> dict[str, str]:
    """The arguments of `fedgen fit` by name."""
    return dict(zip(training.settings[::2], training.settings[1::2]))


def untrained(training: Training, rounds: tuple[int, ...] = (1, 3)) -> Path:
    """The run folder of a training that never was: its recipe, and checkpoints with weights of the training's seed."""
    given = settings_of(training)
    recipe = yaml.safe_load(training.recipe.read_text())
    own = {key: float(given[f"--data.init_args.{key}"]) for key in ("held_out",) if f"--data.init_args.{key}" in given}
    recipe["data"]["init_args"] |= {"seed": int(given["--data.init_args.seed"]), **own}
    training.place.mkdir(parents=True)
    (training.place / RECIPE).write_text(yaml.safe_dump({**recipe, "seed_everything": training.seed}))
    born = BORN.setdefault(json.dumps(recipe["model"]), {})
    if not born:
        with isolated():
            torch.manual_seed(0)
            born |= rebuild(training.place)[0].state_dict()
    for round in rounds:
        draws = torch.Generator().manual_seed(1000 * training.seed + round)
        state = {
            name: value + 0.05 * torch.randn(value.shape, generator=draws) if value.is_floating_point() else value
            for name, value in born.items()
        }
        torch.save({"state_dict": state, "epoch": round}, training.place / checkpoint_name(round))
    return training.place
