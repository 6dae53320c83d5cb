"""The figure of a run's scores."""

import math
import struct

import pytest

from fedgen.reports.figures import draw_curves
from fedgen.reports.figures.curves import free_side
from tests.evaluation.samples import record
from tests.evaluation.test_selection import RECORDS

FLOOR = [record(s, a, 0.5, None, generator="floor") for s in ("fid", "kid") for a in ("avg", "all")]


def size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:24])


@pytest.mark.slow
def test_the_figure_is_a_png_with_a_row_a_score(tmp_path):
    path = draw_curves([*FLOOR, *RECORDS], tmp_path / "curves.png")
    assert path == tmp_path / "curves.png"
    width, height = size(path)
    fid_only = draw_curves([r for r in RECORDS if r.score == "fid"], tmp_path / "fid.png")
    assert size(fid_only)[0] == width
    assert size(fid_only)[1] < height


def test_one_checkpoint_without_errors_can_be_drawn(tmp_path):
    draw_curves([record(standard_error=None), record("fid", "all", standard_error=None)], tmp_path / "one.png")


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="draw"):
        draw_curves(FLOOR, tmp_path / "none.png")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_values_that_are_not_finite_are_left_out(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    real = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **o: drawn.append((x, y)) or real(self, x, y, **o))
    values = {0: -math.inf, 1: -3.0, 2: -2.0}
    lost = [
        record("ll", name, value, round, standard_error=0.1 if round else math.inf)
        for name in ("avg", "all")
        for round, value in values.items()
    ]
    draw_curves(lost, tmp_path / "some.png")
    assert drawn == [([1, 2], [-3.0, -2.0])] * 2
    draw_curves(lost[:1], tmp_path / "none.png")  # and a legend of nothing is no warning


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_each_axis_says_which_way_is_better(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    labels = []
    real = Axes.set_ylabel
    monkeypatch.setattr(Axes, "set_ylabel", lambda self, text, **o: labels.append(text) or real(self, text, **o))
    draw_curves([record("fid"), record("precision"), record("memorisation")], tmp_path / "a.png")
    assert [text for text in labels if "(" in text] == [
        "FID (lower is better)",
        "Precision (higher is better)",
        "Memorisation (0.5: no memory)",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_marks_and_sampling_settings_are_explained_above_the_panels(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    titles = []
    real = Figure.suptitle
    monkeypatch.setattr(Figure, "suptitle", lambda self, text, **o: titles.append(text) or real(self, text, **o))
    used = {"optimised_on": ["pixels"], "sampling": {"solver": "ddim", "steps": 50}}
    draw_curves([record(**used), record(generator="floor")], tmp_path / "a.png")
    draw_curves([record()], tmp_path / "b.png")
    assert "sampled with solver ddim, steps 50\n*: a training loss used this embedding" in titles[0]
    assert "*" not in titles[1]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_the_axes_of_marked_scores_are_marked(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    labels = []
    for name in ("set_xlabel", "set_ylabel"):
        real = getattr(Axes, name)
        monkeypatch.setattr(Axes, name, lambda self, text, real=real, **o: labels.append(text) or real(self, text, **o))
    draw_curves([record(optimised_on=["pixels"]), record(generator="floor", round=None)], tmp_path / "a.png")
    assert {"FID * (lower is better)", "FID avg *", "FID all *"} <= set(labels)


@pytest.mark.parametrize(
    ("at", "points", "side"),
    [
        ((0, 0), [(1, 1)], (True, True)),  # inwards and above, where all is free
        ((1, 1), [(0, 0)], (False, True)),
        ((0, 0), [(0.2, 0.05), (1, 1)], (True, False)),
        ((0, 0), [(0.2, 0.05), (0.2, -0.05), (1, 1), (1, -1)], (False, True)),
        ((3, 3), [], (True, True)),  # of one point alone
    ],
)
def test_the_name_of_a_point_stands_where_no_other_point_is(at, points, side):
    assert free_side(at, [at, *points]) == side


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_the_legend_explains_the_bands(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    told = []
    real = Axes.legend
    monkeypatch.setattr(
        Axes, "legend", lambda self, **o: told.append(self.get_legend_handles_labels()[1]) or real(self, **o)
    )
    draw_curves([record(standard_error=0.1), record("kid", standard_error=None)], tmp_path / "bands.png")
    assert ["± 2 standard errors" in labels for labels in told] == [True, False]
