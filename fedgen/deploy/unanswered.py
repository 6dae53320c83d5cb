"""A client that does not answer what all must."""

from fedgen.statistics.messages import MessageError


class UnansweredError(MessageError):
    """An evaluation's question that one client does not answer.

    Args:
        client: its number.
        name: its name.
        why: the reason.
    """

    def __init__(self, client: int, name: str, why: str) -> None:
        super().__init__(f"client {name!r}: {why}")
        self.client, self.why = client, why
