"""Who may take part: clients that say of themselves what clients can, each under its own name."""

import json
import re
import time
import warnings
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message

from fedgen.flower.server import client_registry as roster_file
from fedgen.flower.server.client_registry import CLIENTS, ClientRegistry
from fedgen.flower.server.connection import UnansweredError
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.flower_records import to_records
from fedgen.flower.wire.messages import pack
from tests.flower.connected import connection_to
from tests.flower.loopback import Loopback
from tests.flower.scripted import Scripted, hello_of


class Impostor(Scripted):
    """A node that says of itself what Flower's records of metrics would not take."""

    def introduce(self, message):
        records = to_records(hello_of("x"))
        records["fedgen"] = ConfigRecord({"rest": pack(self.hello)[1], "dtypes": []})
        return Message(records, reply_to=message)


class Mute(Scripted):
    """A node that never introduces itself, or not before it is told to."""

    speaks = False

    def introduce(self, message):
        self.message = message
        return super().introduce(message) if self.speaks else None


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(roster_file, "time", clock)
    return clock


HELLOS = {
    "name [1]": ({"name": [1]}, "name of the hello is [1]"),
    "name 3": ({"name": 3}, "name of the hello is 3"),
    "no name": ({"name": ""}, "name of the hello is '' and is not of 1 to 200 printable characters"),
    "long name": ({"name": "x" * 10**6}, "is not of 1 to 200 printable characters"),
    "name of a terminal": ({"name": "\x1b[2J"}, "printable characters"),
    "examples x": ({"examples": "x"}, "examples of the hello is 'x'"),
    "examples -5": ({"examples": -5}, "examples of the hello is -5"),
    "examples 0": ({"examples": 0}, "examples of the hello is 0 and is not 1 to"),
    "examples 2.5": ({"examples": 2.5}, "examples of the hello is 2.5"),
    "examples True": ({"examples": True}, "examples of the hello is True"),
    "examples 2**40": ({"examples": 2**40}, f"examples of the hello is {2**40} and is not 1 to"),
    "shape 3": ({"shape": 3}, "shape of the hello is 3"),
    "shape x": ({"shape": ("x",)}, "shape of the hello is ('x',)"),
    "negative shape": ({"shape": (-1, 8, 8)}, "shape of the hello is (-1, 8, 8)"),
    "huge shape": ({"shape": (2**20, 2**20)}, "has more than"),
    "empty shape": ({"shape": (1, 0, 8)}, "where one is 0 and is not 1 to"),
    "classes of lists": ({"classes": ([1],)}, "classes of the hello is ([1],)"),
    "unprintable class": ({"classes": ("\n",)}, r"where one is '\n' and is not of 0 to 255 printable"),
    "long class": ({"classes": ("x", "y" * 256)}, "is not of 0 to 255 printable characters"),
    "many classes": ({"classes": ("x",) * 100_001}, "has 100001 parts, not 0 to 100000"),
    "release of a terminal": ({"release": "\x1b[2J"}, r"release of the hello is '\x1b[2J' and is not of"),
    "long release": ({"release": "1" * 51}, "release of the hello is '1111"),
    "release 3": ({"release": 3}, "release of the hello is 3"),
}


def roster_of(*nodes, deadline=None):
    grid = Loopback(dict(enumerate(nodes, 10)))
    return ClientRegistry(grid, deadline), grid


@pytest.mark.parametrize("name", HELLOS)
def test_a_node_that_says_what_no_client_can_cannot_take_part(name, tmp_path):
    changes, reason = HELLOS[name]
    found, _ = roster_of(Scripted("a"), Impostor("x", replace(hello_of("x"), **changes)))
    with pytest.warns(UserWarning, match=f"node 11 cannot take part: .*{re.escape(reason)}"):
        found.wait_for_clients(tmp_path, 1, 1.0)
    assert [one.name for one in found.clients] == ["a"]
    assert found.nodes_of([0])[0] == 10


def test_a_client_that_says_it_has_more_images_than_the_run_allows_cannot_take_part(tmp_path):
    """Clients weigh by their own word: of a client of 2^31 images the mean is its update."""
    grid = Loopback(dict(enumerate([Scripted("a"), Scripted("b", hello_of("b", 2**31))], 10)))
    found = ClientRegistry(grid, most=1000)
    with pytest.warns(UserWarning, match="node"):
        found.wait_for_clients(tmp_path, 1, 1.0)
    assert [one.name for one in found.clients] == ["a"]


class Faulty(Scripted):
    """A node that answers with an error of Flower's."""

    def introduce(self, message):
        return Message(Error(2, "\x1b[2Jgone\x07" + "x" * 10**6), reply_to=message)


def test_what_a_client_says_of_its_error_is_shortened_text(tmp_path):
    found, _ = roster_of(Scripted("a"), Faulty("b"))
    with pytest.warns(UserWarning, match="x07x"):
        found.wait_for_clients(tmp_path, 1, 1.0)
    assert str(UnansweredError(1, "b", "\x1b[2J" + "x" * 10**6)).startswith(r"client 'b': \x1b[2Jxxx")


def test_nothing_is_made_of_a_size_that_is_only_claimed():
    """A client that says that it has a billion images costs no more than one of twelve."""
    start = time.process_time()
    data = RemoteClients(batch_size=1, _connection=connection_to(hello_of("a", 12), hello_of("b", 10**9)))
    assert [(len(one.train), len(one.held_out)) for one in data.clients] == [(10, 2), (8 * 10**8, 2 * 10**8)]
    turns = iter(data.train_dataloader())
    assert torch.equal(next(turns), torch.zeros(1))
    assert time.process_time() - start < 1


def test_the_name_of_a_client_that_is_there_is_refused_for_another_node(tmp_path):
    found, grid = roster_of(Scripted("a"), Scripted("b"))
    found.wait_for_clients(tmp_path, 2, 1.0)
    grid.nodes[12] = Scripted("a")
    with pytest.warns(UserWarning, match="node"):
        found.refresh()
    assert found.nodes_of([0])[0] == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.refresh()  # it is neither asked nor told of again
        assert grid.nodes[12].calls == ["query"]
        del grid.nodes[10]
        found.refresh()  # the client has come back as another node
    assert found.nodes_of([0])[0] == 12


def test_two_clients_of_one_name_do_not_stop_the_others(tmp_path):
    found, _ = roster_of(Scripted("a"), Scripted("a"), Scripted("b"))
    with pytest.warns(UserWarning, match="node"):
        found.wait_for_clients(tmp_path, 2, 1.0)
    assert [one.name for one in found.clients] == ["a", "b"]


def test_a_node_that_never_introduces_itself_delays_one_round_and_no_longer_than_its_deadline(tmp_path, clock):
    found, grid = roster_of(Scripted("a"), deadline=0.4)
    found.wait_for_clients(tmp_path, 1, 1.0)
    grid.nodes[11] = mute = Mute("b")
    waits = []
    for _ in range(3):
        start = clock.now
        found.refresh()
        waits.append(clock.now - start)
    assert 0.4 <= waits[0] < 0.5
    assert waits[1:] == [0, 0]
    assert mute.calls == ["query"]


def test_a_node_that_introduces_itself_late_is_heard(tmp_path):
    found, grid = roster_of(Scripted("a"), deadline=0.2)
    found.wait_for_clients(tmp_path, 1, 1.0)
    del grid.nodes[10]
    grid.nodes[11] = late = Mute("a")
    found.refresh()
    assert found.nodes_of([0])[0] is None
    late.speaks = True
    name = next(iter(found._waiting))
    grid.replies[name] = late.introduce(late.message)
    found.refresh()
    assert (found.nodes_of([0])[0], late.calls) == (11, ["query"])


def test_a_silent_node_is_asked_again_after_a_pause(tmp_path, clock):
    found, grid = roster_of(Scripted("a"), deadline=0.2)
    found.wait_for_clients(tmp_path, 1, 1.0)
    grid.nodes[11] = mute = Mute("b")
    found.refresh()
    clock.sleep(roster_file.PAUSE)
    start = clock.now
    found.refresh()
    assert mute.calls == ["query", "query"]
    assert clock.now == start  # and not waited for


def test_a_run_goes_on_without_a_client_that_is_gone_for_good(tmp_path):
    roster_of(Scripted("a"), Scripted("b"), Scripted("c"))[0].wait_for_clients(tmp_path, 3, 1.0)
    found, _ = roster_of(Scripted("a"), Scripted("c"), Scripted("d"))
    with pytest.raises(TimeoutError, match="seconds"):
        found.wait_for_clients(tmp_path, 3, 0.0)  # d is not one of them
    found, _ = roster_of(Scripted("a"), Scripted("c"))
    with pytest.warns(UserWarning, match="others"):
        found.wait_for_clients(tmp_path, 2, 0.0)
    assert [one.name for one in found.clients] == ["a", "b", "c"]
    assert found.nodes_of(range(3)) == {0: 10, 1: None, 2: 11}


def test_a_client_with_images_of_another_shape_than_before_does_not_take_part(tmp_path):
    roster_of(Scripted("a"), Scripted("b"))[0].wait_for_clients(tmp_path, 2, 1.0)
    found, _ = roster_of(Scripted("a"), Scripted("b", replace(hello_of("b"), shape=(3, 8, 8))))
    changed = r"'b' has 20 images of \[3, 8, 8\] and had 20 images of \[1, 8, 8\] when the run began"
    with pytest.warns(UserWarning, match=changed), pytest.warns(UserWarning, match="others"):
        found.wait_for_clients(tmp_path, 1, 0.0)


def test_a_client_with_other_images_than_before_does_not_take_part(tmp_path):
    roster_of(Scripted("a"), Scripted("b"))[0].wait_for_clients(tmp_path, 2, 1.0)
    two = [Scripted("b", hello_of("b", 21)) for _ in range(2)]
    found, grid = roster_of(Scripted("a"), *two)  # both claim a name that neither has
    changed = "node 11 cannot take part: client 'b' has 21 images of .* and had 20 images of .* when the run began"
    with (
        pytest.warns(UserWarning, match="others"),
        pytest.warns(UserWarning, match=changed),
        pytest.warns(UserWarning, match="node 12"),
    ):
        found.wait_for_clients(tmp_path, 1, 0.0)
    assert found.nodes_of([0, 1]) == {0: 10, 1: None}
    grid.nodes[13] = Scripted("b", hello_of("b", 19))
    with pytest.warns(UserWarning, match="node"):
        found.refresh()  # as another node, it still is not the client that it was
    assert found.nodes_of([1])[1] is None
    grid.nodes[14] = Scripted("b")
    found.refresh()
    assert found.nodes_of([1])[1] == 14


def test_a_node_that_answers_twice_is_one_client(tmp_path, monkeypatch):
    """Silent at first, it is asked again, and answers both under names of its own."""
    found, grid = roster_of(Scripted("a"), deadline=0.2)
    found.wait_for_clients(tmp_path, 1, 1.0)
    grid.nodes[11] = mute = Mute("b")
    messages = []
    monkeypatch.setattr(mute, "introduce", messages.append)
    monkeypatch.setattr(roster_file, "PAUSE", 0.0)
    found._introduced(0.2)
    found._introduced(0.2)
    names = list(found._waiting)
    assert len(names) == len(messages) == 2
    for name, message, said in zip(names, messages, "bc", strict=True):
        grid.replies[name] = Message(to_records(hello_of(said)), reply_to=message)
    assert list(found._introduced(0.2)) == ["b"]
    assert found._nodes == {"a": 10, "b": 11}


def test_a_roster_of_wrong_content_is_refused(tmp_path):
    whole = {"name": "a", "examples": 20, "shape": [1, 8, 8], "classes": [], "release": "1"}
    changes = [{"name": 3}, {"examples": "20"}, {"examples": 0}, {"shape": None}, {"classes": [3]}, {"colour": 1}]
    for content in ([whole, whole], whole, [3], *([whole | change] for change in changes)):
        (tmp_path / CLIENTS).write_text(json.dumps(content))
        with pytest.raises(ValueError, match="damaged"):
            roster_of(Scripted("a"))[0].wait_for_clients(tmp_path, 1, 0.0)
    (tmp_path / CLIENTS).write_text(json.dumps([whole]))
    found, _ = roster_of(Scripted("a"))
    found.wait_for_clients(tmp_path, 1, 1.0)
    assert found.clients == [replace(hello_of("a"), classes=())]
