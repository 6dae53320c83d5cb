"""How often a report's sentences about best, worst, better and worse are wrong, by simulation."""

import re

import numpy as np
import pytest

from fedgen.reports.sentences import differ, next_steps, verdict
from fedgen.reports.side_by_side import difference
from tests.evaluation.samples import record

pytestmark = pytest.mark.slow

DRAWS, ROUNDS, CLIENTS = 100, 8, 6
MOST = 0.05 + 2 * (0.05 * 0.95 / DRAWS) ** 0.5  # wrong in 5 percent, but for two errors of the simulation
NAMES = [f"client {place}" for place in range(CLIENTS)]


def scored(number, step=0.0, client_step=0.0, gap=0.0, floor=10.0):
    """A run's records: normal values, an error of 1 each, around means that rise by `step` a round."""
    noise = np.random.default_rng(number)
    about = {"standard_error": 1.0, "error_parts": {"generated": 1.0}, "num_clients": CLIENTS}
    found = []
    for round in (None, *range(ROUNDS)):
        mean, served = (floor, 0.0) if round is None else (10.0 + step * round, client_step)
        own = {**about, "generator": "floor" if round is None else "model"}
        for split in ("train", "part_val"):
            clients = mean + served * np.arange(CLIENTS) + noise.standard_normal(CLIENTS)
            each = {"per_client": clients.tolist(), "per_client_errors": [1.0] * CLIENTS, "client_names": NAMES}
            for how, more in (("avg", each), ("all", {})):
                found.append(record("fid", how, mean + noise.standard_normal(), round, split=split, **own, **more))
        if round is not None:
            lost = {"split": "gap/participation", "error_over_clients": 1.0, "num_clients": CLIENTS}
            found.append(record("fid", "avg", gap + noise.standard_normal(), round, **lost))
    return found


def told(**means):
    return [(records, verdict(records)) for records in (scored(number, **means) for number in range(DRAWS))]


@pytest.fixture(scope="module")
def alike():
    """Runs whose checkpoints, clients and real images all have one mean."""
    return told()


@pytest.fixture(scope="module")
def apart():
    """Runs whose first round is the best, whose last client is the worst, and whose real images are better."""
    return told(step=8.0, client_step=8.0, gap=8.0, floor=2.0)


def share(runs, says):
    return np.mean([bool(says(records, found)) for records, found in runs])


def best_rounds(found):
    """The rounds among which the best is, by the sentence."""
    words = re.match(
        r"With 95 % confidence the best by fid_all is (?:round |among \d of 8 rounds \()([\d, ]*\d)",
        found["As good"][0],
    )
    assert words, found["As good"]
    return set(words[1].split(", "))


def test_the_interval_of_the_chosen_one_holds(alike, apart):
    for runs in (alike, apart):
        ends = [re.search(r"its score is (-?[\d.]+\d) to (-?[\d.]+\d)", found["Take"][0]) for _, found in runs]
        assert np.mean([float(one[1]) <= 10 <= float(one[2]) for one in ends]) >= 1 - MOST


def test_the_first_of_equal_rounds_is_among_the_best(alike):
    assert share(alike, lambda records, found: "0" not in best_rounds(found)) <= MOST


def test_clear_rounds_are_alone(apart):
    assert share(apart, lambda records, found: best_rounds(found) == {"0"}) >= 0.95


@pytest.mark.parametrize(
    ("topic", "claim"),
    [
        ("Floor", r"(worse|better) than the floor"),
        ("Held out", r"beyond chance"),
        ("avg and all", r"[1-9]\d* for sure|Both orders hold"),
        ("Clients", r"client \d \([^)]*\) is served worst"),
        ("New clients", r"\)\.$"),
    ],
)
def test_what_is_said_of_equal_ones_is_wrong_in_at_most_five_percent(topic, claim, alike):
    assert all(topic in found for _, found in alike)
    assert share(alike, lambda records, found: re.search(claim, " ".join(found[topic]))) <= MOST


@pytest.mark.parametrize(
    ("topic", "claim"),
    [
        ("Floor", r"round 0 is .* worse than the floor"),
        ("Clients", r", client 5 \([^)]*\) is served worst and client 0 \([^)]*\) best"),
        ("New clients", r"\)\.$"),
    ],
)
def test_what_is_clear_is_said(topic, claim, apart):
    assert share(apart, lambda records, found: re.search(claim, " ".join(found[topic]))) >= 0.9


def test_a_run_that_does_not_improve_is_seldom_sent_on(alike):
    assert (
        share(alike, lambda records, found: any("continues" in words for words in next_steps(records, "R").values()))
        <= MOST
    )


def test_two_equal_scores_differ_in_five_percent():
    pairs = [[one for one in scored(number) if one.name == "fid_all" and one.is_model][:2] for number in range(DRAWS)]
    assert np.mean([differ(*pair) for pair in pairs]) <= MOST


@pytest.mark.parametrize("seeds", [1, 2, 3, 10])
def test_two_equal_recipes_are_told_apart_in_five_percent(seeds):
    wrong = 0
    for number in range(DRAWS):
        noise = np.random.default_rng(number)
        shared = noise.standard_normal(seeds) * 3  # what a seed does to both
        made = {"standard_error": 1.0, "error_parts": {"generated": 1.0}}
        pairs = [tuple(record(value=v + noise.standard_normal(), **made) for _ in range(2)) for v in shared]
        _, low, high = difference(pairs)
        wrong += not low <= 0 <= high
    assert wrong / DRAWS <= MOST
