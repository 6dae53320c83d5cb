"""Nodes that say what a test has them say: no app, no data, no training."""

from dataclasses import replace

from flwr.app import ConfigRecord, Message

from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import Answer, Hello, Task, pack

SHAPE, CLASSES = (1, 8, 8), tuple("0123456789")


def hello_of(name, examples=20):
    return Hello(name, examples, SHAPE, CLASSES)


def honest(task, optimizers=2):
    """An answer to a task of the small GAN, as if no step had moved anything."""
    weights = {
        name: tensor
        for name, tensor in task.weights.items()
        if name.startswith(("generator.", "critic.")) and tensor.is_floating_point()
    }
    told = [part for _ in range(optimizers) for part in ({}, {}, (task.client, [], {}))]
    return Answer(weights, 16, 3, told)


class Scripted:
    """A node of a loopback.

    Args:
        name: the client's.
        hello: what it says of itself in place of `hello_of(name)`.
        answer: makes its answer of a task.
        spoil: changes a reply to a task, as records, in place; gives back another, None for none.
    """

    def __init__(self, name, hello=None, answer=honest, spoil=lambda reply: reply):
        self.hello, self.make, self.spoil, self.calls = hello or hello_of(name), answer, spoil, []

    def answer(self, message, number):
        self.calls.append(message.metadata.message_type)
        if message.metadata.message_type == "query":
            return self.introduce(message)
        said = self.make(from_records(Task, message))
        records = to_records(replace(honest(from_records(Task, message)), weights=said.weights))
        # as `to_records` would, of what Flower's records of metrics do not take
        records["fedgen"] = ConfigRecord({"rest": pack(said)[1], "dtypes": []})
        return self.spoil(Message(records, reply_to=message))

    def introduce(self, message):
        return Message(to_records(self.hello), reply_to=message)
