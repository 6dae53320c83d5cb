"""A server's task sets what turns of the client's module can change, and nothing else of it."""

from dataclasses import replace

import pytest

from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import Task
from tests.flower.loopback import Node
from tests.flower.runs import deploy, node_of, recipe, write_images


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
@pytest.mark.filterwarnings("ignore:client .* is left out of round 2")
def test_what_no_turn_can_have_made_is_refused_and_named_on_both_sides(tmp_path):
    """In the third round, to a client each: what it was told in the second one is what it holds to."""
    images, run = write_images(tmp_path / "clients", dict.fromkeys("abcde", 8)), tmp_path / "run"
    settings = recipe(4, model={"class_path": "tests.flower.stateful.Stateful"}, communication_interval=1)
    lies = dict(zip("abcd", LIES.values(), strict=True))
    nodes = {10 + k: node_of(Lied, settings, images, run, name, **lies[name][0]) for k, name in enumerate(lies)}
    with pytest.warns(UserWarning, match="refused") as caught:
        found, _ = deploy(settings, images, run, nodes)
    left_out, own = found["fedavg"]["left_out"], [str(one.message) for one in caught]
    own = [text for text in own if text.startswith("refused: ")]
    assert [(left["round"], left["name"]) for left in left_out] == [(2, name) for name in lies]
    assert len(own) == len(lies)
    for left, text in zip(left_out, own):
        said = lies[left["name"]][1]
        assert said in left["reason"]
        assert said in text
        assert "\x1b" not in text
