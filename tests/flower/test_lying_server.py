"""A server that does not follow the protocol of masked sums learns no single client's numbers."""

import re

import pytest
import torch

from fedgen.flower.client.pins import hold_to_clients
from fedgen.flower.client.policy import RefusedError
from fedgen.statistics import Privacy
from fedgen.statistics.private import promise_of
from tests.flower.lying_server import LARGEST, LyingServer, RefusalError
from tests.flower.runs import app_of, recipe, write_images

SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", "kid"]}
NODES, OTHERS = [10, 11, 12, 13], [11, 12, 13]
NOISE = {"statistics-epsilon": 8.0, "statistics-delta": 1e-3, "statistics-radius": 6.0}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return app_of(recipe(1, SCORES), tmp_path_factory.mktemp("app"), 4)


@pytest.fixture
def server(path, images, tmp_path):
    return lambda names="abcd", config=(): LyingServer(path, images, tmp_path, names, config)


@pytest.mark.slow
def test_a_server_that_follows_the_protocol_reads_the_sum(server, images):
    """So that what the others do not learn, they could have learnt."""
    asked = server()
    asked.mask(asked.asking())
    asked.unmask(NODES)
    total = asked.read(asked.sum_of(NODES), 4)
    assert asked.refusals == []
    counts = [len(list((images / name).rglob("*.png"))) for name in "abcd"]
    assert float(total.tensors["count"]) == sum(count - int(0.2 * count) for count in counts)


UNMASKINGS = {
    "one client": ([10], OTHERS, "fewer than two clients"),
    "a client that is there and gone": (NODES, [10], "twice, or to have left it and to be in it"),
    "a client twice": ([*NODES, 10], [], "twice, or to have left it"),
    "all but one": (OTHERS, [10], "or without this one|and a would be missing"),
    "a node that nobody named": ([*NODES, 14], [], "over node 14, which nobody named"),
    "nobody": ([], NODES, "fewer than two clients"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNMASKINGS)
def test_no_client_helps_to_unmask_one_clients_numbers(name, server):
    there, gone, said = UNMASKINGS[name]
    asked = server()
    asked.mask(asked.asking())
    asked.unmask(there, gone)
    assert len(asked.refusals) == 4
    assert asked.sum_of([10], OTHERS) is None
    assert any(re.search(said, refusal) for refusal in asked.refusals), asked.refusals


def test_no_two_groups_of_clients_are_told_different_things_of_one(server):
    """Half of them gave the shares of its mask and half those of its key."""
    asked = server()
    with pytest.raises(RefusalError, match="unmasked"):
        asked.mask(asked.asking(), {"threshold": 2})


SETTINGS = {
    "a threshold of one": ({"threshold": 1}, "more than half of them"),
    "a threshold beyond all": ({"threshold": 5}, "more than half of them"),
    "a cohort of one": ({"sample_num": 1, "share_num": 1, "threshold": 1}, "over 2 to 1023 clients"),
    "a cohort without end": ({"sample_num": 10**6, "share_num": 10**6, "threshold": 10**6}, "over 2 to 1023 clients"),
    "fewer shares": ({"share_num": 3}, "share_num=4"),
    "shares without end": ({"share_num": 10**6}, "share_num=4"),
    "another range": ({"clipping_range": 1e-9}, "clipping_range=1.0"),
    "few steps": ({"target_range": 1}, "target_range=4194304"),
    "narrow masks": ({"mod_range": 1}, "mod_range=4294967296"),
    "no largest weight": ({"max_weight": float("nan")}, "has a largest weight, and this one nan"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_exchange_that_could_show_a_client_are_refused(name, server):
    settings, said = SETTINGS[name]
    asked = server()
    with pytest.raises(RefusalError, match=said):
        asked.share_keys(NODES, settings)


def only_a(node):
    """Ranges in which all others' numbers are rounded to nothing."""
    return LARGEST if node == 10 else dict.fromkeys(LARGEST, 1e100)


ALIKE = {
    "other ranges": lambda server: server.asking(largest=only_a),
    "another split": lambda server: lambda node: server.asking(split="train" if node == 10 else "report")(node),
    "other tensors": lambda server: lambda node: server.asking(tensors={"x": torch.full((2,), float(node))})(node),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_what_clients_are_asked_for_differently_is_not_unmasked(name, server):
    asked = server()
    asked.mask(ALIKE[name](asked))
    asked.unmask(NODES)
    assert len(asked.refusals) == 4
    assert all("was asked for something else than this client" in said for said in asked.refusals)


def test_what_clients_say_to_each_other_must_be_passed_on(server):
    asked = server("ab")
    asked.mask(asked.asking())
    asked.passes_on = False
    asked.unmask([10, 11])
    assert all("does not say what it was asked for" in said for said in asked.refusals)
    assert len(asked.refusals) == 2


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"tensors": {"of no use": torch.ones(3)}}, {"split": "report"}], ids=str)
def test_no_statistic_is_summed_over_fewer_clients_another_time(changes, server):
    """The difference would be the missing one's; a question that says the same in other words is no other."""
    first = server()
    first.mask(first.asking())
    first.unmask(NODES)
    assert first.refusals == []
    second = server("abc")
    second.mask(second.asking(**changes))
    second.unmask([10, 11, 12])
    assert [said.split(": ")[2] for said in second.refusals] == [
        "an evaluation was summed over a, b, c, d before and is now over a, b, c"
    ] * 3


@pytest.mark.slow
def test_another_exchange_of_the_run_changes_nothing_of_what_a_client_expects(server):
    """Two runs of one name have one folder at a client, and masks of their own."""
    first, second = server(), server()
    first.mask(first.asking())
    second.mask(second.asking(tensors={"x": torch.ones(2)}))
    first.unmask([10, 11, 12], [13])
    assert any("d would be missing" in said for said in first.refusals)
    first = server()
    first.share_keys(NODES, {})
    first.sealed = {}
    first.unmask(NODES)  # of what it gave no numbers for
    assert len(first.refusals) == 4


AMONG = {
    "nobody": {},
    "one name twice": {"10": "a", "11": "a"},
    "another name for itself": {"10": "b", "11": "a"},
    "others alone": {"11": "b", "12": "c"},
    "no nodes": {"x": "a", "y": "b"},
    "a terminal's commands": {"10": "\x1b[2J", "11": "b"},
}


@pytest.mark.parametrize("name", AMONG)
def test_a_client_knows_itself_among_those_who_are_named(name, server):
    asked = server("ab")
    with pytest.raises(RefusalError, match="RefusedError") as caught:
        asked.mask(asked.asking(among=AMONG[name], clients=len(AMONG[name])))
    assert "\x1b" not in str(caught.value)


def test_noise_is_shared_by_those_who_are_named_and_no_more(server):
    """A thousandth of the noise each, in a sum over two."""
    asked = server("ab", NOISE)
    promise = promise_of(Privacy(8.0, 1e-3, 6.0, "replace", "public", sharers=1000))
    with pytest.raises(RefusalError, match="weight"):
        asked.mask(asked.asking("private-sums", promise=promise, clients=1000))


def test_sums_of_an_evaluation_weigh_all_clients_alike(server):
    asked = server("ab")
    with pytest.raises(RefusalError, match="weight"):
        asked.mask(asked.asking(), weight=0)


def test_names_of_others_are_shown_as_text(tmp_path):
    hold_to_clients(tmp_path, "round 3", ["a", "b\x1b[2J"])
    with pytest.raises(RefusedError, match="u202e"):
        hold_to_clients(tmp_path, "round 3", ["a", "\u202e"])
