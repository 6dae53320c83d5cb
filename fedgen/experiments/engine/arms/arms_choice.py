"""Options common to experiments that train arms over paired seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from fedgen.experiments.engine.choice import Choice
from fedgen.experiments.engine.trained_runs import runs_folder


@dataclass(frozen=True)
class ArmsChoice(Choice):
    """Options common to experiments that train arms over paired seeds; its fields are options of their commands.

    Args:
        seeds: runs of each arm, with seeds from `seed` on, the same for all arms.
        parallel: runs at once.
        quick: a minute or two, to see that it runs.

    Raises:
        ValueError: for a number below its least.
    """

    LEAST: ClassVar[Mapping[str, int]] = {  # of fields that are numbers, or None, where an experiment has them
        "seeds": 1, "parallel": 1, "rounds": 1, "num_images": 2,
    }  # fmt: skip

    seeds: int = 3
    parallel: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (field.name for field in fields(self) if field.name in self.LEAST):
            if (value := getattr(self, name)) is not None and value < self.LEAST[name]:
                raise ValueError(f"{name}={value}: must be at least {self.LEAST[name]}")

    @property
    def seeds_of(self) -> range:
        """The repetitions' seeds."""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class ScoredArmsChoice(ArmsChoice):
    """Options common to experiments whose arms are scored in an embedding that nothing was trained on.

    Args:
        embedding: that nothing was trained on, to score in besides the one that was.
        weights: a local file of its weights.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        output: of the experiment, or None.
    """

    embedding: str | None = None
    weights: Path | None = None
    runs: Path | None = None
    recipes: Path = Path("recipes")
    output: Path | None = None

    @property
    def folder(self) -> Path:
        """Folder of the run folders."""
        return runs_folder(self.runs, self.output)
