import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.embeddings.fidelity import centre_square, pillow_resize


def levels(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed)).float()


def pillow(image, height, width):
    picture = Image.fromarray(image.permute(1, 2, 0).numpy().astype(np.uint8))
    return torch.from_numpy(np.array(picture.resize((width, height), Image.Resampling.BICUBIC))).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((32, 32), (224, 224)),
        ((32, 32), (336, 336)),
        ((28, 28), (336, 336)),
        ((64, 64), (224, 224)),
        ((336, 336), (336, 336)),
        ((448, 448), (224, 224)),
        ((180, 299), (224, 224)),
        ((17, 400), (336, 336)),
        ((1, 3), (5, 7)),
    ],
)
def test_the_levels_are_pillows_to_the_bit(before, after):
    images = levels(2, 3, *before)
    images[1] = (images[1] > 127) * 255.0  # edges overshoot and are clipped
    ours = pillow_resize(images, *after)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, torch.stack([pillow(image, *after) for image in images]).float())


def test_pytorchs_own_bicubic_is_another():
    images = levels(1, 3, 32, 32)
    theirs = torch.nn.functional.interpolate(images, (336, 336), mode="bicubic").clamp(0, 255)
    assert (pillow_resize(images, 336, 336) - theirs).abs().max() > 10


def test_the_gradient_is_that_of_the_linear_filter():
    images = levels(1, 1, 6, 6).requires_grad_()
    pillow_resize(images, 4, 4).sum().backward()
    # each new pixel is a mean of old ones, so the slopes add up to the number of new pixels
    assert images.grad.sum().item() == pytest.approx(16, abs=1e-4)
    smooth = torch.full((1, 1, 6, 6), 100.0, requires_grad=True)
    torch.nn.functional.interpolate(smooth, (4, 4), mode="bicubic", antialias=True).sum().backward()
    torch.testing.assert_close(images.grad, smooth.grad, atol=1e-5, rtol=1e-4)


def test_the_square_in_the_middle_starts_at_half_the_rest_rounded_down():
    images = levels(1, 1, 4, 7)
    assert torch.equal(centre_square(images), images[:, :, :, 1:5])
    assert torch.equal(centre_square(images.transpose(2, 3)), images.transpose(2, 3)[:, :, 1:5])
    assert torch.equal(centre_square(images[:, :, :, :4]), images[:, :, :, :4])
