"""The GANs of `fid_loss_gans`: three networks without and with FID as a second loss, in three forms, on two data sets.

The forms differ by whose moments FID is taken of: the batch's, as in the FastFID paper, a queue's, or an exponential
average's. Queue and average remember about as many images. All weigh as much as the adversarial loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedgen.experiments.engine.arms.arms_choice import ScoredArmsChoice
from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.engine.recipe_file import component, embedded_loss, fingerprints, rounds_of
from fedgen.experiments.engine.trained_runs import require_each_once
from fedgen.experiments.engine.trainings import Training, kept_rounds
from fedgen.experiments.engine.unrelated import require_unrelated

WITHOUT, MINIBATCH, QUEUE, EMA = "without", "minibatch", "queue", "ema"
FORMS = (MINIBATCH, QUEUE, EMA)
QUICK_IMAGES = 300  # of each kind


@dataclass(frozen=True)
class GANPair:
    """A pair of networks with their game; its recipes are named after it: "sngan_digits.yaml", "sngan_mnist5k.yaml".

    Args:
        title: what it is called.
        picture_rounds: of 20 iterations each, on MNIST-5k, where its recipe trains up to twice as long.
    """

    title: str
    picture_rounds: int


NETWORKS = {"sngan": GANPair("SNGAN", 200), "dcgan": GANPair("DCGAN", 300), "sagan": GANPair("SAGAN", 150)}


@dataclass(frozen=True)
class Bench:
    """A data set that they are trained on, and FID's settings there.

    Args:
        data: as recipes are named.
        title: what it is called.
        optimised: the embedding that FID is a loss in.
        decay: of the exponential average, a batch of 32: at 0.9 about 600 images count, at 0.98 about 3,200.
        queue: images in the queue, as many.
        refresh_every: see `FastFIDLoss`.
    """

    data: str
    title: str
    optimised: str
    decay: float
    queue: int
    refresh_every: int = 1


DIGITS = Bench("digits", "digits", "pixels", 0.9, 608)
# 1,280 features: more images must count than that, and roots are dear
PICTURES = Bench("mnist5k", "MNIST 5k", "efficientnet-lite0-32", 0.98, 3168, refresh_every=16)
BENCHES = (DIGITS, PICTURES)


def losses_of(arm: str, bench: Bench) -> list[dict[str, Any]] | None:
    """`generator_losses` of an arm, as recipes have it."""
    if arm == WITHOUT:
        return None
    moments = {
        QUEUE: component("fedgen.losses.QueueMoments", size=bench.queue),
        EMA: component("fedgen.losses.EMAMoments", decay=bench.decay),
    }
    options = {"moments": moments[arm], "refresh_every": bench.refresh_every} if arm in moments else {}
    fid, weight = component("fedgen.losses.FastFIDLoss", **options), component("fedgen.losses.AdaptiveWeight")
    return embedded_loss(fid, [bench.optimised], weight=weight, cache=str(CACHE))


@dataclass(frozen=True)
class GanChoice(ScoredArmsChoice):
    """Options of fid-loss-gans; its fields are options of the command.

    Args:
        networks: sngan, dcgan, sagan.
        arms: forms of the loss beside the control without it: minibatch (the paper's), queue, ema.
        embedding: to score digits in besides pixels; no loss uses it.
        rounds: of each run on digits; the recipe's by default.
        pictures: whether each network is trained on MNIST-5k too, without the loss and with its form ema.
        picture_rounds: of each of those runs; 200, 300 and 150 by default.
        quick: less than a minute, to see that it runs: the first of the networks, a few iterations.

    Raises:
        ValueError: also for unknown networks or arms, or a second embedding that is optimised.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "networks": lambda names: names[:1], "seeds": 1, "rounds": 1, "picture_rounds": 1, "parallel": lambda _: 2
    }  # fmt: skip
    LEAST: ClassVar[Mapping[str, int]] = {**ScoredArmsChoice.LEAST, "picture_rounds": 1}
    APART: ClassVar[tuple[str, ...]] = ("networks", "arms", "seeds", "pictures")  # what is measured of some joins

    networks: tuple[str, ...] = tuple(NETWORKS)
    arms: tuple[str, ...] = FORMS
    embedding: str = "classifier-mnist5k"
    seeds: int = 5
    rounds: int | None = None
    pictures: bool = True
    picture_rounds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_each_once("networks", self.networks, NETWORKS)
        require_each_once("arms", self.arms, FORMS)
        require_unrelated(self.embedding, [DIGITS.optimised], DIGITS.data)

    @property
    def trained(self) -> tuple[str, ...]:
        """The control and the forms that were asked for, in order."""
        return (WITHOUT, *(arm for arm in FORMS if arm in self.arms))

    def resolved(self) -> dict[str, Any]:
        """Return what the recipes of all networks say."""
        return {"recipes": fingerprints(self.recipe_of(one, bench) for bench in BENCHES for one in NETWORKS)}

    def recipe_of(self, network: str, bench: Bench) -> Path:
        """A network's recipe on a data set."""
        return self.recipes / f"{network}_{bench.data}.yaml"

    def training(self, bench: Bench, network: str, arm: str, seed: int) -> Training:
        """An arm's run: the recipe, with other losses. Nothing is scored while it trains; the last round is kept.

        Raises:
            FileNotFoundError: if there is no such recipe.
            ValueError: if it does not say for how many rounds it trains.
        """
        recipe = self.recipe_of(network, bench)
        usual, asked = rounds_of(recipe), self.rounds
        if bench is not DIGITS:
            usual, asked = NETWORKS[network].picture_rounds, self.picture_rounds
        rounds = asked or usual
        name = f"{recipe.stem}-{arm}-split{self.seed}-rounds{rounds}-seed{seed}"
        losses = {"model.init_args.generator_losses": losses_of(arm, bench)}
        return Training(recipe, self.folder / name, seed, kept_rounds(rounds, rounds, self.seed, more=losses))
