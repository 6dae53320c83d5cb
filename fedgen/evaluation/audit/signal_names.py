"""Names of what a membership inference attack looks at."""

from typing import Literal

SignalName = Literal["loss", "critic", "likelihood", "distance"]
