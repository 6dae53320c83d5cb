"""Time of evaluations beside what they cannot avoid: generating and embedding the images once, and torch-fidelity.

1. An evaluation during training, FID and KID with errors against 100 clients, whose features are kept: beside sampling
   the images and one pass of the embedding over them. The quick embedding of the kit is timed whole; of Inception,
   which takes most of an hour for 10,000 images on a CPU, a few batches, and the scores of as many features.
2. `fedgen evaluate` of a folder of PNGs against ten clients' folders, without a cache: beside torch-fidelity's command
   on the same PNGs and their pool, the same network and weights. The commands take turns.

    python -m benchmarks.evaluation [--images 10000] [--files 100] [--threads 1]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.frechet import features, seconds
from benchmarks.report import report
from fedgen.data import Examples
from fedgen.embeddings import Embedding
from fedgen.embeddings.embed import embed
from fedgen.embeddings.fidelity import load_inception
from fedgen.evaluation import Evaluator
from fedgen.evaluation.reference import Reference
from fedgen.models.networks import SmallGenerator
from tests.random_networks import save_inception

SIDE, CLIENTS, OF_CLIENT, FOLDERS, OF_BATCH = 64, 100, 100, 10, 64
PATHS = {"fidelity": Path(sys.executable).with_name("fidelity"), "fedgen": Path(sys.executable).with_name("fedgen")}


def federation(count: int, shape: Sequence[int], clients: int, device: str) -> Evaluator:
    """An evaluator of the quick embedding, which has embedded the clients' images of noise."""
    draws = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (clients * OF_CLIENT, *shape), generator=draws, dtype=torch.uint8)
    labels = torch.zeros(OF_CLIENT, dtype=torch.int64)
    splits = {"train": [Examples(part, labels, "noise", ("noise",)) for part in pixels.split(OF_CLIENT)]}
    return Evaluator(splits, ["efficientnet-lite0"], num_images=count, seed=0, device=device)


def compare_with_embedding(count: int, device: str = "cpu", clients: int = CLIENTS, of_batch: int = OF_BATCH) -> bool:
    """Report part 1; return whether it is within its limit."""
    generator = SmallGenerator(channels=3).eval().to(device)

    @torch.no_grad()
    def sample(number: int, draws: torch.Generator) -> Tensor:
        return generator(torch.randn(number, generator.latent_dim, generator=draws).to(device)).cpu()

    def once(embedding: Embedding, number: int) -> Tensor:
        return embed(embedding, sample(number, torch.Generator().manual_seed(0)), device=device)

    evaluator = federation(count, sample(1, torch.Generator()).shape[1:], clients, device)
    quick = evaluator.embeddings[0]
    name = f"an evaluation of {count:,} images, FID and KID, {clients} clients"
    evaluator.evaluate(sample)  # which makes the clients' side
    spent = seconds(lambda: evaluator.evaluate(sample))
    report(f"{name}, {quick.name}", spent, "s")
    report(f"{name}, {quick.name}", spent / seconds(lambda: once(quick, count)), "sampling and embedding once")
    with tempfile.TemporaryDirectory() as folder:
        network = load_inception(save_inception(Path(folder)))
    once(network, of_batch)
    embedded = seconds(lambda: once(network, 2 * of_batch)) * count / (2 * of_batch)  # a batch takes as long as another
    reference = Reference(list(features(clients * OF_CLIENT, 1).split(OF_CLIENT)), ("fid", "kid"), "examples")
    made = features(count, 2)
    reference.score(made)  # which makes the clients' side
    scored = seconds(lambda: reference.score(made))
    report(f"{name}, {network.name}: scores alone", scored, "s")
    return report(f"{name}, {network.name}", 1 + scored / embedded, "sampling and embedding once", 1.1)


def write_images(folder: Path, count: int, seed: int) -> Path:
    """So many PNGs of noise over a gradient."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    gradient = np.linspace(0, 200, SIDE)[None, :, None] * np.ones((SIDE, 1, 3))
    for number in range(count):
        pixels = gradient + np.kron(random.integers(0, 56, (SIDE // 4, SIDE // 4, 3)), np.ones((4, 4, 1)))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:05d}.png")
    return folder


def seconds_of(command: Sequence[object], threads: int, folder: Path) -> float:
    """Wall clock seconds of a command in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
    return time.perf_counter() - start


def compare_with_torch_fidelity(files: int, threads: int, repeats: int) -> bool:
    """Report part 2; return whether it is within its limit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = save_inception(folder)
        made = write_images(folder / "made", files, 0)
        clients = [write_images(folder / "clients" / str(i), files // FOLDERS, 1 + i) for i in range(FOLDERS)]
        network = ["--embedding", "inception-v3-compat", "--weights", weights]
        own = [PATHS["fedgen"], "evaluate", "--generated", made, "--clients", *clients, *network, "--overwrite"]
        theirs: list[object] = [
            PATHS["fidelity"],
            "--cpu",
            "--fid",
            "--kid",
            "--kid-subset-size",
            "100",
            "--no-cache",
            "--silent",
        ]
        theirs += ["--feature-extractor-weights-path", weights, "--samples-find-deep"]
        theirs += ["--input1", made, "--input2", folder / "clients"]
        found = [tuple(seconds_of(command, threads, folder) for command in (own, theirs)) for _ in range(repeats)]
    name = f"`fedgen evaluate` of {files} PNGs of {SIDE} px against {FOLDERS} clients, {threads} threads"
    report(name, statistics.median(ours for ours, _ in found), "s")
    cost = statistics.median(ours / other for ours, other in found)
    return report(name, cost, "torch-fidelity's command on the same files", 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=100, help="generated ones, and as many of all clients")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = compare_with_embedding(options.images)
    kept &= compare_with_torch_fidelity(options.files, options.threads, options.repeats)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
