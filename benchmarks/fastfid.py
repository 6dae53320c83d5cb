"""Time and memory of FID as a loss, forward and backward, at D = 2048 on one thread.

    python -m benchmarks.fastfid [--repeats 5]

Times are in units of one 2048^3 float64 product timed beside each; memory is a step's peak beyond its set-up, in a
process of its own. Beside each stands what autograd through the same eigenvalues takes, and the trace alone in
torchmetrics. About two minutes.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics.image.fid import _compute_fid

from benchmarks.frechet import DIM, features, in_products
from benchmarks.report import peak_of, report, step_memory
from fedgen.losses import EMAMoments, FastFIDLoss, Moments, QueueMoments
from fedgen.statistics import Gaussian, summarize

BATCH = 128
QUEUE = 10_000
PAST = QUEUE + 10 * BATCH - QUEUE % BATCH  # some way into the second pass through the queue
EVERY = 16
UNIT = "products of 2048^3"
CHECKED = (1, 8, EVERY - 1)  # steps since the factors, at which the error is measured


def step(loss: Callable[[Tensor], Tensor], batch: Tensor) -> tuple[float, Tensor]:
    """Value and gradient of one batch."""
    batch = batch.clone().requires_grad_()
    value = loss(batch)
    return value.item(), torch.autograd.grad(value, batch)[0]


def naive(real: Gaussian, past: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """FID that leaves the gradient to autograd, from the m x m eigenvalues, or D x D with past features."""
    given = real.covariance()
    factor = given if past is None else torch.linalg.cholesky(given, upper=True)

    def loss(batch: Tensor) -> Tensor:
        covariance, upper, mean = (side.to(batch.device) for side in (given, factor, real.mean))
        made = batch.double() if past is None else torch.cat([past.double(), batch.double()])
        root = (made - made.mean(0)) / (len(made) - 1) ** 0.5
        thin = len(made) <= DIM
        gram = root @ covariance @ root.T if thin else upper @ (root.T @ root) @ upper.T
        values = torch.linalg.eigvalsh(gram)[1 if thin else 0 :]
        shift = (made.mean(0) - mean).square().sum()
        return shift + root.square().sum() + covariance.trace() - 2 * values.sqrt().sum()

    return loss


def filled(moments: Moments, past: Tensor, real: Gaussian, every: int) -> FastFIDLoss:
    """A loss that remembers the past features, batch by batch."""
    loss = FastFIDLoss(moments, refresh_every=every).set_references([real])
    with torch.no_grad():
        for batch in past.split(BATCH):
            moments.estimate(batch, remember=True)
    return loss


def compare_batch(real: Gaussian, batch: Tensor, repeats: int) -> bool:
    """Reports a batch without past features, on the batch's device; whether it is within its limits."""
    kept, device = True, batch.device.type
    double = 0.2 if device == "cpu" else None  # a GPU takes longer to start kernels than for the product
    for name, dtype, limit in (("float64", torch.float64, double), ("float32", torch.float32, None)):
        loss = FastFIDLoss(dtype=dtype).set_references([real]).to(device)
        cost, seconds = in_products(lambda loss=loss: step(loss, batch), repeats, device)
        kept &= report(f"FID of a batch of {BATCH}, {name}", cost, UNIT, limit)
        report(f"FID of a batch of {BATCH}, {name}", seconds, "s")
    theirs = naive(real)
    cost = in_products(lambda: step(theirs, batch), repeats, device)[0]
    report(f"FID of a batch of {BATCH}, autograd through the eigenvalues of {BATCH} x {BATCH}", cost, UNIT)
    made = summarize(batch.cpu())
    sides = (real.mean, real.covariance(), made.mean, made.covariance())
    report(
        "the value alone in torchmetrics, of given covariances", in_products(lambda: _compute_fid(*sides), 1)[0], UNIT
    )
    ours, _ = step(FastFIDLoss().set_references([real]).to(device), batch)
    return kept & report("relative difference to torchmetrics", abs(ours / float(_compute_fid(*sides)) - 1), "1", 1e-6)


def compare_memory(
    name: str, moments: Callable[[], Moments], real: Gaussian, past: Tensor, steps: list[Tensor]
) -> bool:
    """Costs with an eigendecomposition at each step and at every 16th, and how far the second is from the first."""
    exact, frozen = (filled(moments(), past, real, every) for every in (1, EVERY))
    start = {key: value.clone() for key, value in exact.state_dict().items()}
    kept = report(f"FID of {name}", in_products(lambda: step(exact, steps[0]), 1)[0], UNIT, 12.0)
    found: list[tuple[float, Tensor]] = []
    cost = in_products(lambda: found.extend(step(frozen, batch) for batch in steps), 1)[0] / EVERY
    kept &= report(f"FID of {name}, factors at every {EVERY}th step, mean", cost, UNIT, 1.0)
    exact.load_state_dict(start)
    for age, batch in enumerate(steps):
        if age not in CHECKED:
            exact.moments.estimate(batch, remember=True)
            continue
        value, gradient = step(exact, batch)
        cosine = torch.cosine_similarity(gradient.flatten(), found[age][1].flatten(), dim=0)
        report(f"{name}, {age} steps after the factors: relative error of the value", found[age][0] / value - 1, "1")
        report(f"{name}, {age} steps after the factors: cosine with the exact gradient", float(cosine), "1")
    return kept


def population() -> tuple[Tensor, list[Tensor]]:
    """Past features and 16 new batches of a generator with 0.9 of the contrast, and another mean."""
    made = 0.9 * features(PAST + EVERY * BATCH, 2, 0.02)
    return made[:PAST], list(made[PAST:].split(BATCH))


def memory_of(part: str) -> float:
    """Peak memory in GB of one step of a part beyond its set-up: references, past features and factors."""
    real = summarize(features(DIM + 64, 1))
    batch = features(BATCH, 2)
    past = features(QUEUE - BATCH, 3) if "queue" in part else None
    if part == "batch":
        loss: Callable[[Tensor], Tensor] = FastFIDLoss().set_references([real])
    elif part.startswith("autograd"):
        loss = naive(real, past)
    else:
        assert past is not None
        loss = filled(QueueMoments(QUEUE), past, real, EVERY if part == "frozen queue" else 1)
    if part == "frozen queue":
        step(loss, batch)  # the step that takes the factors is that of a queue
    return step_memory(lambda: step(loss, batch))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        print(memory_of(options.part))
        return 0
    for part in ("batch", "autograd of a batch", "queue", "frozen queue", "autograd of a queue"):
        report(f"peak memory of a step beyond its set-up, {part}", peak_of("fastfid", part), "GB")
    torch.randn(DIM, DIM, dtype=torch.float64).matmul(torch.ones(DIM, DIM, dtype=torch.float64))  # warm up
    real = summarize(features(QUEUE, 1))
    kept = compare_batch(real, features(BATCH, 2, 0.1), options.repeats)
    past, new = population()
    kept &= compare_memory(f"a queue of {QUEUE}", lambda: QueueMoments(QUEUE), real, past, new)
    queue = QueueMoments(QUEUE)
    filled(queue, past, real, 1)
    anew = in_products(lambda: summarize(queue.rows).covariance(ddof=0), 1)[0]
    report("the queue's products summed anew, once per pass of 78 steps", anew, UNIT)
    kept &= compare_memory("an average of decay 0.95", lambda: EMAMoments(0.95), real, past, new)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
