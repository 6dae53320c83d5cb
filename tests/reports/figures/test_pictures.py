"""Panels of stored pictures, and of rows of images."""

import torch
from matplotlib.figure import Figure

from fedgen.images import save_png
from fedgen.reports.figures.aggregate_panels import show_picture, show_rows


def test_a_panel_has_every_pixel_the_title_and_no_ticks(tmp_path):
    image = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4) * 20
    save_png(tmp_path / "a.png", image)
    axes = Figure().subplots()
    show_picture(axes, tmp_path / "a.png", "twelve", color="red")
    (shown,) = axes.get_images()
    assert (shown.get_array() * 255).round().astype(int).tolist() == image[0].tolist()
    assert (axes.get_title(), axes.title.get_color()) == ("twelve", "red")
    assert len(axes.get_xticks()) == len(axes.get_yticks()) == 0


def test_rows_of_images_lie_below_each_other_with_their_names():
    axes = Figure().subplots()
    grey, colour = torch.full((3, 1, 8, 8), 7, dtype=torch.uint8), torch.full((2, 3, 64, 64), 9, dtype=torch.uint8)
    show_rows(axes, {"0.1": grey, "1": grey + 1})
    (shown,) = axes.get_images()
    assert shown.get_array().shape == (2 * 34, 3 * 34)  # enlarged to 32 pixels, and one of white around each
    assert (shown.get_array()[1, 1], shown.get_array()[35, 1], shown.get_array()[0, 0]) == (7, 8, 255)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.1", "1"]
    assert axes.get_yticks().tolist() == [17, 51]
    axes = Figure().subplots()
    show_rows(axes, {"a": colour})
    assert axes.get_images()[0].get_array().shape == (66, 132, 3)
