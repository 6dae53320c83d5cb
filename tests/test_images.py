import pytest
import torch
from PIL import Image

from fedgen.images import SURE, SeenRange, from_uint8, quantise, save_png, tile, to_uint8


def test_all_256_grey_levels_survive_the_round_trip():
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(from_uint8(levels)), levels)


def test_grey_levels_are_the_floor_of_the_line():
    floats = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    # 127.5 x + 128 = 0.5, 64.25, 128, 191.75, 255.5
    assert to_uint8(floats).tolist() == [0, 64, 128, 191, 255]


def test_values_outside_the_range_are_clipped():
    assert to_uint8(torch.tensor([-7.0, -1.01, 1.01, 7.0])).tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_have_no_grey_level(value):
    with pytest.raises(ValueError, match="NaN"):
        to_uint8(torch.tensor([0.0, value]))


def test_integers_are_not_taken_for_images_of_models():
    with pytest.raises(ValueError, match="int64"):
        to_uint8(torch.tensor([0, 128, 255]))


def test_quantise_gives_the_grey_levels_of_to_uint8():
    floats = torch.linspace(-1.2, 1.2, 1001)
    assert torch.equal(quantise(floats), to_uint8(floats).float())


def test_quantise_passes_the_gradient_of_the_line_straight_through():
    floats = torch.tensor([-3.0, -0.2, 0.0, 0.9, 3.0], requires_grad=True)
    quantise(floats).backward(torch.tensor([1.0, 1.0, 2.0, -1.0, 1.0]))
    assert floats.grad is not None
    assert floats.grad.tolist() == [127.5, 127.5, 255.0, -127.5, 127.5]


def test_a_tile_runs_row_by_row_on_white():
    images = torch.tensor([10, 20, 30], dtype=torch.uint8).reshape(3, 1, 1, 1)
    assert tile(images, columns=2, padding=0).tolist() == [[[10, 20], [30, 255]]]
    assert tile(images[:1], padding=1).tolist() == [[[255] * 3, [255, 10, 255], [255] * 3]]


def test_a_tile_is_square_by_default_and_enlarges_small_images_by_a_whole_factor():
    images = torch.zeros(5, 3, 2, 2, dtype=torch.uint8)
    assert tile(images, padding=1).shape == (3, 2 * 4, 3 * 4)
    assert tile(images[:1], padding=0, min_side=5).shape == (3, 6, 6)


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 3, 3), torch.zeros(0, 1, 3, 3, dtype=torch.uint8)])
def test_a_tile_of_floats_or_of_nothing_is_refused(images):
    with pytest.raises(ValueError, match="uint8"):
        tile(images)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_saved_png_holds_the_same_pixels(tmp_path, channels):
    image = torch.arange(channels * 16 * 15, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(channels, 16, 15)
    path = save_png(tmp_path / "new" / "image.png", image)
    with Image.open(path) as file:
        assert file.mode == ("L" if channels == 1 else "RGB")
        stored = torch.tensor(list(file.tobytes()), dtype=torch.uint8).reshape(16, 15, channels)
    assert torch.equal(stored.permute(2, 0, 1), image)


def test_floats_in_0_to_1_are_named_with_their_range_and_the_remedy():
    seen = SeenRange("samples of MyVAE")
    seen.see(torch.tensor([[0.25, 0.5]]))
    with pytest.warns(UserWarning, match="MyVAE"):
        seen.warn()
    seen.warn()  # once
    assert r"like [0, 1] where floats in [-1, 1] are expected; pass images * 2 - 1" in seen.complaint


def test_floats_that_look_like_grey_levels_are_named_too():
    """They were clipped to white and black, and scored."""
    seen = SeenRange("the model's samples")
    seen.see(torch.full((60, 4), 3.0))
    seen.see(torch.full((1, 4), 250.0))
    with pytest.warns(UserWarning, match="uint8"):
        seen.refuse()  # a model that diverges ends no training


@pytest.mark.parametrize(
    "images",
    [
        torch.tensor([[-0.01, 1.0]]),  # a value below mid-grey
        torch.tensor([[0.0, 1.01]]),  # no [0, 1] either
        torch.zeros(99, 3),  # one value: a generator before its first step
        torch.tensor([[0, 1]], dtype=torch.uint8),  # almost black, and no float
        torch.full((2, 2), torch.nan),
        torch.empty(0, 3),
    ],
)
def test_ranges_that_say_nothing_are_no_complaint(images):
    seen = SeenRange("images")
    seen.see(images)
    seen.refuse()
    assert not seen.is_unit


def test_few_bright_images_may_be_chance_and_many_are_refused():
    seen = SeenRange("images")
    seen.see(torch.rand(SURE - 1, 1, 2, 2))
    with pytest.warns(UserWarning, match="49 images"):
        seen.refuse()
    seen.see(torch.rand(1, 1, 2, 2))
    with pytest.raises(ValueError, match="50 images lie"):
        seen.refuse()
    seen.see(torch.tensor([[-0.5]]))  # one dark pixel, and it was chance
    seen.refuse()
