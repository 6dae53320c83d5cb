"""Selection among many checkpoints: how often what the kit says of the best, of the chosen one and of pairs is right.

Models of known order are scored with few generated images (500) against five clients of 400 images in 32 features, many
times: with the same real images ("these"), or with others each time ("others"). Records go through the very code of
`fedgen select`. `set holds` is the share of draws whose set holds a best model, `set size` its mean size over that of
all within 1.96 combined errors of the best; `value held` the share of draws whose interval holds the chosen model's
mean score, `value width` its width over that of the value +- 1.96 errors; `fresh held` the same of images drawn for
the chosen model alone; `wrong` the share of draws in which any order that is called sure is wrong; `kept` how many of
the right claims of 1.96 combined errors about inverted pairs are among the sure ones.

Races (`fedgen select RUN --race`) are run on normal values, a chunk of 100 images having an error of 1, until none that
is left can be worse than the best by more than 0.4, and counted beside one look at all models alike. Both are planned
for equal models, of which as many images are looked at as say so much in nine of ten draws.

    python -m benchmarks.selection [--draws 100] [--cases "equal 40" "spread 100"]

Forty minutes for all cases on one thread.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import report
from fedgen.evaluation import ScoreRecord, compare
from fedgen.evaluation.plan import records_of
from fedgen.evaluation.runs.evaluate_run import LOOKS, narrow_down
from fedgen.evaluation.runs.selection import Real, best_records, covariance_of, say_best
from fedgen.scores import FrechetReference, KernelReference
from fedgen.scores.frechet.frechet import NAMES
from fedgen.scores.rankings import Z, winner

DIM, CLIENTS, IMAGES, GENERATED = 32, 5, 400, 500
SCORES = ("fid", "fidc", "kid")
ABOUT: dict[str, Any] = {"split": "train", "embedding": "features", "embedding_fingerprint": "", "reference": ""}
ABOUT |= {"num_clients": CLIENTS, "seed": 0, "weights": "examples"}


@dataclass(frozen=True)
class Case:
    """Models of one kind.

    Args:
        shifts: by how much each model's first feature is off.
        real: whether the clients' images are the same in all draws.
        apart: how far the clients' means lie apart.
        mixed: whether models spread over the clients less and less, by which avg gets better and all worse.
    """

    shifts: Sequence[float]
    real: Real
    apart: float = 1.0
    mixed: bool = False


def near(number: int) -> list[float]:
    """Five models that are nearly the best, and others that are clearly worse."""
    return [0.5 + 0.004 * place for place in range(5)] + np.linspace(0.6, 0.9, number - 5).tolist()


CASES = {
    "equal 2": Case([0.5] * 2, "fixed"),
    "equal 10": Case([0.5] * 10, "fixed"),
    "equal 40": Case([0.5] * 40, "fixed"),
    "equal 100": Case([0.5] * 100, "fixed"),
    "equal 200": Case([0.5] * 200, "fixed"),
    "equal 40, others": Case([0.5] * 40, "sample"),
    "spread 10": Case(np.linspace(0.4, 1.2, 10).tolist(), "fixed"),
    "spread 40": Case(np.linspace(0.4, 1.2, 40).tolist(), "fixed"),
    "spread 40, others": Case(np.linspace(0.4, 1.2, 40).tolist(), "sample"),
    "spread 100": Case(np.linspace(0.4, 1.2, 100).tolist(), "fixed"),
    "near 40": Case(near(40), "fixed"),
    "near 40, others": Case(near(40), "sample"),
    "perfect 10": Case([0.0] * 10, "fixed"),
    "perfect 40, others": Case([0.0] * 40, "sample"),
    "inverted 20": Case([0.3] * 20, "fixed", apart=4.0, mixed=True),
}


def real_images(seed: int, apart: float) -> list[Tensor]:
    """The clients' images: of different means along the second feature."""
    draws = torch.Generator().manual_seed(seed)
    parts = [torch.randn(IMAGES, DIM, generator=draws, dtype=torch.float64) for _ in range(CLIENTS)]
    for client, part in enumerate(parts):
        part[:, 1] += apart * 2 * (client - (CLIENTS - 1) / 2) / CLIENTS
    return parts


def generated(case: Case, model: int, seed: tuple[int, ...]) -> Tensor:
    """One model's images, over all clients; of mixed models the last one's are as if of the middle client alone."""
    draws = torch.Generator().manual_seed(hash((*seed, model)) % 2**62)
    images = torch.randn(GENERATED, DIM, generator=draws, dtype=torch.float64)
    share = 1 - model / (len(case.shifts) - 1) if case.mixed else 1.0
    clients = torch.randint(CLIENTS, (GENERATED,), generator=draws)
    images[:, 1] += case.apart * share * 2 * (clients - (CLIENTS - 1) / 2) / CLIENTS
    images[:, 0] += case.shifts[model]
    return images


Draw = tuple[list[ScoreRecord], Callable[[int], list[ScoreRecord]]]  # and those of a model on fresh images


class Scores:
    """The three scores of models against the same clients, as records."""

    def __init__(self, clients: Sequence[Tensor]) -> None:
        self._frechet = FrechetReference(clients, "examples", 1, ["plug-in", "corrected"])
        self._kernel = KernelReference.from_features(clients)

    def records(self, images: Tensor, round: int) -> list[ScoreRecord]:
        """The records of one model's images."""
        found = self._frechet.measure_all(images)
        scores = [self._frechet.combined(NAMES[bias], one) for bias, one in zip(self._frechet.biases, found)]
        scores.append(self._kernel.score(images))
        names = [f"client {place}" for place in range(CLIENTS)]
        return records_of(scores, names, {**ABOUT, "num_generated": GENERATED, "round": round})


@lru_cache(maxsize=1)
def scores_of(real: int, apart: float) -> Scores:
    """The scores against the clients' images of a seed."""
    return Scores(real_images(real, apart))


def draw(case: Case, number: int) -> Draw:
    """The records of all models in one draw."""
    real = 0 if case.real == "fixed" else 1 + number
    every: list[ScoreRecord] = []
    for model in range(len(case.shifts)):
        every += scores_of(real, case.apart).records(generated(case, model, (number, 0)), model)

    def fresh(model: int) -> list[ScoreRecord]:
        return scores_of(real, case.apart).records(generated(case, model, (number, 1)), model)

    return every, fresh


def column(records: Sequence[ScoreRecord], name: str) -> list[ScoreRecord]:
    """The records of one score and aggregate, by round."""
    return sorted((record for record in records if record.name == name), key=lambda record: record.round or 0)


def naive_set(records: Sequence[ScoreRecord], real: Real) -> list[ScoreRecord]:
    """Those within 1.96 combined errors of the best."""
    best = min(records, key=lambda record: record.badness)
    own = covariance_of(records, real).diagonal()
    far = Z * np.sqrt(own + own[records.index(best)])
    return [one for one, most in zip(records, far) if one.badness - best.badness <= most]


def report_score(label: str, case: Case, draws: Sequence[Draw], score: str) -> bool:
    """Print the figures of one score; whether they meet their goals."""
    columns = {how: [column(records, f"{score}_{how}") for records, _ in draws] for how in ("avg", "all")}
    values = {how: np.array([[one.value for one in own] for own in columns[how]]) for how in columns}
    means = {how: found.mean(0) for how, found in values.items()}
    for found in means.values():  # models of one law have one mean
        for shift in set() if case.mixed else set(case.shifts):
            alike = [place for place, own in enumerate(case.shifts) if own == shift]
            found[alike] = found[alike].mean()
    slack = {how: 3 * found.std(0).max() / len(draws) ** 0.5 for how, found in values.items()}
    held = sizes = before = value_held = width = fresh_held = wrong = claims = sure = 0.0
    for number, ((_, fresh), own) in enumerate(zip(draws, columns["all"])):
        found, mean = best_records(own, case.real), means["all"]
        held += any(bool(mean[one.round or 0] <= mean.min() + slack["all"] / 3) for one in found)
        sizes, before = sizes + len(found), before + len(naive_set(own, case.real))
        chosen = winner([one.badness for one in own], covariance_of(own, case.real))
        error = covariance_of(own, case.real)[chosen.place, chosen.place] ** 0.5
        value_held += bool(chosen.low <= mean[chosen.place] <= chosen.high)
        width += float((chosen.high - chosen.low) / (2 * Z * error))
        if case.real == "fixed":
            (again,) = column(fresh(chosen.place), f"{score}_all")
            fresh_held += bool(abs(again.value - mean[chosen.place]) <= Z * again.generated_error)
        pairs = compare([*columns["avg"][number], *own], f"{score}_avg", f"{score}_all").pairs
        orders = [_right(pair.better_by_first, pair.better_by_second, means, slack) for pair in pairs]
        wrong += any(pair.holds and not right for pair, right in zip(pairs, orders))
        claims += sum(pair.beyond_error and right for pair, right in zip(pairs, orders))
        sure += sum(pair.holds and right for pair, right in zip(pairs, orders))
    number, kept, where = len(draws), True, f"{label}, {score}"
    noise = 200 * (0.05 * 0.95 / number) ** 0.5  # two standard errors of a share, in percent
    kept &= report(f"{where}: set misses every best one", 100 - 100 * held / number, "%", 5 + noise)
    kept &= report(f"{where}: set size over that of 1.96 errors", sizes / before, "1", 1.7)
    kept &= report(f"{where}: value's interval misses", 100 - 100 * value_held / number, "%", 8 + noise)
    kept &= report(f"{where}: value's width over that of 1.96 errors", width / number, "1", 1.4)
    if case.real == "fixed":
        kept &= report(f"{where}: fresh images' interval misses", 100 - 100 * fresh_held / number, "%", 7 + noise)
    kept &= report(f"{where}: a sure order is wrong", 100 * wrong / number, "%", 5 + noise)
    if claims >= number:
        kept &= report(f"{where}: right claims of inversions that are not sure", 100 - 100 * sure / claims, "%", 25)
    return kept


def _right(first: int, second: int, means: dict[str, Any], slack: dict[str, Any]) -> bool:
    """Whether the first model is better by avg and the second by all."""
    gaps = means["avg"][second] - means["avg"][first], means["all"][first] - means["all"][second]
    return bool(gaps[0] > -slack["avg"] and gaps[1] > -slack["all"] and min(map(abs, gaps)) > 0)


RACES = {  # means of models, and the most images of a race over those of one look
    "equal 10": ([0.0] * 10, 1.5),
    "equal 40": ([0.0] * 40, 1.5),
    "equal 100": ([0.0] * 100, 1.5),
    "spread 40": (np.arange(40) * 0.2, 1 / 3),
    "spread 100": (np.arange(100) * 0.2, 1 / 3),
    "near 10": (np.r_[np.zeros(5), np.linspace(1, 3, 5)], 0.8),
    "near 40": (np.r_[np.zeros(5), np.linspace(1, 3, 35)], 1 / 3),
}
WIDTH, CHUNK = 0.4, 100


def _running_mean(means: Sequence[float], sums: Any, model: int, images: int) -> ScoreRecord:
    """The record of a model by that many images, chunks of which have summed errors [M, chunks]."""
    chunks = images // CHUNK
    value, error = float(means[model] + sums[model, chunks - 1] / chunks), chunks**-0.5
    about = {**ABOUT, "num_generated": images, "round": model}
    return ScoreRecord("kid", "all", value, error, **about, error_parts={"generated": error})


def report_race(name: str, draws: int) -> bool:
    """Print how many images races of a kind take, and how often they lose the best."""
    means, limit = RACES[name]
    between = np.quantile(np.ptp(np.random.default_rng(0).standard_normal((1000, len(means))), axis=1), 0.9)
    worse = [2**0.5 * NormalDist().inv_cdf(1 - 0.05 / (looks * (len(means) - 1))) for looks in (1, LOOKS)]
    alone, most = (math.ceil(((between + one) / WIDTH) ** 2) for one in worse)  # chunks of a model
    last = 2 ** (LOOKS - 1) * math.ceil(most / 2 ** (LOOKS - 1))
    spent, lost = 0.0, 0
    for number in range(draws):
        noise = np.random.default_rng(number).standard_normal((len(means), last)).cumsum(1)

        score = partial(_running_mean, means, noise)
        sizes = [CHUNK * last // 2**step for step in reversed(range(LOOKS))]
        looks, left, _ = narrow_down(range(len(means)), score, sizes, width=WIDTH)
        images = [size for size, _ in looks]
        spent += sum((size - before) * models for (size, models), before in zip(looks, [0, *images]))
        lost += not any(means[record.round or 0] == min(means) for record in left)
    kept = report(
        f"race, {name}: images over those of one look", spent / (draws * len(means) * CHUNK * alone), "1", limit
    )
    return kept & report(f"race, {name}: the best is lost", 100 * lost / draws, "%", 5 + 200 * (0.0475 / draws) ** 0.5)


def report_time(number: int = 100) -> bool:
    """Print the time of what is said of many checkpoints."""
    records, _ = draw(replace(CASES["spread 100"], real="sample"), 0)
    start = time.perf_counter()
    for score in SCORES:
        say_best(column(records, f"{score}_all"))
        compare(records, f"{score}_avg", f"{score}_all")
    spent = time.perf_counter() - start
    return report(f"{number} checkpoints, three scores: all that is said", spent, "s", 5.0 * len(SCORES))


def main() -> int:
    """Print all figures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--races", nargs="*", choices=list(RACES), default=list(RACES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = report_time()
    for name in options.races:
        kept &= report_race(name, options.draws)
    for name in options.cases:
        draws = [draw(CASES[name], number) for number in range(options.draws)]
        for score in SCORES:
            kept &= report_score(name, CASES[name], draws, score)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
