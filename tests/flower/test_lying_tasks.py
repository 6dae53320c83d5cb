"""A server's task sets what turns of the client's module can change, and nothing else of it."""

from dataclasses import replace

import pytest

from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import Task
from tests.flower.loopback import Node
from tests.flower.runs import deploy, node_of, recipe, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 8, "b": 8})


class Lied(Node):
    """A node whose third task has counters that a server has changed; None for one that it leaves out."""

    def __init__(self, app, config, run, **counts):
        super().__init__(app, config, run)
        self.counts, self.asked = counts, 0

    def answer(self, message, number):
        self.asked += message.metadata.message_type == "train"
        if self.asked == 3:
            task = from_records(Task, message)
            told = {path: count for path, count in {**task.counts, **self.counts}.items() if count is not None}
            message.content = to_records(replace(task, counts=told))
        return super().answer(message, number)


LIES = {
    "a method": ({"training_step": 1}, "the module has no counter 'training_step'"),
    "a terminal's commands": ({"\x1b[2J": 1}, r"the module has no counter '\x1b[2J'"),
    "a count that fell": ({"steps": 0}, "'steps' is 0, not from 1 to 9223372036854775807"),
    "a count that is lost": ({"steps": None}, "'steps', which was 1, is missing"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'a' is left out of round 2")
@pytest.mark.parametrize("lie", LIES)
def test_what_no_turn_can_have_made_is_refused_and_named_on_both_sides(lie, images, tmp_path):
    """In the third round: what the client was told in the second one is what it holds to."""
    counts, said = LIES[lie]
    settings = recipe(4, model={"class_path": "tests.flower.stateful.Stateful"}, communication_interval=1)
    nodes = {10: node_of(Lied, settings, images, tmp_path / "run", "a", **counts)}
    with pytest.warns(UserWarning, match="refused") as caught:
        found, _ = deploy(settings, images, tmp_path / "run", nodes)
    assert [(left["round"], left["name"]) for left in found["fedavg"]["left_out"]] == [(2, "a")]
    assert said in found["fedavg"]["left_out"][0]["reason"]
    (own,) = [str(one.message) for one in caught if str(one.message).startswith("refused: ")]
    assert said in own
    assert "\x1b" not in own
