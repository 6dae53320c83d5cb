"""Every operation against the official implementation's outputs and gradients; plain loops where they are clearer."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fedgen.models.stylegan2 import operations
from fedgen.models.stylegan2.layers import Convolution, Dense, MinibatchStd
from fedgen.models.stylegan2.operations import (
    activation_gain,
    bounded,
    convolve,
    downsample2d,
    make_filter,
    modulated_conv2d,
    normalize_2nd_moment,
    rectify,
    upfirdn2d,
    upsample2d,
)
from tests.models.stylegan2.conftest import OUTPUTS, OWN, deviation
from tests.quick import first_quick

ENTRIES = json.loads((OWN / "index.json").read_text())["ops"]
ARRAYS = load_file(OWN / "ops.safetensors")


def resampling(arguments):
    """Official keyword arguments as ours; padding is always half the kernel, as in the networks."""
    ours = {key: arguments[key] for key in ("up", "down", "demodulate") if key in arguments}
    return ours | {"flip": arguments.get("flip_weight", True)}


def run(op, arguments, given):
    """Our result for an entry of the reference."""
    if op == "setup_filter":
        return make_filter(arguments["f"], arguments.get("gain", 1))
    if op == "upfirdn2d":
        return resampled(given["x"], given.get("f", torch.ones(1, 1)), **arguments)
    if op in ("upsample2d", "downsample2d"):  # both of arguments {"up": 2} and {"down": 2}
        return {"upsample2d": upsample2d, "downsample2d": downsample2d}[op](given["x"], given["f"])
    if op == "filter2d":  # of four taps
        return upfirdn2d(given["x"], given["f"], padding=[2, 1, 2, 1])
    if op == "conv2d_resample":
        return convolve(given["x"], given["w"], given.get("f"), **resampling(arguments))
    if op == "modulated_conv2d":
        noise = given.get("noise")
        styles, taps = given["styles"], given.get("f")
        return modulated_conv2d(given["x"], given["weight"], styles, noise, taps=taps, **resampling(arguments))
    if op == "grad_modulated_conv2d":
        wrt = given[arguments["wrt"]].requires_grad_()
        out = run("modulated_conv2d", {k: v for k, v in arguments.items() if k != "wrt"}, given)
        return torch.autograd.grad((out * given["gy"]).sum(), wrt)[0]
    if op == "bias_act":
        return biased_activation(given["x"], given["b"], **arguments)
    if op == "fully_connected":
        return filled(Dense(given["x"].shape[1], len(given["bias"]), **arguments), given)(given["x"])
    if op == "conv2d_layer":
        outputs, inputs, kernel, _ = given["weight"].shape
        options = {k: arguments[k] for k in ("activation", "up", "down") if k in arguments}
        layer = Convolution(inputs, outputs, kernel, clamp=arguments.get("conv_clamp"), **options)
        return filled(layer, given)(given["x"], gain=arguments["call_gain"])
    if op == "minibatch_std":
        return MinibatchStd(arguments["group_size"], arguments["num_channels"])(given["x"])
    assert op == "normalize_2nd_moment"
    assert arguments == {"dim": 1, "eps": 1e-8}
    return normalize_2nd_moment(given["x"])


def resampled(x, taps, up=1, down=1, padding=(0, 0, 0, 0), flip_filter=False, gain=1.0):
    """`upfirdn2d`, whose factors and padding are also one number, or (x, y)."""
    around = [padding] * 4 if isinstance(padding, int) else padding
    around = around if len(around) == 4 else [around[0], around[0], around[1], around[1]]
    if isinstance(up, int):
        return upfirdn2d(x, taps, up, down, around, flip_filter, gain)
    x0, x1, y0, y1 = around
    return operations._resample(x, taps.flip([0, 1]), tuple(up[::-1]), tuple(down[::-1]), (y0, y1, x0, x1))


def biased_activation(x, bias, act, alpha=0.2, gain=None, clamp=None):
    """Bias, activation, gain and clamp, in that order, of the parts that layers fold into their weights."""
    x = x + bias.reshape(1, -1, *[1] * (x.ndim - 2))
    return bounded(rectify(x, act, alpha) * (activation_gain(act) if gain is None else gain), clamp)


def filled(layer, given):
    with torch.no_grad():
        layer.weight.copy_(given["weight"])
        layer.bias.copy_(given["bias"])
    return layer


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_is_the_official_operation(entry):
    given = {name: ARRAYS[key].clone() for name, key in entry["inputs"].items()}
    reference = ARRAYS[entry["output"]]
    ours = run(entry["op"], entry["args"], given)
    assert ours.shape == reference.shape
    # tolerances are of the largest value; appended spreads are small beside the features they are appended to
    assert deviation(ours, reference) <= OUTPUTS
    if entry["op"] == "minibatch_std":
        features = given["x"].shape[1]
        assert deviation(ours[:, features:], reference[:, features:]) <= OUTPUTS


def test_modulation_is_one_scaled_kernel_per_image():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3, 5, 5), (4, 3, 3, 3)))
    styles = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    ours = modulated_conv2d(x, weight, styles)
    for n in range(2):
        kernel = weight * styles[n][None, :, None, None]
        kernel = kernel / (kernel.square().sum(dim=(1, 2, 3), keepdim=True) + 1e-8).sqrt()
        expected = torch.nn.functional.conv2d(x[n : n + 1], kernel, padding=1)[0]
        torch.testing.assert_close(ours[n], expected, rtol=1e-12, atol=1e-12)


def test_upsampling_a_single_pixel_by_hand():
    x = torch.zeros(1, 1, 2, 2)
    x[0, 0, 0, 0] = 1
    line = torch.tensor([3.0, 3.0, 1.0, 0.0]) / 4  # of 1 3 3 1 / 4, centred between the first two output pixels
    torch.testing.assert_close(upsample2d(x, make_filter())[0, 0], torch.outer(line, line))


@pytest.mark.slow
@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_differentiate_twice(up, down, kernel):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 2, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(1, 2, kernel, kernel, generator=generator, dtype=torch.float64, requires_grad=True)
    styles = torch.randn(1, 2, generator=generator, dtype=torch.float64, requires_grad=True)

    def layer(x, weight, styles):
        return modulated_conv2d(x, weight, styles, up=up, down=down, taps=make_filter())

    assert torch.autograd.gradcheck(layer, (x, weight, styles))
    assert torch.autograd.gradgradcheck(layer, (x, weight, styles))


@pytest.mark.parametrize(
    ("up", "down", "padding", "taps"),
    [
        (2, 1, (1, 2, 0, 3), 2),
        (1, 2, (2, 1, 1, 1), 2),
        (2, 3, (3, 2, 2, 3), 2),
        (2, 1, (-2, 1, -1, -3), 2),
        (2, 1, (1, 1, 2, 2), 1),
    ],
)
@pytest.mark.parametrize("channels", first_quick([1, 9]))
def test_filters_know_their_own_derivatives(up, down, padding, taps, channels):
    generator = torch.Generator().manual_seed(4)
    shape = (2, 1, 5, 4) if channels == 1 else (1, channels, 4, 3)
    x, other = torch.randn(2, *shape, generator=generator, dtype=torch.float64).requires_grad_().unbind()
    kernel = torch.randn((3, 4) if taps == 2 else (3,), generator=generator, dtype=torch.float64)

    def resample(x):
        return upfirdn2d(x, kernel, up, down, padding, gain=1.7)

    out = resample(x)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(out, x, weights, create_graph=True)
    torch.testing.assert_close((out * weights).sum(), (x * gradient).sum())  # of a linear map: its adjoint
    torch.testing.assert_close(torch.autograd.grad(gradient, weights, other), (resample(other),))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_large_weights_and_styles_do_not_overflow_half_precision(half):
    generator = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((1, 8, 4, 4), (8, 8, 3, 3)))
    styles = torch.randn(1, 8, generator=generator)
    expected = modulated_conv2d(x, weight, styles)
    ours = modulated_conv2d(x.to(half), weight * 1e4, styles * 1e4)  # demodulation takes both factors out
    assert ours.dtype == half
    assert deviation(ours.float(), expected) < (0.005 if half == torch.float16 else 0.03)


def test_channels_last_is_kept_and_changes_nothing():
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(3))
    weight, styles = torch.randn(16, 16, 3, 3), torch.randn(2, 16)
    ours = modulated_conv2d(x.to(memory_format=torch.channels_last), weight, styles, up=2, taps=make_filter())
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        ours, modulated_conv2d(x, weight, styles, up=2, taps=make_filter()), rtol=1e-4, atol=1e-5
    )


def test_refuses_what_cannot_be():
    x, weight = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3)
    with pytest.raises(ValueError, match="kernel"):
        convolve(x, weight, make_filter(), up=2, down=2)
    with pytest.raises(ValueError, match="filter"):
        convolve(x, weight, None, up=2)
    with pytest.raises(ValueError, match="choose"):
        activation_gain("swish")
    with pytest.raises(ValueError, match="smaller"):
        upfirdn2d(torch.zeros(1, 1, 2, 2), make_filter())
    with pytest.raises(ValueError, match="zero"):
        make_filter([1, -1])


def test_minibatch_std_refuses_batches_that_do_not_divide():
    with pytest.raises(ValueError, match="divide"):
        MinibatchStd(4)(torch.zeros(6, 2, 4, 4))
