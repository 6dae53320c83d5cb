"""SNGAN, DCGAN and SAGAN without and with FID as a second loss, and what that changes on images nobody trained on.

Section 3 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) adds the FID of a batch to the loss
of these GANs and reports their FID on held-out images, in the embedding that was optimised. Here the batch's FID, and
those of a queue and an exponential average of features, on digits over paired seeds: scored where FID was optimised and
in an embedding that no loss used, with recall, coverage and the spread of the images. Then one longer pair of each
network on MNIST, for its pictures. The published settings are recipes: sngan_cifar10_fid.yaml and others.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.image_scores import real_side
from fedgen.experiments.engine.recipe_file import fingerprints
from fedgen.experiments.engine.run_images import generated_images
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trained_runs import require_each_once, runs_folder
from fedgen.experiments.engine.trainings import train_all
from fedgen.experiments.engine.unrelated import require_unrelated
from fedgen.experiments.paired.gans.gan_arms import (
    DIGITS,
    EMA,
    FORMS,
    NETWORKS,
    PICTURES,
    QUICK_IMAGES,
    WITHOUT,
    GANRuns,
)
from fedgen.experiments.paired.gans.gan_report import (
    GRID,
    PICTURES_FIGURE,
    REAL,
    REAL_GRID,
    SCORES_FIGURE,
    Compared,
    compare,
    draw_pictures,
    draw_scores,
    grid_of,
    key_of,
    outcomes,
    pair_outcomes,
    table_of,
)
from fedgen.images import save_png, tile

Run = tuple[str, str, int]  # network, arm, seed
PAIR = (WITHOUT, EMA)  # the arms of the pictures
UNRELATED = "pixels"  # to the pictures' loss; the classifier was trained on images of the very data


@quickly(networks=lambda names: names[:1], seeds=1, rounds=1, picture_rounds=1, parallel=lambda _: 2)
def fid_loss_gans(
    output: Path | None = None,
    networks: tuple[str, ...] = tuple(NETWORKS),
    arms: tuple[str, ...] = FORMS,
    embedding: str = "classifier-mnist5k",
    weights: Path | None = None,
    seeds: int = 5,
    rounds: int | None = None,
    pictures: bool = True,
    picture_rounds: int | None = None,
    runs: Path | None = None,
    recipes: Path = Path("recipes"),
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Trains GANs of digits without and with FID in three forms, and pairs on MNIST-5k for pictures; scores them all.

    66 runs of one to fifteen minutes each: about two hours with --parallel 2. Finished runs are kept and not run again;
    stopped ones go on. What was measured of some networks, arms or seeds joins what is measured of others later.

    Args:
        output: folder of results.json and two figures; checkpoints/fid-loss-gans by default.
        networks: sngan, dcgan, sagan.
        arms: forms of the loss beside the control without it: minibatch (the paper's), queue, ema.
        embedding: to score digits in besides pixels; no loss uses it.
        weights: a local file of its weights.
        seeds: runs of each network and arm on digits; 1 with --quick.
        rounds: of each run on digits; the recipe's by default, 1 with --quick.
        pictures: whether each network is trained on MNIST-5k too, without the loss and with its form ema.
        picture_rounds: of each of those runs; 200, 300 and 150 by default, 1 with --quick.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        parallel: runs at once; 2 with --quick.
        seed: of the first runs, the held-out images and the samples.
        quick: takes less than a minute, to see that it runs: the first of the networks, a few iterations.

    Raises:
        ValueError: for unknown networks or arms, numbers out of range, or a second embedding that is optimised.
        FileNotFoundError: if a recipe is not there.
    """
    _check(networks, arms, embedding, seeds=seeds, rounds=rounds, picture_rounds=picture_rounds, parallel=parallel)
    folder = runs_folder(runs, output)
    digits, pairs = (
        GANRuns(bench, folder, recipes, seed, number, QUICK_IMAGES if quick else None)
        for bench, number in ((DIGITS, rounds), (PICTURES, picture_rounds))
    )
    for network in networks:  # refuses recipes that are not there before any training
        for one in (digits, pairs) if pictures else (digits,):
            one.training(network, WITHOUT, seed)
    settings = {
        "embedding": embedding, "weights": None if weights is None else str(weights), "rounds": rounds,
        "picture_rounds": picture_rounds, "seed": seed, "quick": quick,
        # of all networks: what is measured of some joins the others'
        "recipes": fingerprints(one.recipe_of(network) for one in (digits, pairs) for network in NETWORKS),
    }  # fmt: skip
    judge = load_embedding(embedding, weights=weights)
    study = Study("fid-loss-gans", output, settings)
    arms, numbers = (WITHOUT, *(arm for arm in FORMS if arm in arms)), tuple(range(seed, seed + seeds))
    for number in numbers:  # a stopped experiment has all arms of the first seeds
        wanted = [(network, arm, number) for network in networks for arm in arms]
        measure(study, digits, wanted, [load_embedding(DIGITS.optimised), judge], parallel)
    compared = compare_all(study, digits, networks, arms, numbers)
    report = _tables(study, digits, compared, networks, arms)
    report += outcomes(compared, DIGITS, embedding, networks, arms) if seeds > 1 else []
    report += _pictures(study, pairs, networks, seed, parallel) if pictures else []
    floor = study.numbers[f"floor of {DIGITS.data}"]
    figure = draw_scores(compared, floor, DIGITS, embedding, networks, arms, study.path(SCORES_FIGURE))
    study.report(report, figure)


def _pictures(study: Study, pairs: GANRuns, networks: Sequence[str], seed: int, parallel: int) -> list[Table | str]:
    """Trains the pairs, draws their samples, and gives tables and outcomes."""
    wanted = [(network, arm, seed) for network in networks for arm in PAIR]
    measure(study, pairs, wanted, [load_embedding(PICTURES.optimised), load_embedding(UNRELATED)], parallel, grids=True)
    compared = compare_all(study, pairs, networks, PAIR, [seed])
    samples = draw_pictures(compared, PICTURES, UNRELATED, networks, study.folder, study.path(PICTURES_FIGURE))
    lines = pair_outcomes(compared, PICTURES, UNRELATED, networks, EMA)
    return [*_tables(study, pairs, compared, networks, PAIR), *lines, f"samples: {samples}"]


def _check(networks: Sequence[str], arms: Sequence[str], embedding: str, **numbers: int | None) -> None:
    for what, names, known in (("networks", networks, tuple(NETWORKS)), ("arms", arms, FORMS)):
        require_each_once(what, names, known)
    require_unrelated(embedding, [DIGITS.optimised], DIGITS.data)
    for what, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{what}={number}: must be at least 1")


def measure(
    study: Study,
    runs: GANRuns,
    wanted: Sequence[Run],
    embeddings: Sequence[Embedding],
    parallel: int,
    grids: bool = False,
) -> None:
    """Trains and scores those of the wanted runs that are not known yet.

    Args:
        study: takes the scores, the real floor and the number of images.
        runs: of the data set.
        wanted: of these.
        embeddings: to score in.
        parallel: runs at once.
        grids: whether pictures of their samples, and of real images, are kept too.
    """
    data, known = runs.bench.data, study.numbers.get(runs.bench.data, {})
    missing = {
        one: runs.training(*one)
        for one in wanted
        if key_of(*one) not in known or (grids and not study.path(grid_of(*one[:2])).exists())
    }
    if not missing:
        return
    train_all(list(missing.values()), parallel)
    scores, held_out = real_side([one.folder for one in missing.values()], embeddings, runs.num_images)
    study.step(f"images of {data}", lambda: len(held_out))
    study.step(f"floor of {data}", lambda: scores.floor)
    folders = {key_of(*one): training.folder for one, training in missing.items()}

    def score(folder: Path) -> dict[str, dict[str, float]]:
        return scores.score(generated_images(folder, len(held_out), runs.split_seed))

    study.each(data, folders, score, "generators")
    if grids:
        for (network, arm, _), training in missing.items():
            images = generated_images(training.folder, math.prod(GRID), runs.split_seed)
            _save_grid(study.path(grid_of(network, arm)), images, GRID)
        spread = torch.linspace(0, len(held_out) - 1, math.prod(REAL_GRID)).long()  # they lie class by class
        _save_grid(study.path(grid_of(REAL)), held_out[spread], REAL_GRID)


def _save_grid(path: Path, images: Tensor, shape: tuple[int, int]) -> None:
    save_png(path, tile(images, shape[0]))


def compare_all(
    study: Study, runs: GANRuns, networks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> Compared:
    """Every arm of every network beside the control, as `compare` gives it, by `key_of`."""
    scores = study.numbers[runs.bench.data]
    pairs = {key_of(network, arm): (network, arm) for network in networks for arm in arms}
    name = f"compared on {runs.bench.data}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return study.each(name, pairs, lambda pair: compare(scores, *pair, seeds), "arms")


def _tables(
    study: Study, runs: GANRuns, compared: Compared, networks: Sequence[str], arms: Sequence[str]
) -> list[Table | str]:
    floor = study.numbers[f"floor of {runs.bench.data}"]
    return [table_of(compared, floor, runs.bench, embedding, networks, arms) for embedding in floor]
