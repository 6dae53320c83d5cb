import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from fedgen.models.networks.network import build, describe
from fedgen.models.stylegan2.augment import COLOR, MULTIPLIERS, PIPES, Augment, ColorMap
from fedgen.models.stylegan2.augment_images import SYM2, SYM6, Affine, filter_bank, resample, scale_bands
from fedgen.models.stylegan2.operations import downsample2d, make_filter, upsample2d

FOLDER = Path(__file__).parent / "reference"
REFERENCE = json.loads((FOLDER / "augment.json").read_text())
ARRAYS = load_file(FOLDER / REFERENCE["file"])


def with_p(augment, p):
    augment.p.fill_(p)
    return augment


def random_images(*shape, dtype=torch.float32, seed=0):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1).to(dtype)


# ---- the official implementation's outputs ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("entry", REFERENCE["entries"], ids=lambda entry: entry["output"])
def test_images_are_those_of_the_official_implementation(entry, dtype):
    images = ARRAYS[entry["input"]].to(dtype)
    found = Augment(**entry["kwargs"])(images, percentile=entry["percentile"])
    assert found.dtype == dtype
    assert float((found - ARRAYS[entry["output"]]).abs().max()) < REFERENCE["tolerance"]


def test_there_are_references_for_all_but_noise():
    assert len(REFERENCE["entries"]) == 54
    assert {name for entry in REFERENCE["entries"] for name in entry["kwargs"]} == {*MULTIPLIERS} - {"noise"}


def test_filters_are_derived_to_the_official_buffers():
    torch.testing.assert_close(make_filter(SYM6), ARRAYS["buf/Hz_geom"], atol=1e-7, rtol=0)
    torch.testing.assert_close(filter_bank(SYM2), ARRAYS["buf/Hz_fbank"], atol=1e-7, rtol=0)


def test_bands_of_the_bank_sum_to_the_identity():
    for bands in (2, 3, 4):
        bank = filter_bank(SYM2, bands)
        identity = F.one_hot(torch.tensor(bank.shape[1] // 2), bank.shape[1]).float()
        torch.testing.assert_close(bank.sum(dim=0), identity)


# ---- against plain computations ----


def plain_resample(image, matrix):
    """One image [1, C, H, W] under one 3 x 3 inverse matrix, by products of matrices, as the paper writes it."""
    height, width = image.shape[2:]
    taps = make_filter(SYM6).double()

    def scale(x, y):
        return torch.diag(torch.tensor([x, y, 1.0], dtype=torch.float64))

    def shift(x, y):
        return torch.tensor([[1, 0, x], [0, 1, y], [0, 0, 1]], dtype=torch.float64)

    pad = [width - 1, width - 1, height - 1, height - 1]  # the most that is allowed, which the batch may not need
    image = upsample2d(F.pad(image, pad, mode="reflect"), taps)
    matrix = shift(-0.5, -0.5) @ scale(2, 2) @ matrix @ scale(0.5, 0.5) @ shift(0.5, 0.5)
    rows, columns = (height + 6) * 2, (width + 6) * 2
    matrix = scale(2 / image.shape[3], 2 / image.shape[2]) @ matrix @ scale(columns / 2, rows / 2)
    grid = F.affine_grid(matrix[None, :2], [1, image.shape[1], rows, columns], align_corners=False)
    return downsample2d(F.grid_sample(image, grid, align_corners=False), taps, crop=6, flip=True)


def test_each_image_of_a_batch_has_its_own_map():
    # maps that read less than the image's size beyond its edges, so that how far the edges are reflected is no matter
    torch.manual_seed(0)
    matrices = torch.eye(3, dtype=torch.float64) + torch.cat([torch.randn(3, 2, 3) * 0.1, torch.zeros(3, 1, 3)], dim=1)
    matrices[:, :2, 2] *= 20
    images = random_images(3, 2, 16, 20, dtype=torch.float64)
    x, y, offset = matrices[:, :2].unbind(2)
    found = resample(images, Affine(x, y, offset), make_filter(SYM6))
    plain = torch.cat([plain_resample(image[None], matrix) for image, matrix in zip(images, matrices)])
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=0)


def test_colours_and_bands_are_each_image_s_own():
    images, gains = random_images(2, 3, 24, 24), torch.tensor([[1.0, 2.0, 0.5, 1.0], [0.3, 1.0, 1.0, 4.0]])
    factors = torch.tensor([0.5, 2.0])
    bank = filter_bank(SYM2)

    def colors(images, factors):
        start = ColorMap.identity(len(images), images)
        return start.brighten(factors).scale(factors).rotate_hue(factors).saturate(factors).apply(images)

    for i in range(2):
        alone = slice(i, i + 1)
        torch.testing.assert_close(colors(images, factors)[alone], colors(images[alone], factors[alone]))
        together = scale_bands(images, gains, bank)[alone]
        torch.testing.assert_close(together, scale_bands(images[alone], gains[alone], bank), atol=1e-6, rtol=0)


def test_colours_by_hand():
    red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    start, one, third = ColorMap.identity(1, red), torch.ones(1), torch.tensor([2 * math.pi / 3])

    def become(colors):
        return colors.apply(red).flatten().tolist()

    assert become(start.brighten(one).scale(2 * one)) == [4, 2, 2]  # in this order
    assert become(start.flip_luma(one)) == pytest.approx([1 / 3, -2 / 3, -2 / 3])
    assert become(start.rotate_hue(third)) == pytest.approx([0, 1, 0], abs=1e-6)  # red to green
    assert become(start.saturate(0 * one)) == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_cutout_by_hand():
    cut = Augment(cutout=1)(torch.ones(1, 1, 4, 4), percentile=0.5)
    assert cut[0, 0].tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]
    assert float(Augment(cutout=1, cutout_size=2)(torch.ones(1, 1, 4, 4), percentile=0.5).sum()) == 0


def test_noise_has_the_strength_that_its_percentile_says():
    torch.manual_seed(0)
    noise = Augment(noise=1, noise_std=0.2)(torch.zeros(50, 1, 32, 32), percentile=0.5)
    assert float(noise.std()) == pytest.approx(0.2 * 0.476936, rel=0.02)  # erfinv(0.5)


# ---- draws ----


def test_without_transforms_images_come_back_and_nothing_is_drawn():
    images, state = random_images(2, 3, 8, 8), torch.get_rng_state()
    assert torch.equal(with_p(Augment(), 1.0)(images), images)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("pipe", ["color", "noise", "cutout"])
def test_at_p_0_images_stay_exactly_as_they_are(pipe):
    images = random_images(4, 3, 8, 8)
    assert torch.equal(Augment.of_pipe(pipe)(images), images)


@pytest.mark.parametrize("pipe", ["blit", "geom", "filter", "bgcfnc"])
def test_at_p_0_resampled_and_filtered_images_stay_as_they_are_to_rounding(pipe):
    # up and down again is the wavelet's synthesis and analysis, and the bands sum to one
    images = random_images(4, 3, 24, 26)
    torch.testing.assert_close(Augment.of_pipe(pipe)(images), images, atol=1e-5, rtol=0)


CHANGED = {  # the share of images that a transform which fires changes
    "xflip": 1 / 2,
    "rotate90": 3 / 4,
    "xint": 3 / 4,  # of 8 pixels by up to one: rounds to none in a quarter of the draws
    "lumaflip": 1 / 2,
}


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_a_transform_fires_with_probability_p_times_its_multiplier(name):
    count, p, size = 1000, 0.3, 24 if name == "imgfilter" else 8
    augment = with_p(Augment(**{name: 0.5}, imgfilter_bands=[0, 1, 0, 0]), 2 * p)
    torch.manual_seed(1)
    images = random_images(count, 3 if name in COLOR else 1, size, size)
    changed = (augment(images) - images).abs().flatten(1).amax(dim=1) > 1e-4
    expected = p * CHANGED.get(name, 1.0)
    error = math.sqrt(expected * (1 - expected) / count)
    assert abs(float(changed.float().mean()) - expected) < 3.5 * error


@pytest.mark.parametrize("p", [1.0, 1.5])
def test_from_p_1_on_everything_fires(p):
    torch.manual_seed(0)
    images = random_images(50, 3, 8, 8)
    for name in ("scale", "rotate", "brightness"):
        found = with_p(Augment(**{name: 1}), p)(images)
        assert bool(found.isfinite().all())
        assert bool(((found - images).abs().flatten(1).amax(dim=1) > 1e-4).all())


def test_values_are_distributed_as_they_should_be():
    torch.manual_seed(0)
    ones = torch.ones(4000, 1, 4, 4)
    brightness = with_p(Augment(brightness=1), 1.0)(ones)[:, 0, 0, 0] - 1
    assert float(brightness.mean()) == pytest.approx(0, abs=0.01)
    assert float(brightness.std()) == pytest.approx(0.2, rel=0.04)
    octaves = with_p(Augment(contrast=1, contrast_std=2), 1.0)(ones)[:, 0, 0, 0].log2()
    assert float(octaves.std()) == pytest.approx(2, rel=0.04)
    noise = with_p(Augment(noise=1), 1.0)(ones) - ones
    assert float(noise.std()) == pytest.approx(0.1, rel=0.04)


def test_draws_come_in_the_documented_order():
    images, p = random_images(5, 1, 8, 8), 0.5
    augment = with_p(Augment(rotate=1, aniso=1, brightness=1), p)
    torch.manual_seed(3)
    found = augment(images)
    torch.manual_seed(3)
    half = 1 - math.sqrt(1 - p)
    before = (2 * torch.rand(5) - 1) * math.pi * (torch.rand(5) < half)
    octaves = torch.randn(5) * 0.2 * (torch.rand(5) < p)
    after = (2 * torch.rand(5) - 1) * math.pi * (torch.rand(5) < half)
    offset = torch.randn(5) * 0.2 * (torch.rand(5) < p)
    assert all(0 < int((value != 0).sum()) < 5 for value in (before, octaves, after, offset))
    inverse = Affine.identity(5, images).rotate(before).scale(0.5**octaves, 2**octaves).rotate(after)
    expected = resample(images, inverse, make_filter(SYM6)) + offset[:, None, None, None]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_float64_images_meet_the_transforms_of_float32():
    augment, images = with_p(Augment.of_pipe("bgcfnc"), 0.7), random_images(4, 3, 24, 24)
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(5)
        found.append(augment(images.to(dtype)))
    torch.testing.assert_close(found[0].double(), found[1], atol=1e-4, rtol=0)


# ---- kinds of images ----


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_small_grey_and_colour_images(size, channels):
    torch.manual_seed(0)
    images = random_images(6, channels, size, size)
    found = with_p(Augment.of_pipe("bgcfnc" if size > 21 else "bgc"), 0.8)(images)
    assert found.shape == images.shape
    assert bool(found.isfinite().all())
    assert not torch.equal(found, images)


def test_grey_images_are_transformed_as_grey_ones_of_three_channels():
    # hue and saturation leave greys alone; with rows averaged, the rest is the same for every channel
    grey = random_images(1, 1, 8, 8)
    of_three = Augment.of_pipe("color")(grey.expand(1, 3, 8, 8), percentile=0.7)
    of_one = Augment.of_pipe("color")(grey, percentile=0.7)
    torch.testing.assert_close(of_three, of_one.expand(1, 3, 8, 8), atol=1e-5, rtol=0)


def test_other_channels_pass_where_colours_stay():
    assert with_p(Augment.of_pipe("bg"), 1.0)(random_images(2, 4, 8, 8)).shape == (2, 4, 8, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_images_are_transformed_in_float32(dtype):
    augment, images = Augment.of_pipe("bgc"), random_images(1, 3, 8, 8).to(dtype)
    assert torch.equal(augment(images, 0.6), augment(images.float(), 0.6).to(dtype))


def test_autocast_changes_nothing():
    augment, images = Augment.of_pipe("bgcf"), random_images(2, 3, 24, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = augment(images, 0.6)
    assert torch.equal(found, augment(images, 0.6))


# ---- derivatives ----


@pytest.mark.parametrize(("pipe", "shape"), [("bgc", (2, 3, 4, 5)), ("bgc", (1, 1, 4, 4)), ("bgcfnc", (1, 1, 22, 22))])
def test_derivatives_of_both_orders(pipe, shape):
    augment = with_p(Augment.of_pipe(pipe), 0.7)
    images = random_images(*shape, dtype=torch.float64).requires_grad_()

    def curved(images):
        torch.manual_seed(2)
        return augment(images).sin()

    assert torch.autograd.gradcheck(curved, images, fast_mode=True)
    assert torch.autograd.gradgradcheck(curved, images, fast_mode=True)


# ---- module ----


def test_state_has_the_official_names_and_keeps_its_precision():
    augment = Augment.of_pipe("bgc").half()
    state = augment.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "p": (),
        "Hz_geom": (12,),
        "Hz_fbank": (4, 43),
    }
    assert all(value.dtype == torch.float32 for value in state.values())
    assert float(augment.p) == 0
    assert not list(augment.parameters())


def test_a_checkpoint_s_description_builds_it_again():
    augment = Augment.of_pipe("bgc", scale_std=0.1, imgfilter_bands=(1, 0, 0, 1))
    described = json.loads(json.dumps(describe(augment)))
    again = build(described, "augment", Augment, "augmentation")
    assert again.settings == augment.settings
    assert again.settings["imgfilter_bands"] == [1, 0, 0, 1]
    assert len(again.settings) == 28


def test_pipes_are_the_published_ones():
    assert {name for name in MULTIPLIERS if Augment.of_pipe("bgc").settings[name]} == {*MULTIPLIERS[:12]}
    assert PIPES["bgcfnc"] == MULTIPLIERS
    assert str(Augment.of_pipe("blit")) == "Augment(xflip=1, rotate90=1, xint=1)"
    with pytest.raises(ValueError, match="augmentation"):
        Augment.of_pipe("bgx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hue": -1}, "hue must be a finite number of at least 0, got -1"),
        ({"scale_std": math.inf}, "scale_std must be a finite"),
        ({"imgfilter_bands": [1, 1]}, "imgfilter_bands must be four numbers"),
        ({"imgfilter_bands": [1, 1, 1, -1]}, "imgfilter_bands must be a finite number"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Augment(**arguments)


@pytest.mark.parametrize(
    ("pipe", "images", "percentile", "message"),
    [
        ("color", torch.zeros(1, 4, 8, 8), None, "3 channels .* got 4; leave brightness, contrast, lumaflip"),
        ("bgc", torch.zeros(1, 3, 8, 8, dtype=torch.uint8), None, r"floats \[N, C, H, W\], got torch.uint8"),
        ("bgc", torch.zeros(3, 8, 8), None, r"floats \[N, C, H, W\]"),
        ("bgc", torch.zeros(0, 3, 8, 8), None, r"floats \[N, C, H, W\]"),
        ("bgc", torch.zeros(1, 3, 8, 8), 1.0, "percentile"),
        ("bg", torch.zeros(1, 3, 3, 8), None, "more than 3 pixels a side, got 3 x 8"),
        ("bgcf", torch.zeros(1, 3, 16, 32), None, "more than 21 pixels a side, got 16 x 32; leave imgfilter at 0"),
    ],
)
def test_images_that_cannot_be_transformed_are_refused(pipe, images, percentile, message):
    with pytest.raises(ValueError, match=message):
        Augment.of_pipe(pipe)(images, percentile)
