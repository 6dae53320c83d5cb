"""Runs whose generators are scored on clients that train and on clients that never do: arms over paired seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedgen.clients import FederatedDataModule
from fedgen.evaluation import Run, ScoreRecord
from fedgen.evaluation.runs.recipe_data import load_federation
from fedgen.experiments.engine.arms.arms_choice import ArmsChoice
from fedgen.experiments.engine.recipe_file import component, fingerprint, read_recipe, rounds_of, start_of
from fedgen.experiments.engine.trainings import Arm, Training, arguments

EMBEDDING = "efficientnet-lite0-32"
CALLBACK = "fedgen.callbacks.FederatedEvaluation"
FORM = 2  # of the numbers in results.json; those of another form are refused, and made again from the runs at once


@dataclass(frozen=True)
class GapChoice(ArmsChoice):
    """Options common to experiments on generalisation; its fields are options of their commands.

    Args:
        recipe: with a `split` of its data: clients that never train.
        rounds: of every run; the recipe's by default.
        seeds: repetitions, each with another split, other draws and other first weights, the same for all arms.
        embedding: in whose features generated images are scored.
        weights: a local file of its weights.
        num_images: generated in an evaluation.
        checks: evaluations of a run, evenly spaced.
        runs: folder of the run folders.
        quick: a minute or two, to see that it runs: one seed, a hundredth of the rounds, few images, two checks.

    Raises:
        ValueError: for numbers out of range.
        FileNotFoundError: if the recipe is not there.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "checks": 2, "num_images": 60}
    APART: ClassVar[tuple[str, ...]] = ("weights",)
    LEAST: ClassVar[Mapping[str, int]] = {**ArmsChoice.LEAST, "checks": 1, "num_images": 10}
    scores: ClassVar[tuple[str, ...]] = ("loss", "kid", "fid")

    recipe: Path = Path("recipes/ddpm_style_shift.yaml")
    rounds: int | None = None
    embedding: str = EMBEDDING
    weights: Path | None = None
    num_images: int = 500
    checks: int = 4
    runs: Path = Path("checkpoints/runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        split = ((read_recipe(self.recipe).get("data") or {}).get("init_args") or {}).get("split")
        if not split:
            raise ValueError(f"{self.recipe} has no data.init_args.split, so that every client trains; give it one")

    @cached_property
    def total(self) -> int:
        """Rounds of an arm whose multiple is 1."""
        rounds = self.rounds or rounds_of(self.recipe)
        return max(self.checks, rounds // 100) if self.quick else rounds

    def resolved(self) -> dict[str, Any]:
        """Return what stands for the recipe, the rounds and the form of the numbers."""
        return {"data": self.recipe.stem, "recipe": start_of(self.recipe), "rounds": self.total, "form": FORM}

    def federation(self, arm: Arm, seed: int | None = None) -> FederatedDataModule:
        """An arm's clients in a repetition, the first one by default.

        Raises:
            ValueError: for data, a partition or a split that cannot be dealt, naming the arm.
        """
        own = {key: value for key, value in arm.settings.items() if key.startswith("data.")}
        seed = self.seed if seed is None else seed
        try:
            data = load_federation(self.recipe, [*arguments(own), f"--seed_everything={seed}"])
            _ = data.clients
        except ValueError as error:
            raise ValueError(f"{arm.name or dict(arm.settings)}: {error}") from error
        return data

    def training(self, arm: Arm, seed: int) -> Training:
        """An arm's run of a repetition."""
        rounds = max(1, round(self.total * arm.rounds))
        evaluation = {
            "every_n_rounds": max(1, rounds // self.checks),
            "num_images": self.num_images,
            "embeddings": [{"name": self.embedding, **({"weights": str(self.weights)} if self.weights else {})}],
            "scores": list(self.scores),
            "controls": True,
            "grid": 0 if self.quick else 64,
        }
        given = {
            "trainer.max_epochs": rounds,
            "trainer.callbacks": [component(CALLBACK, **evaluation)],
            "trainer.logger": False,
            **arm.settings,
        }
        # by its settings and not by the arm's name: experiments share runs
        own = fingerprint(arm.settings)[:8] if arm.settings else "plain"
        parts = [self.recipe.stem, start_of(self.recipe), own, f"rounds{rounds}", f"checks{self.checks}"]
        parts += [f"images{self.num_images}", self.embedding, f"seed{seed}"]
        name = "-".join(parts).replace("/", "_")
        return Training(self.recipe, self.runs / name, seed, arguments(given), arm.control)

    def records(self, arm: Arm, seed: int) -> list[ScoreRecord]:
        """Read what a run's evaluations found."""
        return Run(self.training(arm, seed).place).records
