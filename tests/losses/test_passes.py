"""Mixed precision, checkpointing, gradient caching and second passes: the same gradient, and the memory promised."""

from functools import cache

import pytest
import torch
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.losses import EmbeddedLoss, FastFIDLoss, ImageLosses
from tests.losses.live_bytes import LiveBytes

BATCH = 64


class Deep(nn.Module):
    """Features of an image through layers whose activations outweigh everything else."""

    def __init__(self, seed=1, width=256):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [nn.Flatten(), nn.Linear(16, width)]
            for _ in range(8):
                layers += [nn.Tanh(), nn.Linear(width, width)]
            self.body = nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 4))

    def forward(self, images):
        return self.body(images)


def generator(width=16, depth=1):
    torch.manual_seed(0)
    layers = [nn.Linear(3, width)]
    for _ in range(depth):
        layers += [nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4)))


def latents():
    return torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(2))


def make(count=1, **options):
    """FID under some deep embeddings."""
    draws = torch.Generator().manual_seed(3)
    reals = torch.randint(0, 256, (100, 1, 4, 4), dtype=torch.uint8, generator=draws)
    embeddings = [load_embedding(Deep(seed), name=f"deep-{seed}") for seed in range(count)]
    return EmbeddedLoss(FastFIDLoss(), embeddings, **options).set_references([reals])


def joint(loss):
    """One backward pass through all images, as a GAN makes it by default."""
    return lambda network, backward: backward(loss(network(latents())))


def second(loss):
    """A pass of the loss's own, in chunks if it has any."""

    def run(network, backward):
        for part in loss.backward_parts(network, latents(), None):
            backward(part)

    return run


def together(losses, chunk):
    """A step of fine-tuning."""

    def run(network, backward):
        for part in ImageLosses(losses).backward_parts(network, latents(), chunk, lambda total: None):
            backward(part)

    return run


def measure(run, network=None):
    """Gradient of the generator, flattened in float64, and the most bytes alive beyond the set-up."""
    network = network or generator()
    with LiveBytes() as memory:
        run(network, torch.Tensor.backward)
    return torch.cat([p.grad.flatten().double() for p in network.parameters()]), memory.peak


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


# ---- gradient caching ----


def test_a_cached_gradient_is_the_batchs_to_rounding_at_the_memory_of_a_chunk():
    expected, whole = measure(joint(make()))
    found, cached = measure(second(make(separate=True, chunk=BATCH // 8)))
    assert relative(found, expected) < 1e-5
    assert cached < whole / 4


@pytest.mark.slow
def test_memory_grows_with_the_chunk_and_not_with_the_batch():
    peaks = {chunk: measure(second(make(separate=True, chunk=chunk)))[1] for chunk in (4, 8, 16)}
    assert peaks[4] < 0.7 * peaks[8] < 0.49 * peaks[16]


@pytest.mark.slow
def test_several_losses_of_the_same_images_are_cached_together():
    def darkness(images):
        return images.square().mean()

    expected, whole = measure(together([make(2), darkness], None))
    found, cached = measure(together([make(2), darkness], BATCH // 8))
    apart = sum(measure(together([loss], None))[0] for loss in (make(2), darkness))
    assert relative(expected, apart) < 1e-5
    assert relative(found, expected) < 1e-5
    assert cached < whole / 4


# ---- checkpointing ----


def test_checkpointing_keeps_one_embeddings_activations_at_a_time():
    expected, whole = measure(joint(make(4)))
    found, checkpointed = measure(joint(make(4, checkpointing=True)))
    assert relative(found, expected) < 1e-6
    assert checkpointed < 0.4 * whole


def test_checkpointing_in_chunks_keeps_one_chunks_activations_at_a_time():
    expected, whole = measure(joint(make()))
    found, checkpointed = measure(joint(make(chunk=BATCH // 8, checkpointing=True)))
    assert relative(found, expected) < 1e-5
    assert checkpointed < whole / 4


# ---- mixed precision ----


def cast(dtype, run, scaler=None):
    """The run under autocast, its backward passes scaled if there is a scaler, and the gradient unscaled again."""

    def mixed(network, backward):
        with torch.autocast("cpu", dtype=dtype):
            run(network, backward if scaler is None else lambda value: backward(scaler.scale(value)))
        if scaler is not None:
            scaler.unscale_(torch.optim.SGD(network.parameters(), lr=1.0))

    return mixed


@cache
def in_full_precision(pass_of, chunk):
    return measure(pass_of(make(chunk=chunk, separate=pass_of is second)))[0]


@pytest.mark.parametrize("pass_of", [joint, second])
@pytest.mark.parametrize("chunk", [None, 16])
def test_bfloat16_gives_the_gradient_within_five_percent(pass_of, chunk):
    found, _ = measure(cast(torch.bfloat16, pass_of(make(chunk=chunk, separate=pass_of is second))))
    assert 0 < relative(found, in_full_precision(pass_of, chunk)) < 0.05


@pytest.mark.parametrize("pass_of", [joint, second])
@pytest.mark.parametrize("chunk", [None, 16])
def test_float16_with_a_scaler_gives_the_gradient_within_two_percent(pass_of, chunk):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    found, _ = measure(cast(torch.float16, pass_of(make(chunk=chunk, separate=pass_of is second)), scaler))
    assert 0 < relative(found, in_full_precision(pass_of, chunk)) < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_halves_what_the_generator_keeps(dtype):
    """Of many images, beside which the weights' copies in half precision are small."""

    def brightness(network, backward):
        backward(network(torch.randn(2048, 3)).mean())

    _, whole = measure(brightness, generator(depth=12))
    _, half = measure(cast(dtype, brightness), generator(depth=12))
    assert half < 0.6 * whole


def test_half_precision_loses_no_small_gradient_between_the_passes_of_a_cached_one():
    """The mean of 64 x 16 values, weighed by 1e-5, has slopes of 1e-8: zero in float16, and scaling comes later."""

    def faint(images):
        return 1e-5 * images.mean()

    expected, _ = measure(together([faint], None))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    found, _ = measure(cast(torch.float16, together([faint], 16), scaler))
    assert relative(found, expected) < 0.02
