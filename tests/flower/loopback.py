"""Flower's grid in one process: each node is a ClientApp that is called at once, over Flower's own wire format."""

import copy
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedgen.seeds import isolated


def identify():
    """Says which task of which run this process has, as Flower's do: a message is made in none else."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Node:
    """A SuperNode.

    Args:
        app: its ClientApp.
        config: its own.
        run: the run's config.
    """

    def __init__(self, app, config, run):
        identify()
        self.app, self.config, self.run, self.state = app, config, run, RecordDict()
        self.calls = []

    def answer(self, message, number):
        self.calls.append(message.metadata.message_type)
        with isolated():  # a node is another process, and draws nothing of the server's
            return self.app(message, Context(0, number, self.config, self.state, self.run))


class Loopback(Grid):
    """A grid of nodes by number."""

    def __init__(self, nodes):
        self.nodes, self.replies, self.sent = dict(nodes), {}, 0
        identify()

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.nodes)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        self.sent += 1
        name, node = f"message {self.sent}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = name
        message.metadata.__dict__["_src_node_id"] = 1
        try:
            reply = self.nodes[node].answer(over_the_wire(message), node)
        except Exception as error:  # as Flower does with what an app raises
            reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        if reply is not None:
            self.replies[name] = over_the_wire(reply)
        return name

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def over_the_wire(message):
    """The message as the other side reads it."""
    return message_from_proto(type(message_to_proto(message)).FromString(message_to_proto(message).SerializeToString()))


def keep_replies(patch):
    """The list to which every reply that reaches a server is copied from now on.

    Args:
        patch: pytest's monkeypatch.
    """
    found, pull = [], Loopback.pull_messages

    def keeping(self, message_ids):
        replies = pull(self, message_ids)
        found.extend(copy.deepcopy(replies))
        return replies

    patch.setattr(Loopback, "pull_messages", keeping)
    return found


def empty(message):
    """A reply with nothing in it."""
    return Message(RecordDict(), reply_to=message)


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
