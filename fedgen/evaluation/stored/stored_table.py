"""Scores of stored sets as tables: every client beside the aggregates, or one reference in a peer's terms."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.directions import say_directions
from fedgen.evaluation.marks import explained, marked
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.stored.peers import KID_SUBSETS, SUBSETS, PeerEvaluation
from fedgen.evaluation.stored.stored_evaluation import StoredEvaluation
from fedgen.evaluation.tables.table import VALUE_WIDTH, format_value
from fedgen.scores import resolve_weights

FIXED_WIDTH = 40  # characters of a client's name, images and weight, borders included
SHOWN = 30  # clients; of more, the ends of the order are shown


def client_tables(evaluation: StoredEvaluation, records: Sequence[ScoreRecord], width: int = 80) -> list[Table]:
    """The scores of `client_table`, as many in each table as a terminal of a width can show with their errors."""
    shown = max(1, (width - FIXED_WIDTH) // VALUE_WIDTH)
    scores = list(dict.fromkeys(record.score for record in records))
    parts = [scores[start : start + shown] for start in range(0, len(scores), shown)]
    order = best_first(next(record for record in records if record.aggregate == "avg"))
    return [client_table(evaluation, [record for record in records if record.score in part], order) for part in parts]


def client_table(
    evaluation: StoredEvaluation, records: Sequence[ScoreRecord], order: Sequence[int] | None = None
) -> Table:
    """Clients, the best served by the first score on top, and the aggregates, by scores.

    Below avg and all, where they were computed: their standard errors if the clients stand for others.

    Args:
        evaluation: what was scored.
        records: its scores.
        order: of the clients, where it is that of another table.
    """
    _, *counts = evaluation.counts()
    shares = resolve_weights(evaluation.options.weights, [count or 1 for count in counts]).tolist()
    averages = [record for record in records if record.aggregate == "avg"]
    caption = "; ".join([f"{say_directions(averages)}, ± standard error", *evaluation.remarks(), *explained(averages)])
    table = Table(title=_title(records[0]), caption=escape(caption), caption_justify="left")
    for heading in ("client", "images", "weight", *(escape(marked(record.score, [record])) for record in averages)):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    order = best_first(averages[0]) if order is None else order
    hidden = len(order) - SHOWN
    for place, client in enumerate(order):
        if hidden > 0 and place == SHOWN // 2:
            table.add_row(f"... {hidden} more ...", *[""] * (2 + len(averages)), style="dim")
        if hidden > 0 and SHOWN // 2 <= place < SHOWN // 2 + hidden:
            continue
        images = "unknown" if counts[client] is None else f"{counts[client]:.12g}"
        cells = [_client_cell(record, client) for record in averages]
        table.add_row(escape(evaluation.client_names[client]), images, f"{shares[client]:.3g}", *cells)
    table.add_section()
    total = "" if None in counts else f"{sum(count or 0 for count in counts):.12g}"
    for aggregate in dict.fromkeys(record.aggregate for record in records):
        row = {record.score: record for record in records if record.aggregate == aggregate}
        found = [row.get(record.score) for record in averages]  # not every score has every aggregate
        cells = [format_value(record.value, record.standard_error) if record else "" for record in found]
        main = aggregate in ("avg", "all")
        table.add_row(aggregate, total if aggregate == "all" else "", "", *cells, style="bold" if main else "")
        spread = [record.error_over_clients if record else None for record in found]
        if any(error is not None for error in spread):
            cells = ["" if error is None else f"±{error:.2g}" for error in spread]
            table.add_row("  over clients", "", "", *cells, style="dim")
    return table


def best_first(record: ScoreRecord) -> list[int]:
    """The clients of a record of avg, the best served first."""
    sign = -1 if record.higher_is_better else 1
    return sorted(range(len(record.per_client)), key=lambda client: sign * record.per_client[client])


def peer_table(evaluation: PeerEvaluation, records: Sequence[ScoreRecord]) -> Table:
    """The scores against one reference, each in words that tell it from its like."""
    size = evaluation.subset_size
    table = Table(title=_title(records[0]), caption_justify="left")
    for heading in ("score", "value", "±", "of"):
        table.add_column(heading, justify="left" if heading in ("score", "of") else "right")
    for record in records:
        error = record.standard_error
        spread = "" if error is None else f"{error:.2g}"
        what = "all images; standard error" if error is not None else "all images"
        if record.score == KID_SUBSETS:
            spread = f"{record.terms['std over subsets']:.7g}"
            what = f"{SUBSETS} subsets of {size} images, as torch-fidelity draws them; deviation over them"
        elif record.score == "fid" and evaluation.is_the_peers:
            what = what.replace("all images", f"as {evaluation.preset} prints it")
        table.add_row(escape(marked(record.score, [record])), f"{record.value:.7g}", spread, what)
    remarks = [say_directions(records), *evaluation.remarks(), *explained(records)]
    if "kid" in evaluation.scores and evaluation.preset == "torch-fidelity" and not evaluation.has_subsets:
        remarks.append(
            f"torch-fidelity's kid needs {size} images on both sides and the smaller has {evaluation.smaller}: only the"
            " one of all images is given (--kid_subset_size N asks for smaller subsets)"
        )
    table.caption = escape("; ".join(remarks)) or None
    return table


def _client_cell(record: ScoreRecord, client: int) -> str:
    errors = record.per_client_errors
    return format_value(record.per_client[client], errors[client] if errors else None)


def _title(record: ScoreRecord) -> str:
    made = f"{record.num_generated} generated images" if record.num_generated else "Generated images"
    return escape(f"{made} against {record.reference}, embedding {record.embedding}")
