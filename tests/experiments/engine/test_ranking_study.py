"""A ranking study of two generators."""

import pytest

from fedgen.experiments.engine.rankings import RankingStudy, agreement_table, ranking_lines
from tests.experiments.engine.test_ranking_figures import ROWS, row

STUDY = RankingStudy(ROWS, {"fid": "FID"}, "toy", row(0, 0))


def test_its_table_and_sentences_are_those_of_the_scores_by_their_titles():
    found = STUDY.rows.compared(STUDY.titles)
    expected = agreement_table({"FID": found["fid"]}, "toy")
    assert [list(own.cells) for own in STUDY.table(found).columns] == [list(own.cells) for own in expected.columns]
    assert STUDY.lines(found) == ranking_lines(found, STUDY.titles)
    assert STUDY.lines({}) == []


@pytest.mark.parametrize("limits", [None, (-9.0, 9.0)])
def test_a_column_a_score_shows_the_gap_with_zero_in_sight_or_within_limits(tmp_path, limits, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedgen.experiments.engine.study.save_picture",
        lambda figure, path: seen.extend(axes.get_ylim() for axes in figure.axes),
    )
    STUDY.draw(STUDY.rows.compared(STUDY.titles), tmp_path / "two.png", limits)
    low, high = seen[1]
    assert (low, high) == limits if limits else low <= -4 < 0 <= high
