"""Figures of rankings."""

import pytest

from fedgen.experiments.engine.aggregate_rankings import ScoredRows
from fedgen.experiments.engine.rankings.ranking_figures import draw_ranking, draw_rankings, panels


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


@pytest.mark.parametrize("limits", [None, (-9.0, 9.0)])
def test_a_column_a_score_shows_the_gap_with_zero_in_sight_or_within_limits(tmp_path, limits, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedgen.experiments.engine.rankings.ranking_figures.save_figure",
        lambda figure, path: seen.extend(axes.get_ylim() for axes in figure.axes),
    )
    draw_rankings(ROWS, ROWS.compared(), {"fid": "FID"}, tmp_path / "two.png", limits=limits)
    low, high = seen[1]
    assert (low, high) == limits if limits else low <= -4 < 0 <= high
