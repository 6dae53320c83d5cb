"""Panels of avg against all."""

from matplotlib.figure import Figure

from fedgen.reports.figures.aggregate_panels import draw_aggregates, draw_gap


def test_points_are_generators():
    axes = Figure().subplots()
    draw_aggregates(axes, [1.0, 2.0, 3.0], [3.0, 2.0, 4.0], "FID")
    assert axes.collections[-1].get_offsets().tolist() == [[1, 3], [2, 2], [3, 4]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("FID avg", "FID all")


def test_a_gap_that_differs_by_rounding_alone_is_drawn_flat():
    axes = Figure().subplots()
    draw_gap(axes, [0, 1], [4.0, 4.0 + 1e-14], "KID", "generator", controls=[[0.1, 0.1]])
    assert axes.get_ylim()[0] < 0.1
    flat = Figure().subplots()
    draw_gap(flat, [0, 1], [4.0, 4.0 + 1e-14], "KID", "generator")
    assert flat.get_ylim() == (0, 8.0 + 2e-14)
