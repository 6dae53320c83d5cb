"""Seconds of a side's rounds, and the turns that sides take after each, so that all meet the same busy machine."""

import os
import socket

from benchmarks.device import wall

ADDRESS, NAME = "PEERS_TURNS", "PEERS_NAME"  # variables: the driver's socket, and whose process this is


class Clock:
    """To be told of the end of each round, by every process of a side.

    Where the driver gives turns it then waits for the next; the waiting is not counted. The first round is not counted
    either: there frameworks start processes and evaluate.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start: float | None = None
        self._driver: socket.socket | None = None

    def tick(self) -> None:
        """A round is over."""
        if self._start is not None:
            self.seconds.append(wall() - self._start)
        if ADDRESS in os.environ:
            self._wait()
        self._start = wall()

    def _wait(self) -> None:
        if self._driver is None:
            self._driver = socket.socket(socket.AF_UNIX)
            self._driver.connect(os.environ[ADDRESS])
            self._driver.sendall(os.environ[NAME].encode())
        else:
            self._driver.sendall(b".")
        self._driver.recv(1)
