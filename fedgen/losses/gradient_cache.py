"""Gradients of a loss on more images than fit in memory: their features at once, their graphs a chunk at a time.

Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (arXiv 2101.06983): features
are computed without a graph, the loss is differentiated in the features, and each chunk is then computed again with a
graph that receives its share of that gradient. Exact, for one more forward pass.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


def gradient_cache(
    objective: Callable[[Tensor], Tensor], encode: Callable[[Tensor], Tensor], inputs: Tensor, chunk: int
) -> Iterator[Tensor]:
    """Scalars, one a chunk, whose backward passes together give the gradient of objective(encode(inputs)).

    Backpropagate each before taking the next. Random draws inside `encode` are the same in both passes.

    Args:
        objective: features [m, D] to a scalar; called once, with gradients on.
        encode: inputs [c, ...] to features [c, D], differentiable in whatever is trained.
        inputs: [m, ...], e.g. latents.
        chunk: inputs encoded at once.

    Raises:
        ValueError: for a chunk below 1.

    Examples:
        >>> import torch
        >>> from fedgen.losses import gradient_cache
        >>> weight, inputs = torch.tensor(2.0, requires_grad=True), torch.tensor([[1.0], [5.0]])
        >>> for part in gradient_cache(torch.mean, lambda batch: batch * weight, inputs, chunk=1):
        ...     part.backward()
        >>> weight.grad  # of the mean over both: (1 + 5) / 2
        tensor(3.)
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: at least one image at a time")
    parts = inputs.split(chunk)
    states, features = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_random_states(inputs.device))
            features.append(encode(part))
    # a mean's gradient in a single image underflows in half precision, and no scaler reaches it there
    leaves = torch.cat(features).to(torch.promote_types(features[0].dtype, torch.float32)).requires_grad_()
    with torch.enable_grad():
        value = objective(leaves)
    (gradients,) = torch.autograd.grad(value, leaves)
    after = _random_states(inputs.device)
    for part, gradient, state in zip(parts, gradients.split(chunk), states):
        _set_random_states(inputs.device, state)
        yield (encode(part) * gradient).sum()
    _set_random_states(inputs.device, after)


def cache_generator(
    objective: Callable[[Tensor], Tensor],
    encode: Callable[[Tensor], Tensor],
    generator: nn.Module,
    latents: Tensor,
    chunk: int,
) -> Iterator[Tensor]:
    """`gradient_cache` of what is seen of a generator's images; its running statistics move in one pass of the two.

    Args:
        objective: features [m, D] to a scalar.
        encode: images [c, ...] to features [c, D].
        generator: latents to images.
        latents: [m, ...].
        chunk: images made and encoded at once.
    """
    before = [buffer.clone() for buffer in generator.buffers()]

    def evaluate(features: Tensor) -> Tensor:
        for buffer, value in zip(generator.buffers(), before):
            buffer.copy_(value)
        return objective(features)

    yield from gradient_cache(evaluate, lambda part: encode(generator(part)), latents, chunk)


def _random_states(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_states(device: torch.device, states: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1], device)
