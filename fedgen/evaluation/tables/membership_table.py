"""A membership inference attack as a table."""

from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.audit.attack_strength import AttackStrength
from fedgen.evaluation.audit.estimates import IntervalEstimate
from fedgen.evaluation.audit.membership import MembershipAudit

CAPTION = (
    "AUC: how often the signal of a training image is above that of a held-out one of the same client; 0.5 knows"
    " nothing. Advantage: true less false positive rate, at a threshold chosen on other images; 0 knows nothing. With"
    " 95 % intervals: of clients whose model knows nothing, one in twenty shows one that excludes this by chance."
)
RATE = "found at 1 %"


def membership_table(audit: MembershipAudit) -> Table:
    """The attack on each client, and over all clients.

    Args:
        audit: of one model.
    """
    rates = any(row.found for row in _rows(audit))
    after = "" if audit.round is None else f"round {audit.round}: "
    told = f"{CAPTION} {RATE}: share of members found where 1 % of others are taken for some." if rates else CAPTION
    table = Table(title=escape(f"{after}membership inference by {audit.words}"), caption=told, caption_justify="left")
    table.add_column("client", overflow="fold")
    for heading in ("pairs", "AUC", "advantage", *([RATE] if rates else [])):
        table.add_column(heading, justify="right")
    for row in audit.clients:
        table.add_row(*_cells(row, rates))
    table.add_section()
    for row in _rows(audit)[len(audit.clients) :]:
        table.add_row(*_cells(row, rates), style="bold")
    return table


def _rows(audit: MembershipAudit) -> list[AttackStrength]:
    return [*audit.clients, audit.avg, *([audit.all] if audit.all is not None else [])]


def _cells(row: AttackStrength, rates: bool) -> list[str]:
    found: list[IntervalEstimate | None] = [row.auc, row.advantage, *([row.found] if rates else [])]
    return [escape(row.name), str(row.pairs), *("" if one is None else escape(str(one)) for one in found)]
