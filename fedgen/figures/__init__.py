"""Pictures of what was measured."""

from fedgen.figures.curves import draw_curves

__all__ = ["draw_curves"]
