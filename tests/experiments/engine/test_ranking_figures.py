"""Figures of rankings."""

from fedgen.experiments.engine.rankings import ScoredRows, draw_ranking
from fedgen.experiments.engine.study import panels


def row(avg, all, error=0.1):
    return {"fid": {"avg": avg, "all": all, "errors": {"avg": error, "all": error}}}


ROWS = ScoredRows({"a": {"clients": row(1, 5), "IID 0": row(1, 1)}, "b": {"clients": row(2, 3), "IID 0": row(2, 2)}})


def test_pairs_kinds_and_real_images_are_named(tmp_path):
    found = ROWS.compared()["fid"]
    with panels(tmp_path / "one.png", (4, 3), title="toy") as (figure, axes):
        draw_ranking(axes[0][0], ROWS.clients, "fid", "FID", found, row(0, 0), {"a": "class", "b": "mixture"})
        labels = axes[0][0].get_legend_handles_labels()[1]
    assert labels == ["inverted pairs: 1", "beyond error, not IID: 1", "class", "mixture", "real images"]
    assert figure.get_suptitle() == "toy"
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
