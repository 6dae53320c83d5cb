"""Pictures of what was measured."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.reports.figures.curves import draw_clients, draw_curves, draw_generalisation, draw_over_time
    from fedgen.reports.figures.partition_picture import draw_partition
    from fedgen.reports.sentences import report_run

__all__ = ["draw_clients", "draw_curves", "draw_generalisation", "draw_over_time", "draw_partition", "report_run"]

load_on_use(__name__)
