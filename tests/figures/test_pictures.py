"""Panels of stored pictures."""

import torch
from matplotlib.figure import Figure

from fedgen.figures.pictures import show_picture
from fedgen.images import save_png


def test_a_panel_has_every_pixel_the_title_and_no_ticks(tmp_path):
    image = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4) * 20
    save_png(tmp_path / "a.png", image)
    axes = Figure().subplots()
    show_picture(axes, tmp_path / "a.png", "twelve", color="red")
    (shown,) = axes.get_images()
    assert (shown.get_array() * 255).round().astype(int).tolist() == image[0].tolist()
    assert (axes.get_title(), axes.title.get_color()) == ("twelve", "red")
    assert len(axes.get_xticks()) == len(axes.get_yticks()) == 0
