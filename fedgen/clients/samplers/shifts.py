"""Availability by a pattern: clients are there in shifts."""


class Shifts:
    """Clients that are there for some rounds of each period, one after the other, as devices of other time zones.

    Client k is available in a round r if (r + every k) modulo `period` is below `on`.

    Args:
        period: rounds after which the pattern begins anew.
        on: of them, in which a client is there.
        every: rounds between the shifts of one client and the next.

    Raises:
        ValueError: for numbers out of range.

    Examples:
        >>> from fedgen.clients.samplers import Shifts
        >>> day = Shifts(period=4, on=2)
        >>> [[client for client in range(4) if day(client, round)] for round in range(4)]
        [[0, 1], [0, 3], [2, 3], [1, 2]]
    """

    def __init__(self, period: int, on: int, every: int = 1) -> None:
        if not 1 <= on <= period:
            raise ValueError(f"on={on}, period={period}: a client is there in 1 to {period} rounds of each period")
        self.period, self.on, self.every = period, on, every

    def __call__(self, client: int, round: int) -> bool:
        return (round + self.every * client) % self.period < self.on
