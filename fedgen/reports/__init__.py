"""One self-contained page of any run."""

from fedgen.reports.conclusions import conclusions
from fedgen.reports.page import Report, report, write_report

__all__ = ["Report", "conclusions", "report", "write_report"]
