"""Figures of arms over paired seeds."""

import pytest
import torch
from matplotlib.figure import Figure

from fedgen.experiments.engine.arm_panels import (
    REAL,
    ArmPanel,
    draw_images,
    draw_panel,
    draw_panels,
    draw_pictures,
    pairs_panel,
)
from fedgen.images import save_png

STYLES = {"a": {"color": "red"}, "b": {"color": "blue"}, "real": REAL, "band": {"color": "green"}}


def axes_of(panel):
    axes = Figure().subplots()
    draw_panel(axes, panel, STYLES)
    return axes


def test_each_seed_is_a_thin_line_and_the_mean_a_thick_one():
    axes = axes_of(ArmPanel({"a": {1: [1.0, 3.0], 2: [2.0, 6.0]}}, {"real": [0.5]}))
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert drawn == [[0.5, 0.5], [1.0, 2.0], [3.0, 6.0], [2.0, 4.0]]
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == ["real", "a"]


def test_a_level_of_several_seeds_is_a_band_around_their_mean():
    axes = axes_of(ArmPanel({"a": {1: [1.0]}}, {"band": [2.0, 4.0]}, log="y"))
    assert list(axes.lines[0].get_ydata()) == [3.0, 3.0]
    (band,) = axes.patches
    assert (band.get_y(), band.get_height()) == (2.0, 2.0)
    assert axes.get_yscale() == "log"


def test_arms_side_by_side_join_the_values_of_a_seed():
    axes = axes_of(pairs_panel({"a": [1.0, 2.0], "b": [3.0, 5.0]}, {"b": "B"}))
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[1.0, 3.0], [2.0, 5.0]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "B"]


@pytest.mark.slow
def test_figures_of_panels_pictures_and_images_are_written(tmp_path):
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    save_png(tmp_path / "one.png", image)
    pictures = [(tmp_path / "one.png", "one", "black")]
    panels = [[ArmPanel({"a": {1: [1.0]}}), ArmPanel({})]]
    blocks = {"arm": {"0": torch.stack([image] * 3), "10": torch.stack([image] * 3)}}
    files = [
        draw_panels(panels, STYLES, tmp_path / "panels.png", "title", "rounds", pictures=pictures),
        draw_pictures([pictures * 2, pictures], tmp_path / "pictures.png", "title", (2.0, 2.0)),
        draw_images(blocks, tmp_path / "images.png", "steps", ["red"]),
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
