"""A node of a loopback that answers each message in a process of its own, as Flower's SuperNode does."""

import os
import pickle

from flwr.app import Context
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto

from tests.flower.loopback import Node


class Forked(Node):
    """Each message's process is a fork of this one, which has answered none: nothing of one is there for the next."""

    def answer(self, message, number):
        read, write = os.pipe()
        process = os.fork()
        if not process:
            with os.fdopen(write, "wb") as out:
                self._tell(message, number, out)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            told = pickle.load(answer)
        os.waitpid(process, 0)
        self.calls.append(message.metadata.message_type)
        if isinstance(told, Exception):
            raise told
        self.state = context_from_proto(ContextProto.FromString(told[1])).state
        return message_from_proto(MessageProto.FromString(told[0]))

    def _tell(self, message, number, out):
        """Writes the answer and what the node's state has become, or what was raised."""
        try:
            parts = message_to_proto(super().answer(message, number)), context_to_proto(self._context(number))
            pickle.dump([part.SerializeToString() for part in parts], out)
        except Exception as error:
            pickle.dump(RuntimeError(f"{type(error).__name__}: {error}"), out)

    def _context(self, number):
        return Context(0, number, self.config, self.state, self.run)
