from itertools import pairwise

import pytest
import torch

from fedgen.data.sets.without_download import RANGES, Style, draw_style, render, widen


def drawing(top=10, bottom=18, left=12, right=16, side=28):
    """A white rectangle: rows top to bottom - 1, columns left to right - 1."""
    image = torch.zeros(1, 1, side, side, dtype=torch.uint8)
    image[..., top:bottom, left:right] = 255
    return image


def ink(image):
    """White pixels' worth of ink."""
    return float(image.double().sum() / 255)


def middle(values):
    """Where the ink of [..., L] lies on average."""
    weights = values.double().reshape(-1, values.shape[-1]).sum(0)
    return float((weights * torch.arange(len(weights))).sum() / weights.sum())


def test_the_plain_style_leaves_every_pixel_as_it_is():
    images = torch.randint(256, (5, 1, 28, 28), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert torch.equal(render(images, Style()), images)


@pytest.mark.parametrize("width", [-1.0, -0.3, 0.5, 1.25, 2.0])
def test_a_vertical_stroke_of_four_pixels_gets_wider_by_the_width(width):
    wide = render(drawing(), Style(width=width))
    assert ink(wide[0, 0, 14]) == pytest.approx(4 + width, abs=0.01)
    assert middle(wide) == pytest.approx(middle(drawing()), abs=1e-9)


def test_steps_go_to_four_neighbours_and_then_to_eight():
    dot = torch.zeros(7, 7)
    dot[3, 3] = 1
    assert [int(widen(dot, steps).sum()) for steps in (0, 1, 2)] == [1, 5, 21]  # a dot, a plus, 5 x 5 less its corners
    assert float(widen(dot, 0.5).sum()) == 3
    assert widen(widen(dot, 2), -1)[3].tolist() == [0, 0, 1, 1, 1, 0, 0]


def test_strokes_at_the_border_are_narrowed_as_if_it_were_black_outside():
    bar = torch.zeros(5, 5)
    bar[:, :3] = 1
    assert widen(bar, -1).sum(0).tolist() == [0, 3, 0, 0, 0]


def test_slant_moves_the_top_to_the_right_and_keeps_the_middle():
    slanted = render(drawing(top=4, bottom=24), Style(slant=0.4))
    rows = [middle(slanted[0, 0, row]) for row in range(5, 23)]
    # Each row up moves 0.4 pixels; the middle row is between 13 and 14.
    assert all(before - after == pytest.approx(0.4, abs=0.02) for before, after in pairwise(rows))
    assert middle(slanted) == pytest.approx(13.5, abs=0.01)
    assert ink(slanted) == pytest.approx(80, abs=0.5)


def test_scale_makes_digits_smaller_about_the_middle():
    small = render(drawing(), Style(scale=0.5))
    assert ink(small) == pytest.approx(32 * 0.25, abs=0.2)
    assert middle(small) == pytest.approx(13.5, abs=0.01)
    assert middle(small.mT) == pytest.approx(13.5, abs=0.01)


def test_contrast_is_the_brightness_of_the_ink():
    assert render(drawing(), Style(contrast=0.6)).unique().tolist() == [0, 153]


def test_each_image_is_rendered_by_itself():
    both = torch.cat([drawing(), drawing(left=3, right=5)])
    style = Style(0.2, 0.7, 0.8, 0.9)
    assert torch.equal(render(both, style)[1:], render(both[1:], style))


def test_styles_are_uniform_in_their_ranges_and_independent():
    styles = torch.tensor([[s.slant, s.width, s.contrast, s.scale] for s in map(draw_style, [0] * 2000, range(2000))])
    low, high = torch.tensor(list(RANGES.values())).T
    assert ((styles >= low) & (styles <= high)).all()
    draws = (styles - low) / (high - low)
    # Standard errors: sqrt(1 / 12 / 2000) = 0.0065 of a mean, about 0.001 of a variance, 0.022 of a correlation.
    assert (draws.mean(0) - 0.5).abs().max() < 0.025
    assert (draws.var(0) - 1 / 12).abs().max() < 0.005
    assert (draws.T.corrcoef() - torch.eye(4)).abs().max() < 0.08


def test_strength_moves_a_style_between_the_plain_one_and_its_own():
    own, half = draw_style(3, 7), draw_style(3, 7, strength=0.5)
    assert draw_style(3, 7, strength=0.0) == Style()
    assert half.slant == pytest.approx(own.slant / 2)
    assert half.scale == pytest.approx((1 + own.scale) / 2)
    assert draw_style(3, 7) == own != draw_style(4, 7)
