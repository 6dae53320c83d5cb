"""Everything that is worth a GPU, in one command: rounds, networks, losses, an evaluation, several GPUs, the peers.

    python -m benchmarks.gpu [--parts rounds ddpm] [--peers bare ours pfl flower]
    python -m benchmarks.gpu --device cpu --small

One JSON line a figure, after one with the machine. A figure is a ratio to a plain loop, another formulation or a matrix
product that is timed on the same device in the same run; seconds beside it are the device's, waited for. The parts are
planned to take less than ten minutes together. One that fails says why, and the others go on. With `--small` the same
code takes seconds, on a CPU too, and its figures mean nothing.
"""

import argparse
import gc
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks import ddpm, evaluation, fastfid, mmd2, rounds, stylegan2, vectorised
from benchmarks.device import gpus, why_none
from benchmarks.frechet import DIM, features
from benchmarks.peers.__main__ import compare as compare_peers
from benchmarks.peers.turns import MODULES, Side
from benchmarks.report import machine, report
from fedgen.statistics import summarize

PLANNED = 600.0  # seconds of all parts


def measure_rounds(device: str, small: bool) -> bool:
    """Rounds of small models beside a bare loop."""
    interval, many, repeats = (2, 2, 1) if small else (20, 10, 3)
    within = rounds.compare(
        f"round of 10 clients x {interval} local steps, 71k", 1.05, 0, interval, many, repeats, device
    )
    extra, many = (1000, 2) if small else (5_000_000, 30)
    return within & rounds.compare(
        f"round of 10 clients x 1 local step, {extra} more", 1.1, extra, 1, many, repeats, device
    )


def measure_ddpm(device: str, small: bool) -> bool:
    """The DDPM of CIFAR-10 in full and in half precision beside diffusers' loop; in half precision compiled, too."""
    size = replace(ddpm.SMALL, clients=2, interval=2, rounds=2, batch=8) if small else ddpm.CIFAR
    within = True
    for precision in ("32-true", "bf16-mixed"):
        setup = replace(size, device=device, precision=precision)
        name, compiled = f"DDPM of {size.side} x {size.side}, {precision}", not small and precision == "bf16-mixed"
        within &= ddpm.compare(name, setup, 1 if small else 2, 1.02, compiled)
    return within


def measure_vectorised(device: str, small: bool) -> bool:
    """Cohorts of small clients trained at once beside the same one by one."""
    names = ["wgan-gp"] if small else list(vectorised.MODELS)
    clients, interval = (4, 2) if small else (vectorised.CLIENTS, 10)
    within = [vectorised.compare(name, 16, device, clients, interval) for name in names]
    return all(within)


def measure_stylegan2(device: str, small: bool) -> bool:
    """StyleGAN2 at 256 x 256 beside the plainest formulation, and in half precision."""
    work = stylegan2.Work(16, 2, device) if small else stylegan2.Work(256, 8, device)
    repeats = 1 if small else 5
    within = [stylegan2.compare(work, name, repeats) for name in stylegan2.PARTS]
    within.append(stylegan2.compare_asking(work, repeats))
    if device == "cuda":  # float16 is for GPUs
        stylegan2.compare_halves(work, replace(work, half=True), repeats)
    stylegan2.pair_of.cache_clear()
    return all(within)


def measure_losses(device: str, small: bool) -> bool:
    """FID and MMD^2 of a batch with their gradients, in units of the products that they cannot avoid."""
    repeats, count = (1, 300) if small else (5, mmd2.REAL)
    batch = features(fastfid.BATCH, 2, 0.1).to(device)
    within = fastfid.compare_batch(summarize(features(DIM + 64 if small else fastfid.QUEUE, 1)), batch, repeats)
    for name in mmd2.KERNELS:
        for dtype in (torch.float64, torch.float32):
            within &= mmd2.compare(name, dtype, repeats, device, count)
    return within


def measure_evaluation(device: str, small: bool) -> bool:
    """An evaluation of 10,000 images against 100 clients beside sampling and embedding them."""
    if small:
        return evaluation.compare_with_embedding(32, device, clients=2, of_batch=2)
    return evaluation.compare_with_embedding(10_000, device)


def measure_peers(device: str, small: bool, names: Sequence[str]) -> bool:
    """The same rounds by other frameworks, each on one GPU, and on two where there are."""
    processes = [1, 2] if len(gpus()) > 1 and device == "cuda" else [1]
    within = True
    for workload in ["small-1"] if small else ["small-20", "small-1", "large-1"]:
        sides = [Side(name, number) for number in processes for name in names]
        within &= compare_peers(sides, workload, 1, device=device)[0]
    return within


PARTS: dict[str, Callable[[str, bool], bool]] = {
    "rounds": measure_rounds,
    "ddpm": measure_ddpm,
    "vectorised": measure_vectorised,
    "stylegan2": measure_stylegan2,
    "losses": measure_losses,
    "evaluation": measure_evaluation,
}


def run(name: str, part: Callable[[], bool]) -> bool:
    """Runs a part and reports its seconds.

    Returns:
        Whether it ended, and its figures are within their limits.
    """
    start = time.perf_counter()
    try:
        within = part()
    except Exception:
        print(f"the part {name!r} failed:\n{traceback.format_exc()}", file=sys.stderr)
        within = False
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    report(f"the part {name!r} took", time.perf_counter() - start, "s")
    return within


def parts_of(options: argparse.Namespace) -> dict[str, Callable[[], bool]]:
    """The parts that are asked for, the peers last: they are installed first."""
    found = {
        name: lambda part=part: part(options.device, options.small)
        for name, part in PARTS.items()
        if name in options.parts
    }
    if "peers" in options.parts:
        found["peers"] = lambda: measure_peers(options.device, options.small, options.peers)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="sizes that take seconds, to try the code")
    every = [*PARTS, "peers"]
    parser.add_argument("--parts", nargs="+", default=every, choices=every)
    parser.add_argument("--peers", nargs="+", default=list(MODULES), choices=list(MODULES))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not gpus():
        print(why_none(), file=sys.stderr)
        return 1
    torch.backends.cudnn.allow_tf32 = False  # what is compared must be the same to rounding
    if options.device == "cpu":
        torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(json.dumps({"machine": {**machine(), "GPU": " and ".join(gpus()) or "none, tried on a CPU"}}), flush=True)
    start = time.perf_counter()
    within = [run(name, part) for name, part in parts_of(options).items()]
    report("all parts", time.perf_counter() - start, "s", PLANNED)
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
