"""The figure of every client's score."""

import math

import pytest

from fedgen.reports.figures import draw_clients
from tests.evaluation.samples import record
from tests.reports.figures.test_curves import size


def records(clients, scores=("fid", "kid"), **options):
    values = [float(k % 7) for k in range(clients)]
    own = {"per_client": values, "client_names": [f"client {k}" for k in range(clients)]}
    own["per_client_errors"] = [0.1] * clients
    return [
        record(score, aggregate, 3.0, **(own | options if aggregate == "avg" else {}))
        for score in scores
        for aggregate in ("avg", "all", "worst")
    ]


@pytest.mark.slow
def test_the_figure_has_a_panel_a_score_and_grows_with_the_clients(tmp_path):
    both = size(draw_clients(records(5), tmp_path / "both.png"))
    one = size(draw_clients(records(5, ["fid"]), tmp_path / "one.png"))
    many = size(draw_clients(records(40, ["fid"]), tmp_path / "many.png"))
    crowd = size(draw_clients(records(500, ["fid"]), tmp_path / "crowd.png"))
    assert both[0] > one[0]
    assert both[1] == one[1] < many[1] == crowd[1]


@pytest.mark.slow
def test_many_scores_take_several_rows(tmp_path):
    four = size(draw_clients(records(5, "abcd"), tmp_path / "four.png"))
    five = size(draw_clients(records(5, "abcde"), tmp_path / "five.png"))
    assert five[0] == four[0]
    assert five[1] == pytest.approx(2 * four[1], abs=2)


def test_values_that_are_not_finite_are_written_and_not_drawn(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    written = []
    real = Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, text, **o: written.append((y, text)) or real(self, x, y, text))
    own = {"per_client": [-2.0, -math.inf, -3.0], "client_names": ["a", "b", "c"]}
    errors = {"per_client_errors": [0.1, math.inf, 0.1], "standard_error": math.inf}
    lost = [record("ll", name, -math.inf, **(own | errors if name == "avg" else {})) for name in ("avg", "all")]
    draw_clients(lost, tmp_path / "lost.png")
    assert written == [(2, "-inf")]


def test_clients_are_drawn_best_first_with_bars_of_two_standard_errors(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = {}
    real = Axes.errorbar

    def watched(self, x, y, xerr=None, **options):
        drawn["values"], drawn["bars"] = list(x), xerr
        return real(self, x, y, xerr=xerr, **options)

    monkeypatch.setattr(Axes, "errorbar", watched)
    draw_clients(records(9, ["fid"]), tmp_path / "a.png")
    assert drawn["values"] == sorted(k % 7 for k in range(9))
    assert drawn["bars"] == [0.2] * 9


def test_of_a_score_by_which_more_is_better_the_highest_client_is_on_top_and_the_axis_says_so(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, labels = [], []
    real, label = Axes.errorbar, Axes.set_xlabel

    def watched(self, x, *args, **options):
        drawn.append(list(x))
        return real(self, x, *args, **options)

    monkeypatch.setattr(Axes, "errorbar", watched)
    monkeypatch.setattr(Axes, "set_xlabel", lambda self, text, **o: labels.append(text) or label(self, text, **o))
    draw_clients(records(9, ["recall", "fid"]), tmp_path / "a.png")
    assert drawn[0] == sorted((k % 7 for k in range(9)), reverse=True)
    assert labels == ["Recall (higher is better)", "FID (lower is better)"]


def test_scores_without_errors_can_be_drawn(tmp_path):
    assert draw_clients(records(3, per_client_errors=[]), tmp_path / "a.png").exists()


@pytest.mark.slow
def test_any_name_can_be_drawn_as_it_is(tmp_path):
    names = ["x", "$a^{$", "日本", "caf\udce9"]
    figures = [
        draw_clients(records(1, ["fid"], client_names=[name]), tmp_path / "a.png").read_bytes() for name in names
    ]
    assert len(set(figures)) == len(names)


def test_records_without_clients_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="draw"):
        draw_clients([record("fid", "all")], tmp_path / "none.png")
