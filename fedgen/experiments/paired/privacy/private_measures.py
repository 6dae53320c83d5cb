"""Measures of the experiment on private scores: bytes, exactness, and what noise and sketches change."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from fedgen.scores import (
    FrechetReference,
    KernelReference,
    PolynomialKernel,
    RBFKernel,
    kid_from_messages,
    kid_message,
)
from fedgen.seeds import derive, generator
from fedgen.statistics import (
    CubicSketch,
    FixedPoint,
    FourierSketch,
    Gaussian,
    Privacy,
    add,
    gaussian_from_message,
    gaussian_to_message,
    gaussian_to_sums,
    mask,
    message_size,
    noise_multiplier,
    private_gaussian,
    private_sums,
    summarize,
)
from fedgen.statistics.private import Accountant, Projecting

CLIENTS = 10
RADIUS, DELTA = 3.0, 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
BITS = (16, 24, 32)
FORMS = (  # of sketches; "server alone" asks the clients nothing about the generated images
    "cubic, centred",
    "cubic, uncentred",
    "cubic, server alone",
    "RBF",
    "RBF, server alone",
)


@dataclass(frozen=True)
class Toy:
    """Ten Gaussian clients of D features and a Gaussian generator of a narrower covariance.

    Args:
        dim: features D.
        spectrum: "flat": every variance 0.02; "falling": as 1 / k with a sum of 2.
        images: of all clients together.
        seed: of all draws.
    """

    dim: int
    spectrum: str
    images: int
    seed: int

    def variances(self) -> Tensor:
        """Within every client, float64 [D]."""
        if self.spectrum == "flat":
            return torch.full((self.dim,), 0.02, dtype=torch.float64)
        falling = 1 / torch.arange(1, self.dim + 1, dtype=torch.float64)
        return 2 * falling / falling.sum()

    def clients(self) -> list[Tensor]:
        """Features [n_i, D] of each client, around a mean of norm 0.5."""
        draws = generator(self.seed, "private-scores", self.spectrum, self.dim)
        means = torch.randn(CLIENTS, self.dim, generator=draws, dtype=torch.float64)
        means *= 0.5 / means.norm(dim=1, keepdim=True)
        count = self.images // CLIENTS
        noise = torch.randn(CLIENTS, count, self.dim, generator=draws, dtype=torch.float64)
        return list(means.unsqueeze(1) + noise * self.variances().sqrt())

    def generated(self) -> Gaussian:
        """The generator's exact moments: a mean of norm 0.35, 0.8 of the clients' variances."""
        mean = torch.full((self.dim,), 0.35 / self.dim**0.5, dtype=torch.float64)
        return Gaussian(1e9, mean, scatter=torch.diag(0.8 * self.variances()) * 1e9)


def message_sizes(dim: int) -> dict[str, int]:
    """Bytes of every kind of message about D features."""
    features = torch.randn(21, dim, generator=generator(0, "sizes", dim), dtype=torch.float64)
    summary, fixed = summarize(features), FixedPoint(CLIENTS)
    sums = gaussian_to_sums(summary)
    messages = {
        "sums, for FID-all": sums,
        "as fixed point": fixed.encode(sums),
        "with noise": private_sums(features, Privacy(1.0, DELTA, RADIUS), seed=0),
        "cubic sketch, centred, q = 1000": CubicSketch(dim, 1000, centre=summary.mean).message(features),
        "cubic sketch, uncentred, q = 1000": CubicSketch(dim, 1000).message(features),
        "RBF sketch, q = 4000": FourierSketch(dim, 4000).message(features),
        "KID, each checkpoint": kid_message(KernelReference.from_features([features]), features),
        "21 images' features, which do not add": gaussian_to_message(summary),
    }
    return {name: message_size(message) for name, message in messages.items()}


def exactness(toy: Toy) -> dict[str, Any]:
    """Relative errors of FID-all and KID-avg from messages, by sums of floats and of masked whole numbers."""
    clients, generated = toy.clients(), toy.generated()
    messages = [gaussian_to_sums(summarize(part)) for part in clients]
    expected = fid_all(summarize(torch.cat(clients)), generated)["value"]
    found = {"float64 sums": relative(fid_all(gaussian_from_message(add(*messages)), generated)["value"], expected)}
    for bits in BITS:
        fixed = FixedPoint(CLIENTS, bits)
        masked = [mask(fixed.encode(part), number, CLIENTS, toy.seed) for number, part in enumerate(messages)]
        summed = gaussian_from_message(fixed.decode(add(*masked)))
        found[f"fixed point, {bits} bits"] = relative(fid_all(summed, generated)["value"], expected)
    few = [part[:100] for part in clients]
    sample = clients[0][100:400] * 1.1
    kid = add(*(kid_message(KernelReference.from_features([part]), sample) for part in few))
    average = KernelReference.from_features(few).score(sample, errors=False).values["avg"]
    return {"fid_all": found, "kid_avg": relative(float(kid.tensors["score"] / kid.tensors["count"]), average)}


def noise_bias(toy: Toy, draws: int) -> dict[str, Any]:
    """FID-all without noise, the share of clipped images, and by epsilon and projection the changes noise makes."""
    clients, generated = toy.clients(), toy.generated()
    pooled = torch.cat(clients)
    base = fid_all(summarize(pooled), generated)
    found: dict[str, Any] = {"fid": base["value"], "clipped": float((pooled.norm(dim=1) > RADIUS).double().mean())}
    for epsilon in EPSILONS:
        privacy = Privacy(epsilon, DELTA, RADIUS, sharers=CLIENTS)
        rows: dict[str, list[float]] = {project: [] for project in get_args(Projecting)}
        lost = 0
        for number in range(draws):
            seed = derive(toy.seed, "private-scores", str(epsilon), number)
            total = add(*(private_sums(part, privacy, None, seed, i) for i, part in enumerate(clients)))
            for project in get_args(Projecting):
                score = fid_all(private_gaussian(total, privacy, project=project), generated)
                rows[project].append(score["value"] - base["value"])
                lost += project == "none" and score["covariance"] == 0
        found[str(epsilon)] = {**rows, "lost": lost}
    return found


def noise_multipliers() -> dict[str, dict[str, float]]:
    """Noise over sensitivity at epsilon 1 and 8, exact and by the textbook's formula."""
    accountants: tuple[Accountant, ...] = ("analytic", "classic")
    return {name: {str(e): noise_multiplier(e, DELTA, accountant=name) for e in (1.0, 8.0)} for name in accountants}


def sketch_jobs(numbers: tuple[int, ...], draws: int, seed: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what measures each form of sketch at each number of sketches q, by "form q"."""
    draw = generator(seed, "private-scores", "sketches")
    dim = 64
    clients = []
    for number in range(CLIENTS):
        mean = 0.5 + 0.5 * torch.randn(dim, generator=draw, dtype=torch.float64)
        scale = 0.6 + 0.04 * number
        clients.append(mean + scale * torch.randn(100, dim, generator=draw, dtype=torch.float64))
    generated = 0.5 + 0.9 * torch.randn(1000, dim, generator=draw, dtype=torch.float64)
    return {
        f"{form} {number}": partial(sketch_error, form, number, clients, generated, draws)
        for form in FORMS
        for number in numbers
    }


def sketch_error(form: str, number: int, clients: list[Tensor], generated: Tensor, draws: int) -> dict[str, Any]:
    """KID-all from sketches of several seeds beside the exact one, and the errors that the sketches state."""
    kernel = RBFKernel() if form.startswith("RBF") else PolynomialKernel()
    exact = KernelReference.from_features(clients, kernel).score(generated, errors=False).values["all"]
    kid = add(*(kid_message(KernelReference.from_features([part], kernel), generated) for part in clients))
    found = []
    for seed in range(draws):
        pool, other = sketched(form, number, seed, clients, generated)
        if form.endswith("server alone"):
            estimate = pool.mmd2(other)
            found.append((estimate.value, estimate.error))
        else:
            summed = kid_from_messages(kid, pool)
            found.append((summed.all, summed.error))
    values, stated = [value for value, _ in found], [error for _, error in found]
    return {"exact": exact, "values": values, "stated": stated, "rms": rms([value - exact for value in values])}


def sketched(form: str, number: int, seed: int, clients: list[Tensor], generated: Tensor) -> tuple[Any, Any]:
    """Return what the server reads from the sketches of all clients together and of the generated images."""
    dim, read = generated.shape[1], summarize(generated)
    if form.startswith("RBF"):
        waves = FourierSketch(dim, number, seed)
        return waves.read(add(*map(waves.message, clients))), waves.read(waves.message(generated))
    pooled = gaussian_from_message(add(*(gaussian_to_sums(summarize(part)) for part in clients)))
    cubic = CubicSketch(dim, number, seed, None if form.endswith("uncentred") else pooled.mean)
    return cubic.read(add(*map(cubic.message, clients)), pooled), cubic.read(cubic.message(generated), read)


def fid_all(pooled: Gaussian, generated: Gaussian) -> dict[str, float]:
    """FID of the generator to the clients' pool, and its covariance term."""
    score = FrechetReference.from_summaries([pooled]).score(generated, errors=False)
    return {"value": score.values["all"], "covariance": score.terms["covariance"]["all"]}


def relative(found: float, expected: float) -> float:
    """|found / expected - 1|."""
    return abs(found / expected - 1)


def rms(values: list[float]) -> float:
    """Root of the mean square."""
    return statistics.mean(value**2 for value in values) ** 0.5
