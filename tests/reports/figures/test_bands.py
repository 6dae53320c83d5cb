"""Panels of scores by size."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedgen.reports.figures.aggregate_panels import add_size_bar, draw_bands, draw_path, draw_ranks, scale_by_size

SIZES = (10, 100, 1000)
AVG, ALL = [[3.0, 1.0, 2.0], [5.0, 1.0, 4.0]], [[6.0, 4.0, 2.0], [8.0, 4.0, 2.0]]


@pytest.fixture
def axes():
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.subplots()


def test_lines_are_means_over_repeats_with_a_ring_at_the_least_and_the_floor_dashed(axes):
    draw_bands(axes, SIZES, {"avg": AVG, "all": ALL}, "FID", "M", {"avg": 0.5})
    avg, ring, floor, everyone = axes.lines[:4]
    assert avg.get_ydata().tolist() == [4.0, 1.0, 3.0]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([100], [1.0])
    assert list(floor.get_ydata()) == [0.5, 0.5]
    assert everyone.get_ydata().tolist() == [7.0, 4.0, 2.0]
    assert axes.get_xscale() == "log"


def test_a_path_goes_through_the_means_and_every_generator_is_a_point(axes):
    points = draw_path(axes, SIZES, AVG, ALL, "FID")
    assert points.get_offsets().tolist() == [[3, 6], [1, 4], [2, 2], [5, 8], [1, 4], [4, 2]]
    (path,) = [line for line in axes.lines if line.get_color() == "0.15" and len(line.get_xdata()) == 3]
    assert path.get_xydata().tolist() == [[4, 7], [1, 4], [3, 2]]
    assert [text.get_text() for text in axes.texts] == ["10", "1,000"]


def test_ranks_start_at_the_least_and_ties_share_theirs(axes):
    points = draw_ranks(axes, AVG, ALL, SIZES, "FID")
    assert points.get_offsets().tolist() == [[4, 5], [1.5, 3.5], [3, 1.5], [6, 6], [1.5, 3.5], [5, 1.5]]


def test_the_bar_names_sizes_and_not_their_logarithms(axes):
    points = draw_path(axes, SIZES, AVG, ALL, "FID")
    add_size_bar(axes.figure, points, axes, "M")
    axes.figure.canvas.draw()
    bar = axes.figure.axes[1]
    assert [label.get_text() for label in bar.get_yticklabels()] == ["10", "100", "1,000"]


def test_sizes_within_a_power_of_ten_have_ticks_that_do_not_overlap():
    def labels(sizes):
        figure = Figure()
        axes = figure.subplots()
        axes.plot(sizes, sizes)
        scale_by_size(axes, sizes)
        figure.draw_without_rendering()
        low, high = axes.get_xlim()
        ticks = [(axes.xaxis.get_ticklocs(minor=minor), axes.get_xticklabels(minor=minor)) for minor in (False, True)]
        pairs = [pair for places, texts in ticks for pair in zip(places, texts) if low <= pair[0] <= high]
        return [text.get_text() for _, text in pairs if text.get_text()]

    assert labels([100, 500, 895]) == ["100", "200", "500"]
    assert len(labels([100, 60_000])) == 3  # the powers of ten
