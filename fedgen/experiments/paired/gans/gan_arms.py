"""The GANs of `fid_loss_gans`: three networks without and with FID as a second loss, in three forms, on two data sets.

The forms differ by whose moments FID is taken of: the batch's, as in the FastFID paper, a queue's, or an exponential
average's. Queue and average remember about as many images. All weigh as much as the adversarial loss.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.image_sources import CACHE
from fedgen.experiments.engine.recipe_file import component, embedded_loss, rounds_of
from fedgen.experiments.engine.trainings import Training, kept_rounds

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
class GANRuns:
    """The runs on one data set.

    Args:
        bench: the data set.
        folder: of the run folders.
        recipes: folder of the recipes.
        split_seed: of the held-out images, which all runs share, and of samples.
        rounds: of each run; the recipe's on digits, the network's own on MNIST-5k if None.
        num_images: to score, and to score against, at most.
    """

    bench: Bench
    folder: Path
    recipes: Path
    split_seed: int = 0
    rounds: int | None = None
    num_images: int | None = None

    def recipe_of(self, network: str) -> Path:
        """A network's recipe."""
        return self.recipes / f"{network}_{self.bench.data}.yaml"

    def training(self, network: str, arm: str, seed: int) -> Training:
        """An arm's run: the recipe, with other losses. Nothing is scored while it trains; the last round is kept.

        Raises:
            FileNotFoundError: if there is no such recipe.
            ValueError: if it does not say for how many rounds it trains.
        """
        recipe = self.recipe_of(network)
        usual = rounds_of(recipe)
        rounds = self.rounds or (usual if self.bench is DIGITS else NETWORKS[network].picture_rounds)
        losses = {"model.init_args.generator_losses": losses_of(arm, self.bench)}
        name = f"{recipe.stem}-{arm}-split{self.split_seed}-rounds{rounds}-seed{seed}"
        return Training(recipe, self.folder / name, seed, kept_rounds(rounds, rounds, self.split_seed, more=losses))
