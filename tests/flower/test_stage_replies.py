"""Replies to the stages of secure aggregation that cannot be used: one client's cost the others nothing."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedgen.flower.secure_aggregation.agreement import STEPS
from fedgen.flower.secure_aggregation.secure_mean import (
    Masked,
    masked,
    mean_error,
    read_instructions,
    secure_mean,
    write_summand,
)
from tests.flower.loopback import Loopback, Node, Odd, empty
from tests.quick import first_quick

RUN = {"secure-aggregation": True}
NODES = range(10, 14)


def value(node):
    return np.full(3, node / 20)


def node_of(number, change=None, stage=-1, weight=1, factor=1):
    app = ClientApp(mods=[masked])

    @app.train()
    def train(message, context):
        read_instructions(message)
        return FlowerMessage(write_summand(Masked([factor * value(number)], b"open", weight)), reply_to=message)

    return Odd(app, {}, RUN, change, {stage}) if change else Node(app, {}, RUN)


def mean_of(nodes):
    return secure_mean(Loopback(nodes), {node: ([np.zeros(1)], b"", 1) for node in nodes}, 0, 0.05)


def with_parts(**parts):
    """The reply with other parts of the stage's; None takes one away."""

    def change(message, reply):
        record = dict(reply.content.config_records[RECORD_KEY_CONFIGS])
        record |= {name: part(record) if callable(part) else part for name, part in parts.items()}
        kept = {name: part for name, part in record.items() if part is not None}
        reply.content[RECORD_KEY_CONFIGS] = ConfigRecord(kept)
        return reply

    return change


def with_rest(rest):
    def change(message, reply):
        reply.content["fitres.metrics"] = ConfigRecord(rest)
        return reply

    return change


def nothing(message, reply):
    return empty(message)


def silent(message, reply):
    return None


def short(name):
    return lambda record: record[name][:-1]


KEY = public_key_to_bytes(generate_key_pairs()[1])
FAULTS = {
    "silence for keys": (0, silent, "it did not answer within"),
    "no keys": (0, nothing, "it lacks 'pk1'"),
    "one key": (0, with_parts(pk2=None), "it lacks 'pk2'"),
    "text for a key": (0, with_parts(pk1="x"), "stage 'setup' of secure aggregation is unusable"),
    "bytes that are no key": (0, with_parts(pk2=b"x"), "stage 'setup' of secure aggregation is unusable"),
    "one key twice": (0, with_parts(pk1=KEY, pk2=KEY), "its keys are not its own"),
    "silence for shares": (1, silent, "it did not answer within"),
    "no shares": (1, nothing, "it lacks 'ctxts'"),
    "fewer shares": (1, with_parts(dsts=short("dsts")), "no lists of one length"),
    "shares for fewer": (1, with_parts(dsts=short("dsts"), ctxts=short("ctxts")), "not bytes for each of the clients"),
    "shares for a stranger": (1, with_parts(dsts=[99, 98, 97]), "not bytes for each of the clients"),
    "shares of text": (1, with_parts(ctxts=["x"] * 3), "not bytes for each of the clients"),
    "no numbers": (2, nothing, "stage 'collect_masked_vectors' of secure aggregation is unusable"),
    "nothing in the open": (2, with_rest({}), "KeyError"),
    "text in the open": (2, with_rest({"fedgen": "x"}), "what it tells in the open is a str"),
    "numbers that are none": (2, with_parts(masked_params=[b"x", b"y"]), "has a damaged header"),
    "one array": (2, with_parts(masked_params=short("masked_params")), "its form differs from the others'"),
    "floats": (
        2,
        with_parts(masked_params=[ndarray_to_bytes(np.zeros(1)), ndarray_to_bytes(np.zeros(3))]),
        "its masked numbers are not whole",
    ),
    "a wide array": (
        2,
        with_parts(masked_params=lambda r: [r["masked_params"][0], ndarray_to_bytes(np.zeros((9, 3), int))]),
        "its form differs from the others'",
    ),
}
LAST = {
    "silence at the end": (silent, "it did not answer within"),
    "no shares at the end": (nothing, "it lacks 'shares'"),
    "shares of a stranger": (with_parts(nids=[10, 11, 12, 99]), "not bytes for each of the clients"),
    "shares without owners": (with_parts(nids=[]), "no lists of one length"),
    "empty shares": (with_parts(shares=[b""] * 4), "its form differs from the others'"),
}


@pytest.mark.parametrize("name", first_quick(FAULTS))
def test_the_mean_is_that_of_the_others_and_the_client_is_named(name):
    stage, change, reason = FAULTS[name]
    found = mean_of({node: node_of(node) for node in NODES} | {12: node_of(12, change, stage)})
    assert list(found.failures) == [12]
    assert reason in found.failures[12]
    assert found.rests == dict.fromkeys((10, 11, 13), b"open")
    np.testing.assert_allclose(found.mean[0], value((10 + 11 + 13) / 3), atol=2 * 2 / STEPS)


@pytest.mark.parametrize("name", LAST)
def test_a_client_that_does_not_help_unmask_is_in_the_mean_and_named(name):
    change, reason = LAST[name]
    found = mean_of({node: node_of(node) for node in NODES} | {12: node_of(12, change, 3)})
    assert list(found.failures) == [12]
    assert reason in found.failures[12]
    assert found.rests == dict.fromkeys(NODES, b"open")
    np.testing.assert_allclose(found.mean[0], value(sum(NODES) / 4), atol=2 * 2 / STEPS)


@pytest.mark.slow
def test_clients_that_drop_out_at_different_stages_leave_the_others_mean():
    """Of seven, five are enough: one gives no shares, another no numbers."""
    nodes = {node: node_of(node) for node in range(10, 17)}
    found = mean_of(nodes | {11: node_of(11, silent, 1), 14: node_of(14, nothing, 2)})
    assert sorted(found.failures) == [11, 14]
    np.testing.assert_allclose(found.mean[0], value((10 + 12 + 13 + 15 + 16) / 5), atol=2 * 2 / STEPS)


def noise(record):
    first, *arrays = record["masked_params"]
    draws = np.random.default_rng(0)
    return [first, *(ndarray_to_bytes(draws.integers(0, 2**32, bytes_to_ndarray(one).shape)) for one in arrays)]


def test_there_is_no_mean_of_what_no_summands_are():
    """The form is right and the numbers are not a client's own behind its masks: nobody would know, but for the sum."""
    with pytest.warns(UserWarning, match="exceed"):
        found = mean_of({node: node_of(node) for node in NODES} | {12: node_of(12, with_parts(masked_params=noise), 2)})
    assert found.mean is None
    assert found.rests == {}


def test_what_is_beyond_the_range_is_cut_off_whatever_the_clients_weight():
    """A fourth of the weight, and entries of 2.4: they count as 1."""
    nodes = {10: node_of(10, weight=4), 12: node_of(12, factor=4)}
    asked = {10: ([np.zeros(1)], b"", 4), 12: ([np.zeros(1)], b"", 1)}
    found = secure_mean(Loopback(nodes), asked, 0, 1.0)
    np.testing.assert_allclose(found.mean[0], np.full(3, (4 * 0.5 + 1) / 5), atol=mean_error([4, 1], 4))


def test_clients_of_nearly_no_weight_have_no_mean():
    """A share of less than half a step is none; where the client that weighs most has dropped out, all may be."""
    assert mean_error([1, 1], 2**24) == math.inf
    assert mean_error([1, 1], 2) == pytest.approx(2 * 2 / STEPS)


class Left(Loopback):
    """A grid from which node 12 is taken off after so many messages: what is sent to it has no identity."""

    def __init__(self, nodes, messages):
        super().__init__(nodes)
        self.messages = messages

    def push_messages(self, messages):
        return [
            None if message.metadata.dst_node_id == 12 and self.sent >= self.messages else self._push(message)
            for message in messages
        ]

    def pull_messages(self, message_ids):
        assert None not in message_ids  # Flower's raises TypeError
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("stage", range(4))
def test_a_node_that_is_taken_off_between_two_stages_has_dropped_out(stage):
    grid = Left({node: node_of(node) for node in NODES}, 4 * stage)
    found = secure_mean(grid, {node: ([np.zeros(1)], b"", 1) for node in NODES}, 0, 1.0)
    assert list(found.failures) == [12]
    there = [node for node in NODES if node != 12 or stage == 3]
    np.testing.assert_allclose(found.mean[0], value(sum(there) / len(there)), atol=2 * 2 / STEPS)


def test_of_two_clients_of_different_forms_both_are_named():
    change = FAULTS["a wide array"][1]
    found = mean_of({10: node_of(10), 11: node_of(11, change, 2)})
    assert found.mean is None
    assert sorted(found.failures) == [10, 11]
