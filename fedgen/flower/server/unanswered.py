"""A client that does not answer what all must."""

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.statistics.statistic_messages import MessageError


class UnansweredError(MessageError):
    """An evaluation's question that one client does not answer.

    Args:
        client: its number.
        name: its name.
        why: the reason, which may be the client's own words; it is shortened.
    """

    def __init__(self, client: int, name: str, why: str) -> None:
        self.client, self.why = client, shorten(why, LONGEST_REASON)
        super().__init__(f"client {name!r}: {self.why}")
