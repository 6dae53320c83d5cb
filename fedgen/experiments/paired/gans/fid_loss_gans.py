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
from typing import Any

import torch
from rich.table import Table

from fedgen.embeddings import Embedding, load_embedding
from fedgen.experiments.engine.arms.scored_arms import ScoredArms
from fedgen.experiments.engine.image_scores import real_side
from fedgen.experiments.engine.run_images import generated_images
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import train_all
from fedgen.experiments.paired.gans.gan_arms import DIGITS, PICTURES, QUICK_IMAGES, WITHOUT, Bench, GanChoice
from fedgen.experiments.paired.gans.gan_report import (
    PAIR,
    draw_samples,
    draw_scores,
    grid_of,
    key_of,
    outcomes,
    pair_outcomes,
    scored,
    tables_of,
)
from fedgen.images import save_png, tile

UNRELATED = "pixels"  # to the pictures' loss; the classifier was trained on images of the very data
GRID, REAL_GRID = (10, 5), (20, 2)  # pictures across and down


def fid_loss_gans(output: Path | None = None, **options: Any) -> None:
    """Trains GANs of digits without and with FID in three forms, and pairs on MNIST-5k for pictures; scores them all.

    66 runs of one to fifteen minutes each: about two hours with --parallel 2. Finished runs are kept and not run again;
    stopped ones go on. What was measured of some networks, arms or seeds joins what is measured of others later.

    Args:
        output: folder of results.json and two figures; checkpoints/fid-loss-gans by default.
        options: the fields of `GanChoice`.
    """
    choice = GanChoice(output=output, **options)
    for network in choice.networks:  # refuses recipes that are not there before any training
        for bench in (DIGITS, PICTURES) if choice.pictures else (DIGITS,):
            choice.training(bench, network, WITHOUT, choice.seed)
    judge = load_embedding(choice.embedding, weights=choice.weights)
    study = Study("fid-loss-gans", output, choice.settings())
    for seed in choice.seeds_of:  # a stopped experiment has all arms of the first seeds
        measure(study, choice, DIGITS, choice.trained, seed, [load_embedding(DIGITS.optimised), judge])
    about = choice.networks, choice.trained
    found, report = compared(study, DIGITS, *about, choice.seeds_of)
    report += outcomes(found, DIGITS, choice.embedding, *about) if choice.seeds > 1 else []
    report += _pictures(study, choice) if choice.pictures else []
    study.report(report, draw_scores(found, choice.embedding, *about, study.path("fid_loss_gans.png")))


def _pictures(study: Study, choice: GanChoice) -> list[Table | str]:
    """Trains the pairs, draws their samples, and gives tables and outcomes."""
    embeddings = [load_embedding(PICTURES.optimised), load_embedding(UNRELATED)]
    measure(study, choice, PICTURES, PAIR, choice.seed, embeddings, grids=True)
    found, lines = compared(study, PICTURES, choice.networks, PAIR, [choice.seed])
    path = study.path("fid_loss_gans_samples.png")
    samples = draw_samples(found, UNRELATED, choice.networks, study.folder, path)
    return [*lines, *pair_outcomes(found, UNRELATED, choice.networks), f"samples: {samples}"]


def compared(
    study: Study, bench: Bench, networks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> tuple[ScoredArms, list[Table | str]]:
    """Compare every arm of every network with the control, keep the numbers, and give them with their tables."""
    found = scored(study, bench, networks, arms, seeds)
    name = f"compared on {bench.data}, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    study.each(name, {key: key for key in found.states}, found.rows, "arms")
    return found, tables_of(found, bench, networks, arms)


def measure(
    study: Study,
    choice: GanChoice,
    bench: Bench,
    arms: Sequence[str],
    seed: int,
    embeddings: Sequence[Embedding],
    grids: bool = False,
) -> None:
    """Trains and scores those of a seed's runs that are not known yet.

    Args:
        study: takes the scores, the real floor and the number of images.
        choice: of the networks.
        bench: the data set.
        arms: of every network.
        seed: of the runs.
        embeddings: to score in.
        grids: whether pictures of their samples, and of real images, are kept too.
    """
    data, known = bench.data, study.numbers.get(bench.data, {})
    missing = {
        (network, arm): choice.training(bench, network, arm, seed)
        for network in choice.networks
        for arm in arms
        if key_of(network, arm, seed) not in known or (grids and not study.path(grid_of(network, arm)).exists())
    }
    if not missing:
        return
    train_all(list(missing.values()), choice.parallel)
    number = QUICK_IMAGES if choice.quick else None
    scores, held_out = real_side([one.folder for one in missing.values()], embeddings, number)
    study.step(f"images of {data}", lambda: len(held_out))
    study.step(f"floor of {data}", lambda: scores.floor)
    folders = {key_of(*one, seed): training.folder for one, training in missing.items()}

    def score(folder: Path) -> dict[str, dict[str, float]]:
        return scores.score(generated_images(folder, len(held_out), choice.seed))

    study.each(data, folders, score, "generators")
    if grids:
        for one, training in missing.items():
            images = generated_images(training.folder, math.prod(GRID), choice.seed)
            save_png(study.path(grid_of(*one)), tile(images, GRID[0]))
        spread = torch.linspace(0, len(held_out) - 1, math.prod(REAL_GRID)).long()  # they lie class by class
        save_png(study.path(grid_of("real")), tile(held_out[spread], REAL_GRID[0]))
