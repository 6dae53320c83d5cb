"""One self-contained page of any run."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.reports.page import Report, report, write_report
    from fedgen.reports.sentences import conclusions

__all__ = ["Report", "conclusions", "report", "write_report"]

load_on_use(__name__)
