"""Suites as they are declared: cells put together from parts, each a recipe to train with every seed, and questions."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from fedgen.experiments.engine.trainings import Control, component

Part = dict[str, Any]  # an object of a recipe: class path and arguments


@dataclass(frozen=True)
class DataPart:
    recipe: Part
    image_size: int  # side of its images in pixels
    channels: int  # 1 grey, 3 colour
    embeddings: tuple[str, ...]  # that images are scored in; those of the suites `tiny` and `small` need no download
    num_images: int  # that a generator draws, and at most as many real ones for the floor


@dataclass(frozen=True)
class Algorithm:
    # arguments of `FedAvgStrategy` that differ from averaging
    strategy: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None  # the flag of `fedgen fit` that makes it one


DIGITS_NETWORK = "classifier-mnist5k"
SMALL_GREY = ("efficientnet-lite0-32", DIGITS_NETWORK, "pixels")
PUBLISHED = ("inception-v3-compat", "efficientnet-lite0", "pixels")
"""the embeddings of the suite `full`: the published FID's, whose weights are downloaded, and two that are not"""


def _images(data: str, side: int, channels: int, embeddings: tuple[str, ...], number: int, **options: Any) -> DataPart:
    return DataPart(component(f"fedgen.data.{data}", **options), side, channels, embeddings, number)


DATA: dict[str, DataPart] = {
    "digits": _images("Digits", 8, 1, SMALL_GREY, 890),
    "mnist5k": _images("MNIST5k", 32, 1, ("efficientnet-lite0", DIGITS_NETWORK, "pixels"), 2000, pad_to=32),
    "styles": _images("StyleShift", 16, 1, SMALL_GREY, 2000, num_writers=50, pad_to=32, shrink=2),
    "fashion": _images("FashionMNIST", 32, 1, ("efficientnet-lite0", "pixels"), 1000, pad_to=32),
    "photos": _images("PhotoPatches", 32, 3, ("efficientnet-lite0", "pixels"), 800, size=32),
    "cifar10": _images("CIFAR10", 32, 3, PUBLISHED, 10000),
    "femnist": _images("FEMNIST", 32, 1, PUBLISHED, 10000, pad_to=32),
    "celeba": _images("CelebA", 64, 3, PUBLISHED, 10000, size=64, identities=True, in_memory=False),
    "pathmnist": _images("MedMNIST", 32, 3, PUBLISHED, 10000, name="pathmnist", pad_to=32),
    "camelyon17": _images("Camelyon17", 32, 3, PUBLISHED, 10000, size=32),
    "fed-isic2019": _images("FedISIC2019", 64, 3, PUBLISHED, 5000, size=64),
    "imagenet64": _images("ImageNet32", 64, 3, PUBLISHED, 10000, size=64, classes=100),
}

PARTITIONS: dict[str, Part] = {
    "by-class": component("fedgen.clients.partitions.ByClass"),
    # of ten classes alpha = 3 is 0.3 for each
    "dirichlet": component("fedgen.clients.partitions.Dirichlet", num_clients=10, alpha=3.0),
    "natural": component("fedgen.clients.partitions.Natural"),
    # owners of fewer images are too many to score one by one, and have too few for it
    "natural-30": component("fedgen.clients.partitions.Natural", min_examples=30),
    "natural-300": component("fedgen.clients.partitions.Natural", min_examples=300),
}


def _gan_pair(kind: str, **options: Any) -> dict[str, Part]:
    names = ("generator", "critic")
    return {name: component(f"fedgen.models.networks.{kind}{name.title()}", **options) for name in names}


def _wgan_gp(size: int, channels: int, large: bool = False) -> Part:
    kind, width = ("DCGAN", {"width": 64 if large else 16}) if large or size >= 16 else ("Small", {})
    n_critic, lr, decay = (5, 2e-4, 0.999) if large else (2, 5e-4, 0.998) if width else (2, 1e-3, 0.995)
    pair = _gan_pair(kind, image_size=size, channels=channels, **width)
    return component("fedgen.models.WGANGP", **pair, n_critic=n_critic, lr=lr, betas=[0.0, 0.99], ema_decay=decay)


def _stylegan2(size: int, channels: int, large: bool = False) -> Part:
    base, most, latents = (16384, 512, {}) if large else (32 * size, 48, {"latent_dim": 32, "style_dim": 32})
    widths = {"image_size": size, "channels": channels, "channel_base": base, "channel_max": most}
    generator = component("fedgen.models.stylegan2.StyleGAN2Generator", mapping_layers=2, **latents, **widths)
    critic = component("fedgen.models.stylegan2.StyleGAN2Discriminator", **widths)
    gamma, kimg = (1.0, 20.0) if large else (2.0, 5.0)
    return component("fedgen.models.StyleGAN2", generator=generator, critic=critic, r1_gamma=gamma, ema_kimg=kimg)


def _unet(size: int, channels: int, large: bool) -> Part:
    """A small network, or that of Ho et al. 2020 for 32 x 32 pixels, a level more for 64 x 64."""
    own = {"widths": [16, 32] if size <= 16 else [16, 32, 32], "layers": 1, "attention": []}
    if large:
        own = {"widths": [128, *[256] * (3 if size <= 32 else 4)], "dropout": 0.1}
    return component("fedgen.models.networks.UNet", image_size=size, channels=channels, **own)


def _ddpm(size: int, channels: int, large: bool = False) -> Part:
    options = {"schedule": "cosine", "prediction": "v", "lr": 2e-3, "warmup": 100}
    network = _unet(size, channels, large)
    return component("fedgen.models.DDPM", network=network, **({"lr": 2e-4, "warmup": 1000} if large else options))


def _flow(size: int, channels: int, large: bool = False) -> Part:
    lr, warmup, steps = (2e-4, 1000, 20) if large else (2e-3, 100, 10)
    options = {"coupling": "optimal-transport", "times": "logit-normal", "lr": lr, "warmup": warmup}
    sampler = {"solver": "heun", "steps": steps, "denoise": True}
    return component("fedgen.models.FlowMatching", network=_unet(size, channels, large), **options, sampler=sampler)


_FAMILIES = {"wgan-gp": _wgan_gp, "stylegan2": _stylegan2, "ddpm": _ddpm, "flow": _flow}
_LARGE = {f"{name}-large": partial(family, large=True) for name, family in _FAMILIES.items()}
GENERATORS: dict[str, Callable[[int, int], Part]] = {**_FAMILIES, **_LARGE}
"""the model of each family, by side and channels of the images"""

AVERAGING = "fedavg"
ALGORITHMS: dict[str, Algorithm] = {
    AVERAGING: Algorithm(),
    "fedavgm": Algorithm({"server_optimizer": component("fedgen.federated.FedAvgM", lr=0.1)}),
    "fedadam": Algorithm({"server_optimizer": component("fedgen.federated.FedAdam", lr=0.005, convention="reddi")}),
    "fedprox": Algorithm({"client_algorithm": component("fedgen.federated.FedProx", mu=0.1)}),
    "scaffold": Algorithm({"client_algorithm": component("fedgen.federated.Scaffold")}),
    "local": Algorithm(control="local_only"),
    "centralised": Algorithm(control="centralised"),
}

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
    """The training that every cell of a task gets."""

    rounds: int
    interval: int  # local iterations of a client in a round
    cohort: int | None = None  # clients of a round; all if None
    batch_size: int = 32  # images of an iteration
    accelerator: str = "cpu"  # Lightning's name of the device


@dataclass(frozen=True)
class OwnImages:
    image_size: int  # side in pixels
    channels: int  # 1 grey, 3 colour
    num_images: int  # that a generator draws
    partition: str  # a name in `PARTITIONS`
    num_clients: int  # whom it gives


@dataclass(frozen=True)
class OwnClass:
    """A class that somebody enters in the place of a suite's generator, data set or algorithm."""

    class_path: str  # "my_package.MyEntry"
    slot: Slot  # its place in the recipe
    takes: tuple[str, ...] = ()  # which of a cell's "image_size" and "channels" its constructor wants
    images: OwnImages | None = None  # of a data set; None of all others


@dataclass(frozen=True)
class Cell:
    data: str  # a name in `DATA`
    partition: str  # one in `PARTITIONS`
    generator: str  # one in `GENERATORS`
    algorithm: str  # one in `ALGORITHMS`
    budget: Budget
    # a class in the place of the generator, of the data and the partition, or of the algorithm's part
    own: OwnClass | None = None

    @property
    def task(self) -> str:
        """The data and the partition, whose cells are compared: "digits/by-class"."""
        data = self.data if self.own is None or self.own.images is None else self.own.class_path
        return f"{data}/{self.split_by}"

    @property
    def split_by(self) -> str:
        """The partition by name: the cell's, or that of an own data set's images."""
        return self.partition if self.own is None or self.own.images is None else self.own.images.partition

    @property
    def data_part(self) -> DataPart:
        if self.own is None or self.own.images is None:
            return DATA[self.data]
        images = self.own.images
        network = "efficientnet-lite0" if images.image_size >= 32 else "efficientnet-lite0-32"
        recipe = component(self.own.class_path)
        return DataPart(recipe, images.image_size, images.channels, (network, "pixels"), images.num_images)

    @property
    def parts(self) -> tuple[str, str]:
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
        return self.name.replace("/", "-")

    @property
    def beside(self) -> str:
        """The name of the suite's cell that one of an own class stands beside; the cell's own otherwise."""
        return replace(self, own=None).name

    @property
    def control(self) -> Control | None:
        return ALGORITHMS[self.algorithm].control

    def recipe(self) -> dict[str, Any]:
        data = self.data_part
        given = {"image_size": data.image_size, "channels": data.channels}
        model, own = GENERATORS[self.generator](data.image_size, data.channels), dict[str, Part]()
        if self.own is not None:
            own[self.own.slot] = component(self.own.class_path, **{name: given[name] for name in self.own.takes})
        federation = component(
            "fedgen.clients.FederatedDataModule",
            data=data.recipe,
            partition=PARTITIONS[self.split_by],
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
class Suite:
    name: str
    about: str  # a sentence on its size
    questions: Mapping[str, tuple[Cell, ...]]  # and the cells that answer each
    seeds: tuple[int, ...] = (0, 1, 2)  # of every cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the order in which they are trained."""
        return tuple(chain.from_iterable(self.questions.values()))

    def cell(self, name: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.name == name), None)

    def cells_with(self, own: OwnClass) -> list[Cell]:
        """The cells of an own class: a generator's beside one of each task, an algorithm's beside all of FedAvg."""
        if own.images is not None:  # each generator and algorithm that some cell has together, and the first's budget
            pairs = {cell.parts: cell for cell in reversed(self.cells)}
            budget = self.cells[0].budget
            if budget.cohort is not None and budget.cohort >= own.images.num_clients:
                budget = replace(budget, cohort=None)
            return [replace(cell, own=own, budget=budget) for cell in reversed(pairs.values())]
        averaged = [cell for cell in self.cells if cell.algorithm == AVERAGING]
        if own.slot == "model":
            averaged = list({cell.task: cell for cell in reversed(averaged)}.values())[::-1]
        return [replace(cell, own=own) for cell in averaged]


def _cells(task: str, budget: Budget, *parts: str) -> tuple[Cell, ...]:
    """Cells of a task, "data/partition", by "generator/algorithm"."""
    data, partition = task.split("/")
    pairs = (part.split("/") for part in parts)
    return tuple(Cell(data, partition, generator, algorithm, budget) for generator, algorithm in pairs)


_AVERAGED = "flow-large/fedavg"
_BESIDE_CONTROLS = (_AVERAGED, "flow-large/local", "flow-large/centralised")
_TRY = Budget(rounds=30, interval=2, cohort=5)
_GPU = Budget(rounds=2000, interval=20, batch_size=64, accelerator="auto")
TINY = Suite(
    "tiny",
    "three cells of 8 x 8 digits, two seeds: a try of the command, too short for generators to be good",
    {
        "What does training together bring, and what does it cost beside pooled data?": _cells(
            "digits/by-class", _TRY, "wgan-gp/fedavg", "wgan-gp/local", "wgan-gp/centralised"
        )
    },
    seeds=(0, 1),
)
SMALL = Suite(
    "small",
    "13 cells, three seeds, 39 runs: about four hours on two cores with --parallel 2",
    {
        "Which generator is nearest to real digits after as many rounds, a class a client?": _cells(
            "digits/by-class", Budget(600, 2, cohort=5), "stylegan2/fedavg", "ddpm/fedavg", "flow/fedavg"
        ),
        "Does a proximal term help over natural clients, writers of one style each?": _cells(
            "styles/natural", Budget(200, 4, cohort=10), "flow/fedavg", "flow/fedprox"
        ),
        "What do FedAdam and SCAFFOLD change where clients hold one class each?": _cells(
            "mnist5k/by-class", Budget(300, 5, cohort=5), "wgan-gp/fedavg", "wgan-gp/fedadam", "wgan-gp/scaffold"
        ),
        "Is training together better than alone where no two clients' images are alike?": _cells(
            "photos/natural", Budget(100, 5, batch_size=16), "flow/fedavg", "flow/local", "flow/centralised"
        ),
        "Is flow matching ahead of a GAN on clothes, clients of a few classes each?": _cells(
            "fashion/dirichlet", Budget(200, 5, cohort=5, batch_size=16), "wgan-gp/fedavg", "flow/fedavg"
        ),
    },
)
FULL = Suite(
    "full",
    "23 cells of published data sets, three seeds, 69 runs: days of a GPU; files that need an account are looked for",
    {
        "Which generator is nearest to CIFAR-10, a class a client, and what does pooled data bring?": _cells(
            "cifar10/by-class",
            _GPU,
            *("wgan-gp-large/fedavg", "stylegan2-large/fedavg", "ddpm-large/fedavg", *_BESIDE_CONTROLS),
        ),
        "What do FedAdam and SCAFFOLD change where clients hold a few classes each?": _cells(
            "cifar10/dirichlet", _GPU, _AVERAGED, "flow-large/fedadam", "flow-large/scaffold"
        ),
        "Does a proximal term help over writers?": _cells(
            "femnist/natural-300", replace(_GPU, cohort=20), _AVERAGED, "flow-large/fedprox"
        ),
        "Is flow matching ahead of a GAN over people, some thirty faces each?": _cells(
            "celeba/natural-30", replace(_GPU, cohort=20), "wgan-gp-large/fedavg", _AVERAGED
        ),
        "Is flow matching ahead of a GAN on tissue of a few kinds a client?": _cells(
            "pathmnist/dirichlet", _GPU, "wgan-gp-large/fedavg", _AVERAGED
        ),
        "Is training together better than alone for five hospitals of one stain each?": _cells(
            "camelyon17/natural", _GPU, *_BESIDE_CONTROLS
        ),
        "Is training together better than alone for six centres of very unequal sizes?": _cells(
            "fed-isic2019/natural", _GPU, *_BESIDE_CONTROLS
        ),
        "Is flow matching ahead of a GAN on a hundred classes, one a client?": _cells(
            "imagenet64/by-class", replace(_GPU, cohort=10), "stylegan2-large/fedavg", _AVERAGED
        ),
    },
)

SUITES = {suite.name: suite for suite in (TINY, SMALL, FULL)}


def find_suite(name: str) -> Suite:
    if name not in SUITES:
        close = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"there is no suite {name!r}; {hint}known: {', '.join(SUITES)}")
    return SUITES[name]
