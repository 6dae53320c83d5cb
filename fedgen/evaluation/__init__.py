"""Models to score records, records to a ranking of checkpoints."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.evaluation.audit.attack_strength import AttackStrength, IntervalEstimate
    from fedgen.evaluation.audit.membership import (
        MembershipAudit,
        NearestImages,
        audit_run,
        draw_nearest,
        membership_inference,
        membership_table,
        nearest_images,
    )
    from fedgen.evaluation.evaluate import Evaluation, Evaluator, evaluate
    from fedgen.evaluation.federation_splits import splits_of
    from fedgen.evaluation.image_sampling import draw_images, mixture, sampler_of
    from fedgen.evaluation.names import checkpoint_name, list_checkpoints
    from fedgen.evaluation.own_models import ClientMatrix, client_matrices, matrix_of_run, matrix_table
    from fedgen.evaluation.panels import PRESETS, Preset, find_preset
    from fedgen.evaluation.records import Columns, ScoreRecord, by_column
    from fedgen.evaluation.runs.evaluate_run import evaluate_run
    from fedgen.evaluation.runs.rebuild import load_weights
    from fedgen.evaluation.runs.run_folder import Run, best_set, print_report, select
    from fedgen.evaluation.runs.scores_file import append_records, drop_from, drop_round, read_records
    from fedgen.evaluation.runs.selection import (
        Comparison,
        InvertedPair,
        Ranked,
        aggregates_compared,
        compare,
        inversions,
    )
    from fedgen.evaluation.splits import Split
    from fedgen.evaluation.stored.peers import PeerEvaluation, client_table, client_tables, peer_table, score_reference
    from fedgen.evaluation.stored.stored_evaluation import (
        StoredEvaluation,
        StoredOptions,
        save_features,
        save_statistics,
        score_stored,
    )
    from fedgen.evaluation.stored.stored_images import Reading
    from fedgen.evaluation.tables.table import (
        comparison_table,
        inversion_table,
        score_table,
        score_tables,
        selection_table,
    )

__all__ = [
    "PRESETS",
    "AttackStrength",
    "ClientMatrix",
    "Columns",
    "Comparison",
    "Evaluation",
    "Evaluator",
    "IntervalEstimate",
    "InvertedPair",
    "MembershipAudit",
    "NearestImages",
    "PeerEvaluation",
    "Preset",
    "Ranked",
    "Reading",
    "Run",
    "ScoreRecord",
    "Split",
    "StoredEvaluation",
    "StoredOptions",
    "aggregates_compared",
    "append_records",
    "audit_run",
    "best_set",
    "by_column",
    "checkpoint_name",
    "client_matrices",
    "client_table",
    "client_tables",
    "compare",
    "comparison_table",
    "draw_images",
    "draw_nearest",
    "drop_from",
    "drop_round",
    "evaluate",
    "evaluate_run",
    "find_preset",
    "inversion_table",
    "inversions",
    "list_checkpoints",
    "load_weights",
    "matrix_of_run",
    "matrix_table",
    "membership_inference",
    "membership_table",
    "mixture",
    "nearest_images",
    "peer_table",
    "print_report",
    "read_records",
    "sampler_of",
    "save_features",
    "save_statistics",
    "score_reference",
    "score_stored",
    "score_table",
    "score_tables",
    "select",
    "selection_table",
    "splits_of",
]

load_on_use(__name__)
