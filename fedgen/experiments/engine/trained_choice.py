"""Options common to experiments on trained checkpoints, and the runs and scorers that come of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedgen.embeddings import load_embedding
from fedgen.evaluation.panels import require_device
from fedgen.experiments.engine.choice import Choice, at_least
from fedgen.experiments.engine.recipe_file import fingerprints
from fedgen.experiments.engine.scored_checkpoints import Scorers, Trained
from fedgen.experiments.engine.trained_runs import (
    Plan,
    Protocol,
    Series,
    TrainedRun,
    all_runs,
    protocol_of,
    require_each_once,
    require_intervals,
    runs_folder,
    train_runs,
)


@dataclass(frozen=True)
class TrainedChoice(Choice):
    """Options common to experiments on trained checkpoints; its fields are options of their commands.

    Args:
        data: digits, mnist5k, fashion-mnist or cifar10; each has its recipe.
        embedding: in whose features to score; the data's own by default: pixels for digits, or its network
            (efficientnet-lite0-32) where images of one class are scored too.
        weights: a local file of its weights.
        seeds: runs with each interval; the data's own number by default: 3, of mnist5k and fashion-mnist 1. Of a DDPM
            at most 1 where images are larger than digits.
        intervals: communication intervals of the WGAN-GP, at equal local iterations; the data's own by default.
        checkpoints: about how many of each run are kept and scored; the data's own number by default: 20, of
            fashion-mnist 10, of a DDPM at most 8 or 10 on a CPU. Another number is another training.
        client_images: of each client's training images at most, to score against; the data's own number by default.
        components: principal components of the data's test split, where it has one, for a second FID.
        dealings: IID controls.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        parallel: runs at once.
        device: where to sample and embed, e.g. cuda.
        seed: of the first training, the clients' held-out images, generated images and dealings.
        quick: one seed, a twentieth of the rounds, five checkpoints, one IID control, few images.
        by_network: whether the data's own embedding is its network.
        output: of the experiment, or None.

    Raises:
        ValueError: for unknown data, numbers out of range, or a device that is not there.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "checkpoints": 5, "dealings": 1}
    APART: ClassVar[tuple[str, ...]] = ("by_network",)

    data: str = "digits"
    embedding: str | None = None
    weights: Path | None = None
    seeds: int | None = None
    intervals: tuple[int, ...] | None = None
    checkpoints: int | None = None
    client_images: int | None = None
    components: int = 64
    dealings: int = 3
    runs: Path | None = None
    recipes: Path = Path("recipes")
    parallel: int = 1
    device: str = "cpu"
    by_network: bool = False
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, dealings=self.dealings)
        at_least(1, components=self.components)
        at_least(2, client_images=self.client_images)
        require_intervals(self.protocol.series[0].intervals)
        require_device(self.device)
        _ = self.plan  # refuses its own numbers

    @cached_property
    def protocol(self) -> Protocol:
        """The data's protocol, with what the options change."""
        own = protocol_of(self.data)
        first = own.series[0] if self.intervals is None else replace(own.series[0], intervals=tuple(self.intervals))
        return replace(
            own,
            series=(first, *own.series[1:]),
            embedding=self.embedding or (own.network if self.by_network else own.embedding),
            client_images=self.client_images or own.client_images,
            seeds=own.seeds if self.seeds is None else self.seeds,
            checkpoints=own.checkpoints if self.checkpoints is None else self.checkpoints,
        )

    @cached_property
    def plan(self) -> Plan:
        """The training of the series."""
        return Plan(
            tuple(range(self.seed, self.seed + self.protocol.seeds)),
            self.protocol.checkpoints,
            self.seed,
            runs_folder(self.runs, self.output),
            self.recipes,
            self.parallel,
            self.quick,
        )

    def resolved(self, kinds: Sequence[str] | None = None) -> dict[str, Any]:
        """Return what the data's protocol says, with what the options change, and the recipes of all kinds or of some.

        Raises:
            FileNotFoundError: if a recipe is not there.
            ValueError: as of `series`.
        """
        protocol = self.protocol
        own = ("embedding", "seeds", "checkpoints", "held_out", "client_images")
        return {name: getattr(protocol, name) for name in own} | {
            "intervals": list(protocol.series[0].intervals),
            "recipes": fingerprints(self.recipes / one.recipe for one in self.series(kinds)),
        }

    def series(self, kinds: Sequence[str] | None = None) -> list[Series]:
        """The data's series, or those of some kinds, in the data's order.

        Raises:
            ValueError: for none, one that the data has not, or one twice.
        """
        known = [one.kind for one in self.protocol.series]
        wanted = known if kinds is None else [kind.lower() for kind in kinds]
        require_each_once("kinds", wanted, known)
        return [one for one in self.protocol.series if one.kind in wanted]

    def planned(self, kinds: Sequence[str] | None = None) -> list[TrainedRun]:
        """The runs of all series, or of those of some kinds.

        Raises:
            FileNotFoundError: if a recipe is not there.
            ValueError: as of `series`.
        """
        return all_runs(self.protocol, self.plan, self.series(kinds))

    def train(self, runs: list[TrainedRun]) -> Trained:
        """Trains what is missing of the runs; then they, and the clients they were trained with.

        Raises:
            ChildProcessError: if a training fails.
        """
        network = load_embedding(self.protocol.embedding, weights=self.weights).to(self.device)
        train_runs(runs, self.plan)
        return Trained(runs, network, self.seed, self.protocol.client_images, self.device)

    def scorers(self, trained: Trained, kernels: tuple[str, ...] = ("kid",)) -> Scorers:
        """The clients' side of the scores."""
        projection = trained.projection(self.components)
        return Scorers(trained.federation(), self.dealings, self.seed, kernels, projection)
