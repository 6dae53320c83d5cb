"""A server's connection to clients that only have introduced themselves."""

from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.server.connection import Connection
from tests.flower.loopback import Loopback
from tests.flower.scripted import hello_of


def connection_to(*clients, **options):
    """A connection to clients that say this of themselves; options as for `Connection`."""
    registry = ClientRegistry(Loopback({}))
    registry.clients = list(clients or [hello_of("a")])
    return Connection(registry._grid, registry, **options)
