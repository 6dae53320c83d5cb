"""The connection of a server to its clients, as data, strategy and evaluation are given it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedgen.flower.app.run_labels import RunLabels

if TYPE_CHECKING:  # these need the extra "flower", and a recipe is deployed without it
    from fedgen.flower.app.run_statistics import RunStatistics
    from fedgen.flower.wire.messages import Hello
    from fedgen.flower.wire.transport import Transport

LEAST = 0.5  # of the clients' weight must answer, unless the run's config says otherwise


@dataclass(frozen=True, eq=False)
class Connection:
    """A connection to all clients of a federation, with what the run's config says of them.

    Args:
        transport: to the clients.
        labels: of their images.
        least: the part of the clients' weight that must answer what a loss asks.
        update_range: the largest change of an entry in a turn, under secure aggregation.
    """

    transport: "Transport"
    labels: RunLabels = field(default_factory=RunLabels)
    least: float = LEAST
    update_range: float = 0.0

    @property
    def clients(self) -> "Sequence[Hello]":
        """The clients, in their numbers' order."""
        return self.transport.registry.clients

    @property
    def hidden(self) -> bool:
        """Whether a single client's answer is hidden from the server."""
        return self.transport.hidden

    @property
    def statistics(self) -> "RunStatistics":
        """Ranges and noise of what clients tell in an evaluation."""
        return self.transport.statistics


def require(connection: Connection | None, whose: str) -> Connection:
    """Return the connection that a server gives to what it makes of a recipe.

    Raises:
        TypeError: if there is none: `whose` was made elsewhere.
    """
    if connection is None:
        raise TypeError(
            f"{whose} is for a deployment's server, which connects it to clients: start the app that `fedgen deploy`"
            " writes, with `flwr run`"
        )
    return connection
