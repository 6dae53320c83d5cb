"""Models to score records, records to a ranking of checkpoints."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.evaluation.audit.attack_strength import AttackStrength
    from fedgen.evaluation.audit.audit_run import audit_run, draw_nearest
    from fedgen.evaluation.audit.estimates import IntervalEstimate
    from fedgen.evaluation.audit.membership import MembershipAudit, membership_inference
    from fedgen.evaluation.audit.nearest_images import NearestImages, nearest_images
    from fedgen.evaluation.evaluate import Evaluation, Evaluator
    from fedgen.evaluation.generation.image_sampling import draw_images, mixture, sampler_of
    from fedgen.evaluation.one_model import evaluate
    from fedgen.evaluation.personal.client_matrix import ClientMatrix, client_matrices, matrix_of_run
    from fedgen.evaluation.presets import PRESETS, Preset, find_preset
    from fedgen.evaluation.real.federation_splits import splits_of
    from fedgen.evaluation.real.splits import Split
    from fedgen.evaluation.records import Columns, ScoreRecord, by_column
    from fedgen.evaluation.runs.checkpoint_names import checkpoint_name, list_checkpoints
    from fedgen.evaluation.runs.checkpoints import load_weights
    from fedgen.evaluation.runs.evaluate_run import evaluate_run
    from fedgen.evaluation.runs.run_folder import Run
    from fedgen.evaluation.runs.scores_file import append_records, drop_from, drop_round, read_records
    from fedgen.evaluation.runs.selection import (
        Comparison,
        InvertedPair,
        Ranked,
        aggregates_compared,
        compare,
        inversions,
        select,
    )
    from fedgen.evaluation.stored.peers import PeerEvaluation, score_reference
    from fedgen.evaluation.stored.stored_evaluation import StoredEvaluation, StoredOptions, score_stored
    from fedgen.evaluation.stored.stored_files import save_features, save_statistics
    from fedgen.evaluation.stored.stored_images import Reading
    from fedgen.evaluation.stored.stored_table import client_table, client_tables, peer_table
    from fedgen.evaluation.tables.matrix_table import matrix_table
    from fedgen.evaluation.tables.membership_table import membership_table
    from fedgen.evaluation.tables.run_tables import print_report
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
