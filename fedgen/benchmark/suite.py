"""Suites as they are declared: cells, each a recipe to train with every seed, and the questions that they answer."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedgen.benchmark.parts import ALGORITHMS, AVERAGING, DATA, GENERATORS, PARTITIONS, DataPart, Part
from fedgen.experiments.engine.recipe_file import component
from fedgen.experiments.engine.trainings import Control

SPLIT = "report"  # held-out images of the clients, which no training sees: who learns images by heart gains nothing
HELD_OUT = 0.5  # of each client's images, so that there are as many to score against as to train on
DATA_SEED = 0  # of who has what and of what is held out: the same for all seeds and entries
NUMBER, BESIDE = "fid", ("recall", "coverage")
"""the score that the benchmark's number is made of, and those that are shown beside it"""
AUDIT = ("memorisation", "authenticity", "fld", "mifid")
"""of the images that runs train on: whether generated ones are copies"""
PAIRS = 200  # of a client's training and held-out images that membership inference takes at most
CACHE = "checkpoints/features"  # of real images
Slot = Literal["model", "data", "aggregator", "client_algorithm", "compression", "server_optimizer"]
"""place in a recipe that a class of one's own may take: the model, the data set, or an argument of the strategy"""


@dataclass(frozen=True)
class Budget:
    """The training that every cell of a task gets.

    Args:
        rounds: of communication.
        interval: local iterations of a client in a round.
        cohort: clients of a round; all if None.
        batch_size: images of an iteration.
        accelerator: Lightning's name of the device.
    """

    rounds: int
    interval: int
    cohort: int | None = None
    batch_size: int = 32
    accelerator: str = "cpu"


@dataclass(frozen=True)
class OwnImages:
    """The images of somebody's own data set, and how they are dealt and counted.

    Args:
        image_size: side in pixels.
        channels: 1 grey, 3 colour.
        num_images: that a generator draws.
        partition: a name in `PARTITIONS`.
        num_clients: whom it gives.
    """

    image_size: int
    channels: int
    num_images: int
    partition: str
    num_clients: int


@dataclass(frozen=True)
class OwnClass:
    """A class that somebody enters in the place of a suite's generator, data set or algorithm.

    Args:
        class_path: "my_package.MyEntry".
        slot: its place in the recipe.
        takes: which of a cell's "image_size" and "channels" its constructor wants.
        images: of a data set; None of all others.
    """

    class_path: str
    slot: Slot
    takes: tuple[str, ...] = ()
    images: OwnImages | None = None


@dataclass(frozen=True)
class Cell:
    """One data set, partition, generator and algorithm.

    Args:
        data: a name in `DATA`.
        partition: one in `PARTITIONS`.
        generator: one in `GENERATORS`.
        algorithm: one in `ALGORITHMS`.
        budget: of its training.
        own: a class in the place of the generator, of the data and the partition, or of the algorithm's part.
    """

    data: str
    partition: str
    generator: str
    algorithm: str
    budget: Budget
    own: OwnClass | None = None

    @property
    def task(self) -> str:
        """The data and the partition, whose cells are compared: "digits/by-class"."""
        data = self.data if self.own is None or self.own.images is None else self.own.class_path
        return f"{data}/{self.dealt_by}"

    @property
    def dealt_by(self) -> str:
        """The partition by name: the cell's, or that of an own data set's images."""
        return self.partition if self.own is None or self.own.images is None else self.own.images.partition

    @property
    def data_part(self) -> DataPart:
        """The data set, and how generators of it are measured."""
        if self.own is None or self.own.images is None:
            return DATA[self.data]
        images = self.own.images
        network = "efficientnet-lite0" if images.image_size >= 32 else "efficientnet-lite0-32"
        recipe = component(self.own.class_path)
        return DataPart(recipe, images.image_size, images.channels, (network, "pixels"), images.num_images)

    @property
    def parts(self) -> tuple[str, str]:
        """The generator and the algorithm, by name or class path."""
        if self.own is None or self.own.slot == "data":
            return self.generator, self.algorithm
        own = self.own.class_path
        return (own, self.algorithm) if self.own.slot == "model" else (self.generator, own)

    @property
    def name(self) -> str:
        """All four, "digits/by-class/wgan-gp/fedavg"."""
        return "/".join([self.task, *self.parts])

    @property
    def slug(self) -> str:
        """The name as that of a file, without a suffix."""
        return self.name.replace("/", "-")

    @property
    def beside(self) -> str:
        """The name of the suite's cell that one of an own class stands beside; the cell's own otherwise."""
        return replace(self, own=None).name

    @property
    def control(self) -> Control | None:
        """The control of `fedgen fit` that it is, if it is one."""
        return ALGORITHMS[self.algorithm].control

    def recipe(self) -> dict[str, Any]:
        """The whole recipe but for the seed."""
        data = self.data_part
        given = {"image_size": data.image_size, "channels": data.channels}
        model = GENERATORS[self.generator].recipe(data.image_size, data.channels)
        own = {} if self.own is None else {self.own.slot: component(self.own.class_path)}
        if self.own is not None and self.own.takes:
            own = {self.own.slot: component(self.own.class_path, **{name: given[name] for name in self.own.takes})}
        federation = component(
            "fedgen.clients.FederatedDataModule",
            data=data.recipe,
            partition=PARTITIONS[self.dealt_by],
            batch_size=self.budget.batch_size,
            held_out=HELD_OUT,
            seed=DATA_SEED,
        )
        trainer = self._trainer({slot: part for slot, part in own.items() if slot not in ("model", "data")})
        return {"threads": 1, "trainer": trainer, "model": own.get("model", model), "data": federation}

    def _trainer(self, own: dict[str, Part]) -> dict[str, Any]:
        """Return the recipe's part on training, with what an own class changes of the strategy."""
        data, budget = self.data_part, self.budget
        evaluation = component(
            "fedgen.callbacks.FederatedEvaluation",
            every_n_rounds=budget.rounds,
            num_images=data.num_images,
            embeddings=list(data.embeddings),
            scores=[NUMBER, *BESIDE, *AUDIT],
            grid=64,
            report=False,  # nor a figure: the entry tells
            page=False,
            cache_folder=CACHE,
        )
        strategy = {
            "communication_interval": budget.interval,
            "cohort_size": budget.cohort,
            "optimizer_state": "average",
            **ALGORITHMS[self.algorithm].strategy,
            **own,
        }
        return {
            "accelerator": budget.accelerator,
            "max_epochs": budget.rounds,
            "logger": False,
            "strategy": component("fedgen.federated.FedAvgStrategy", **strategy),
            # the costs first: what a round takes is read before it is scored
            "callbacks": [component("fedgen.benchmark.run_costs.RunCosts"), evaluation],
        }


@dataclass(frozen=True)
class SuiteQuestion:
    """A question that cells of one task answer.

    Args:
        text: the question.
        cells: names of the cells that are compared.
    """

    text: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    """Cells that are trained with the same seeds.

    Args:
        name: of the suite.
        about: a sentence on its size.
        seeds: of every cell.
        cells: in the order in which they are trained.
        questions: that they answer.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    questions: tuple[SuiteQuestion, ...]

    def cell(self, name: str) -> Cell | None:
        """The suite's cell of a name; None if it has none."""
        return next((cell for cell in self.cells if cell.name == name), None)

    def cells_with(self, own: OwnClass) -> list[Cell]:
        """The cells of an own class: a generator's stand beside one of each task, an algorithm's beside all of FedAvg.

        A task's first cell of FedAvg gives the generator its budget. A data set gets each generator and algorithm that
        some cell has together, all with the budget of the suite's first cell, whose cohorts are all clients where there
        are no more.
        """
        if own.images is not None:
            pairs = {cell.parts: cell for cell in reversed(self.cells)}
            budget = self.cells[0].budget
            if budget.cohort is not None and budget.cohort >= own.images.num_clients:
                budget = replace(budget, cohort=None)
            return [replace(cell, own=own, budget=budget) for cell in reversed(pairs.values())]
        averaged = [cell for cell in self.cells if cell.algorithm == AVERAGING]
        if own.slot == "model":
            averaged = list({cell.task: cell for cell in reversed(averaged)}.values())[::-1]
        return [replace(cell, own=own) for cell in averaged]
