"""Clients elsewhere that fail or send bad updates, under the rules against them."""

import pytest

from fedgen.deploy.apps import client_app
from tests.deploy.loopback import Node
from tests.deploy.runs import app_of, deploy, recipe, same_weights, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


class Odd(Node):
    """A node whose answer to the n-th turn that it is asked for, from 0, is what `change` makes of it."""

    def __init__(self, app, config, run, change, turns):
        super().__init__(app, config, run)
        self.change, self.turns, self.trained = change, turns, 0

    def answer(self, message, number):
        reply = super().answer(message, number)
        if message.metadata.message_type != "train":
            return reply
        self.trained += 1
        return self.change(message, reply) if self.trained - 1 in self.turns else reply


def with_odd(settings, images, folder, change, turns, config=()):
    """Deploys with client b's node odd; the last checkpoint."""
    path = app_of(settings, folder.parent / f"{folder.name}-app", 3)
    own = {"data-path": str(images / "b"), "state-path": str(folder.parent / f"{folder.name}-b")}
    run = {"clients": 3, "output": str(folder), **dict(config)}
    return deploy(settings, images, folder, {11: Odd(client_app(path), own, run, change, turns)}, config)[0]


def rule(name, **settings):
    return {"aggregator": {"class_path": f"fedgen.federated.{name}", "init_args": settings}}


@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
def test_a_node_that_vanishes_costs_krum_a_round_and_not_the_run(images, tmp_path):
    first, _ = deploy(recipe(1, **rule("Krum", bad=0)), images, tmp_path / "first")
    settings = recipe(2, **rule("Krum", bad=0))
    with pytest.warns(UserWarning, match="round 1 is dropped and the server's model stays as it was: Krum"):
        found = with_odd(settings, images, tmp_path / "run", lambda *_: None, {1}, {"round-deadline": 0.5})
    assert found["epoch"] == 1
    assert [(one["round"], one["name"]) for one in found["fedavg"]["left_out"]] == [(1, "b"), (1, "a"), (1, "c")]
    same_weights(first, found, atol=0)
