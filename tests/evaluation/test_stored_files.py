import numpy as np
import pytest

from fedgen.evaluation import StoredEvaluation
from fedgen.evaluation.stored.stored_evaluation import files_in
from fedgen.evaluation.stored.stored_sets import FEATURES_OF, STATISTICS_OF


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=np.random.default_rng(0).normal(size=(6, 2)))
    return path


def test_files_are_named_after_their_sets(tmp_path):
    clients = [save(tmp_path / name / "train.npz") for name in ("a", "b")]
    evaluation = StoredEvaluation(save(tmp_path / "out" / "samples.npz"), clients)
    files = files_in(evaluation, tmp_path / "statistics", STATISTICS_OF)
    assert [(i, path.name) for i, path in files] == [(0, "out_samples.npz"), (1, "a_train.npz"), (2, "b_train.npz")]
    assert files_in(evaluation, tmp_path, FEATURES_OF) == []  # they are features already


def test_two_sets_never_share_a_file(tmp_path):
    clients = [save(tmp_path / name) for name in ("x/a_b.npz", "x/a/b.npz", "y/b.npz")]
    evaluation = StoredEvaluation(save(tmp_path / "x_y/a_b.npz"), clients)
    names = [path.name for _, path in files_in(evaluation, tmp_path, STATISTICS_OF)]
    assert len(set(names)) == 4
    clash = StoredEvaluation(save(tmp_path / "p_q/a.npz"), [save(tmp_path / "p/q_a.npz"), save(tmp_path / "r/a.npz")])
    with pytest.raises(ValueError, match="p_q_a"):
        files_in(clash, tmp_path, STATISTICS_OF)
