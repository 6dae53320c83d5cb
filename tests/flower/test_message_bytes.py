"""The bytes that a training tells of, compared with those of the arrays in Flower's messages."""

import logging

import pytest

from fedgen.federated import FedAvgStrategy
from fedgen.flower.server.flower_strategy import FlowerStrategy
from fedgen.flower.wire.flower_records import from_records
from fedgen.flower.wire.messages import Answer, Task
from fedgen.io.files import in_bytes
from fedgen.io.tensor_files import bytes_of, tensors_in
from tests.flower.loopback import Node
from tests.flower.runs import deploy, recipe, simulate, write_images

FEDERATED = "fedgen.federated"
VARIANTS = {
    "sparse, averaged": {
        "compression": {"class_path": f"{FEDERATED}.compression.TopK"},
        "optimizer_state": "average",
    },
    "quantised, personal": {
        "compression": {"class_path": f"{FEDERATED}.compression.QSGD", "init_args": {"bits": 4}},
        "optimizer_state": "keep",
        "personal": ["critic.*"],
    },
    "state outside, control variates": {
        "model": {"class_path": "tests.flower.stateful.Stateful"},
        "optimizer_state": "average",
        "client_algorithm": {"class_path": f"{FEDERATED}.Scaffold"},
    },
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25})


def arrays_of(message):
    return bytes_of(tensors_in(list(vars(message).values())))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_training_tells_is_what_its_messages_hold(name, images, tmp_path, caplog, monkeypatch):
    settings, strategies, messages = recipe(rounds=2, **VARIANTS[name]), [], []
    tell, answer = FedAvgStrategy.log_state_table, Node.answer

    def weighed(self, message, number):
        reply = answer(self, message, number)
        if message.metadata.message_type == "train":
            messages.append((arrays_of(from_records(Task, message)), arrays_of(from_records(Answer, reply))))
        return reply

    monkeypatch.setattr(Node, "answer", weighed)
    monkeypatch.setattr(FedAvgStrategy, "log_state_table", lambda self: (strategies.append(self), tell(self))[1])
    with caplog.at_level(logging.INFO):
        deploy(settings, images, tmp_path / "deployed")
        (server,) = {strategy for strategy in strategies if isinstance(strategy, FlowerStrategy)}
        (_, up), (down, _) = messages[0], messages[-1]  # flags rise once, and there are no means before a round
        assert (server.bytes_received, server.bytes_sent) == (down, up)
        strategies.clear()
        caplog.clear()
        simulate(settings, images, tmp_path / "simulated")
    assert strategies[0].bytes_sent == up == sum(row.num_bytes for row in strategies[0].state_table())
    constant = server.round.state_bytes - server.exchange.num_bytes_down + server.exchange.beside
    assert strategies[0].bytes_received == down - constant
    assert f"each client sends {in_bytes(up)} a round and receives {in_bytes(down - constant)}" in caplog.text
