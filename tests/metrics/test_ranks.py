"""Two processes compute what one does, whichever of them saw which images."""

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from fedgen.scores import frechet_distance
from fedgen.statistics import summarize
from tests.metrics.sets import CLIENTS, FEDERATED, GENERATED, METRICS, filled, values

pytestmark = pytest.mark.slow  # a new process that imports torch

FAR = 1e5, -1e5  # of what each rank sees


def update(name, metric, rank):
    """Rank 0 sees clients 0 and 1; rank 1 the rest of client 1, client 2 and the generated images."""
    federated = name in FEDERATED
    shares = {0: [(0, CLIENTS[0]), (1, CLIENTS[1][:3])], 1: [(1, CLIENTS[1][3:]), (2, CLIENTS[2])]}
    for client, part in shares[rank]:
        metric.update(part, client if federated else True)
    if rank == 1:
        metric.update(GENERATED, None if federated else False)


def compute_twice(name, rank, **arguments):
    """The result; that after as many images again, which needs the rank's own states back; and the update count."""
    metric = METRICS[name](**arguments)
    update(name, metric, rank)
    first = values(metric)
    update(name, metric, rank)
    return first, values(metric), metric.update_count


def compute_too_early(name, rank, **arguments):
    """The message of an error while states are joined, and the result once the images are there."""
    metric = METRICS[name](**arguments)
    if rank == 0:
        update(name, metric, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rank 1 computes before its first update
            metric.compute()
    except ValueError as error:
        message = str(error)
    if rank == 1:
        update(name, metric, 1)
    return message, values(metric)


def compute_with_others(name, rank, told=True):
    """What comes of ranks that differ in the number of features."""
    metric = METRICS[name](dim=6 + rank if told else None)
    side = {"client": None} if name in FEDERATED else {"real": False}
    metric.update(torch.rand(3, 6 + rank), **side)
    try:
        metric.compute()
    except ValueError as error:
        return str(error)


def compute_far_apart(rank):
    """The distance where ranks saw features around 1e5 and -1e5."""
    metric = METRICS["frechet"]()
    metric.update(CLIENTS[2].double() + FAR[rank], real=True)
    if rank == 1:
        metric.update(GENERATED.double() + FAR[rank], real=False)
    return values(metric)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: compute_twice(name, rank) for name in METRICS}
    found |= {f"{name} all": compute_twice(name, rank, aggregate="all") for name in FEDERATED}
    found |= {f"{name} early": compute_too_early(name, rank) for name in METRICS}
    found |= {f"{name} other": compute_with_others(name, rank) for name in METRICS}
    found |= {f"{name} inferred": compute_too_early(name, rank, dim=None) for name in METRICS}
    found |= {f"{name} other inferred": compute_with_others(name, rank, told=False) for name in METRICS}
    found["far apart"] = compute_far_apart(rank)
    found["lightning"] = [name for name in ("lightning", "pytorch_lightning") if name in sys.modules]
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def work_forked(_: int, folder: str) -> None:
    """Rank 0 in this process and rank 1 in a fork of it, for which nothing is imported again."""
    child = os.fork()
    work(int(child == 0), folder)
    if child:
        assert os.waitpid(child, 0)[1] == 0
    os._exit(0)  # without Python's end, which clears for seconds what was imported


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(work_forked, (str(folder),))
    return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(2)]


def close(found, expected, rtol=1e-11):
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0.0)


def twice(name, **arguments):
    metric = filled(name, **arguments)
    metric.merge_state(metric)
    return values(metric)


@pytest.mark.parametrize("name", METRICS)
def test_both_ranks_compute_what_one_process_does(ranks, name):
    for found, _, _ in (rank[name] for rank in ranks):
        close(found, values(filled(name)))


@pytest.mark.parametrize("name", FEDERATED)
def test_both_ranks_compute_the_pools_score(ranks, name):
    for found, more, _ in (rank[f"{name} all"] for rank in ranks):
        close(found, values(filled(name, aggregate="all")))
        close(more, twice(name, aggregate="all"))


@pytest.mark.parametrize("name", METRICS)
def test_ranks_have_their_own_states_back_after_computing(ranks, name):
    for (_, more, count), expected in zip((rank[name] for rank in ranks), (4, 6)):
        close(more, twice(name), rtol=1e-8)  # four images twice are of rank three in six features
        assert count == expected


@pytest.mark.parametrize("name", METRICS)
def test_an_error_over_ranks_names_the_side_and_leaves_the_metric_usable(ranks, name):
    for message, found in (rank[f"{name} early"] for rank in ranks):
        assert "images seen, the score needs 2" in message
        close(found, values(filled(name)))


@pytest.mark.parametrize("name", METRICS)
def test_ranks_that_were_made_differently_raise_and_do_not_hang(ranks, name):
    for message in (rank[f"{name} other"] for rank in ranks):
        assert "differ in embedding" in message


@pytest.mark.parametrize("name", METRICS)
def test_a_rank_without_images_learns_from_the_other_how_many_features_there_are(ranks, name):
    for message, found in (rank[f"{name} inferred"] for rank in ranks):
        assert "images seen, the score needs 2" in message
        close(found, values(filled(name)))
    for message in (rank[f"{name} other inferred"] for rank in ranks):
        assert "saw images of [6, 7] features; pass dim=D" in message


def test_ranks_whose_features_lie_far_apart_lose_nothing(ranks):
    real = torch.cat([CLIENTS[2].double() + mean for mean in FAR])
    exact = frechet_distance(summarize(real), summarize(GENERATED.double() + FAR[1]))[0]
    for rank in ranks:
        assert rank["far apart"]["value"].item() == pytest.approx(exact, rel=1e-12)


def test_a_process_with_the_metrics_alone_has_not_imported_lightning(ranks):
    assert [rank["lightning"] for rank in ranks] == [[], []]
