"""Pictures of what was measured."""

from fedgen.figures.clients import draw_clients
from fedgen.figures.curves import draw_curves

__all__ = ["draw_clients", "draw_curves"]
