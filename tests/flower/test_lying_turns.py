"""A server that lies about masked turns, or takes the stages of an exchange out of order, learns no single update."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.app import Message as FlowerMessage
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.typing import Parameters
from flwr.compat.common import recorddict_compat as compat

from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.secure_aggregation.secure_mean import read_instructions
from fedgen.flower.wire.messages import Task, pack, unpack
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from tests.flower.loopback import Loopback, Node
from tests.flower.lying_server import HIDDEN, LyingServer, RefusalError
from tests.flower.runs import app_of, own_config, recipe

SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid"]}
NODES = [10, 11, 12, 13]


class Asked(Node):
    """A node that keeps what it was asked for behind masks."""

    def answer(self, message, number):
        if "fitins.parameters" in message.content.array_records:
            self.asked = read_instructions(message)
        return super().answer(message, number)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return app_of(recipe(1, SCORES), tmp_path_factory.mktemp("app"), 4)


@pytest.fixture(scope="module")
def turns(images, tmp_path_factory):
    """What a server that follows the protocol asks each node for in the first round."""
    folder = tmp_path_factory.mktemp("honest")
    found, run = app_of(recipe(1), folder / "app", 4), {"clients": 4, "output": str(folder / "run"), **HIDDEN}
    nodes = {10 + k: Asked(client_app(found), own_config(images, folder / "run", n), run) for k, n in enumerate("abcd")}
    run_server(found, Loopback(nodes), run)
    return {number: node.asked for number, node in nodes.items()}


@pytest.fixture
def server(path, images, tmp_path):
    return lambda names="abcd", **config: LyingServer(path, images, tmp_path, names, config)


def turn_of(turns, changes=lambda node, task: {}, names="abcd"):
    """What makes of a node the turn that it is asked for, changed."""

    def asked(node):
        arrays, rest, _ = turns[node]
        told = from_bytes(rest, "what the server asks")
        sent = {name: torch.from_numpy(array) for name, array in zip(told["names"], arrays, strict=True)}
        task = unpack(Task, sent, told["task"])
        own = {one: getattr(task, one) for one in vars(task)}
        weights, task = pack(Task(**{**own, **changes(node, task)}))
        among = {str(10 + "abcd".index(name)): name for name in names}
        made = {**told, "names": list(weights), "task": task, "among": among}
        return [tensor.numpy() for tensor in weights.values()], to_bytes(made)

    return asked


def mask_turns(server, turns, asked):
    """The first three stages of an exchange of turns."""
    weights = {node: weight for node, (_, _, weight) in turns.items()}
    server.mask(asked, {"max_weight": float(max(weights.values()))}, weights)


def scaled(factor):
    """Weights that are so many times the server's."""
    return lambda node, task: {"weights": {name: tensor * factor for name, tensor in task.weights.items()}}


def other_weights(node, task):
    return {"weights": {name: tensor * (2 if node == 10 else 1) for name, tensor in task.weights.items()}}


LIES = {
    "another model": other_weights,
    "other steps": lambda node, task: {"steps": int(node == 10)},
    "another round": lambda node, task: {"round": int(node == 10)},
    "other classes": lambda node, task: {"classes": (*task.classes, "x") if node == 10 else task.classes},
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_turn_that_one_client_is_asked_for_differently_is_not_unmasked(lie, server, turns):
    """With a model of its own a client is alone in the sum, where the others' model leaves their updates at zero."""
    asked = server()
    mask_turns(asked, turns, turn_of(turns, LIES[lie]))
    asked.unmask(NODES)
    assert len(asked.refusals) == 4
    assert all("was asked for something else than this client" in said for said in asked.refusals)
    assert asked.sum_of([10]) is None


@pytest.mark.slow
def test_a_round_that_is_asked_for_again_with_other_weights_is_summed_over_the_same_clients(server, turns):
    """The server learns another sum, which the docs say; over fewer clients it would be one client's update."""
    for factor in (1, 2):
        again = server()
        mask_turns(again, turns, turn_of(turns, scaled(factor)))
        again.unmask(NODES)
        assert again.refusals == []
    fewer = server("abc")
    mask_turns(fewer, turns, turn_of(turns, names="abc"))
    fewer.unmask([10, 11, 12])
    assert ["round 0 was summed over a, b, c, d before" in said for said in fewer.refusals] == [True] * 3


# ---- the order of stages ----


@pytest.mark.parametrize("stage", ["no stage", *Stage.all()])
def test_nothing_is_told_unmasked_to_a_message_of_another_type(stage, server, turns):
    """Flower's app takes "train.default" for a turn, and Flower's mod takes it for none that is to be masked."""
    asked = server()
    asked.share_keys(NODES, {})
    for (arrays, rest), weight in ((turn_of(turns)(10), turns[10][2]), (asked.asking()(10), 1)):
        instructions = FitIns(ndarrays_to_parameters(arrays), {"fedgen": rest, "weight": weight})
        content = compat.fitins_to_recorddict(instructions, True)
        if stage != "no stage":
            content[RECORD_KEY_CONFIGS] = ConfigRecord({Key.STAGE: stage})
        (reply,) = asked.grid.send_and_receive([FlowerMessage(content, 10, "train.default")])
        assert reply.has_error()
        assert "asked for by 'train' alone, and not by 'train.default'" in reply.error.reason


def test_stages_come_in_their_order_and_once(server):
    asked = server()
    question, refused = asked.asking(), pytest.raises(RefusalError, match="receive")
    with refused:
        asked.collect(10, question(10), {})
    asked.mask(question)
    with refused:  # a second summand behind the same mask: the difference would be the two's
        asked.collect(10, question(10), {})
    with refused:
        asked.say(10, Stage.SHARE_KEYS, **{str(node): keys for node, keys in asked.keys.items()})
    asked.unmask(NODES)
    assert asked.refusals == []
    asked.unmask([11, 12, 13], [10], again=True)
    assert len(asked.refusals) == 4
    asked.unmask(NODES, again=True)
    assert len(asked.refusals) == 4
    assert asked.secrets == {}


@pytest.mark.slow
def test_an_exchange_that_begins_anew_unmasks_nothing_of_the_one_before(server):
    asked = server()
    asked.mask(asked.asking())
    asked.share_keys(NODES, {})
    asked.unmask(NODES)
    assert ["has given no numbers for a sum" in said for said in asked.refusals] == [True] * 4
    assert asked.seeds == {}


@pytest.mark.parametrize("name", ["threshold", "max_weight"])
def test_a_client_with_settings_of_its_own_is_not_unmasked(name, server, monkeypatch):
    """Thresholds that each would do by themselves."""
    asked, say = server(), LyingServer.say

    def lying(self, node, stage, content=None, **configs):
        if stage == Stage.SETUP and node == 10:
            configs[name] = {"threshold": 4, "max_weight": 2.0}[name]
        return say(self, node, stage, content, **configs)

    monkeypatch.setattr(LyingServer, "say", lying)
    asked.mask(asked.asking())
    asked.unmask(NODES)
    assert len(asked.refusals) == 4
    assert all("was asked for something else" in said for said in asked.refusals)


@pytest.mark.parametrize("change", ["another's", "under another name", "of an exchange before", "none"])
def test_shares_for_another_client_are_refused(change, server):
    asked = server()
    before = asked.share_keys(NODES, {})
    sent = asked.share_keys(NODES, {})
    shares = {
        "another's": sent[11] | {11: sent[10][11]},
        "under another name": {11: sent[10][12], 12: sent[10][11], 13: sent[10][13]},
        "of an exchange before": before[10],
        "none": {},
    }[change]
    shares.pop(10, None)
    with pytest.raises(RefusalError):
        asked.collect(10, asked.asking()(10), shares)


class Written:
    """What a pickle writes a file by."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["an array of objects", "a pickle", "an archive", "a promise"])
def test_no_array_of_an_exchange_is_unpickled(form, server, turns, tmp_path):
    made, mark = io.BytesIO(), tmp_path / "mark"
    if form == "an array of objects":
        np.save(made, np.array([Written(mark)], dtype=object), allow_pickle=True)
    elif form == "a pickle":
        np.array([Written(mark)], dtype=object).dump(made)
    elif form == "an archive":
        np.savez(made, np.array([Written(mark)], dtype=object))
    else:
        np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    asked = server()
    sent = asked.share_keys(NODES, {})
    rest = turn_of(turns)(10)[1]
    instructions = FitIns(Parameters([made.getvalue()], "numpy.ndarray"), {"fedgen": rest, "weight": turns[10][2]})
    content = compat.fitins_to_recorddict(instructions, True)
    told = {Key.SOURCE_LIST: list(sent[10]), Key.CIPHERTEXT_LIST: list(sent[10].values())}
    with pytest.raises(RefusalError, match="ValueError"):
        asked.say(10, Stage.COLLECT_MASKED_VECTORS, content, **told)
    assert not mark.exists()
