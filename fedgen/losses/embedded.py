"""A score of generated images as a loss of the generator that made them, under one embedding or several.

More images than fit in memory have their gradient a chunk at a time, after Gao et al. 2021, "Scaling deep contrastive
learning batch size under memory limited setup" (arXiv 2101.06983): features are computed without a graph, the loss is
differentiated in the features, and each chunk is then computed again with a graph that receives its share of that
gradient. Exact, for one more forward pass.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedgen.data.lazy_examples import LazyInputs, join_inputs
from fedgen.embeddings import Embedding, FeatureCache, embed, load_embedding
from fedgen.images import SeenRange
from fedgen.losses.feature_loss import FeatureLoss, KeepsPrecision
from fedgen.scores.aggregate import Weights


def gradient_cache(
    objective: Callable[[Tensor], Tensor], encode: Callable[[Tensor], Tensor], inputs: Tensor, chunk: int
) -> Iterator[Tensor]:
    """Scalars, one a chunk, whose backward passes together give the gradient of objective(encode(inputs)).

    Backpropagate each before taking the next. Random draws inside `encode` are the same in both passes.

    Args:
        objective: features [m, D] to a scalar; called once, with gradients on.
        encode: inputs [c, ...] to features [c, D], differentiable in whatever is trained.
        inputs: [m, ...], e.g. latents.
        chunk: inputs encoded at once, at least 1.

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
    # a mean's gradient in a single image underflows in half precision, where no scaler applies
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
    """`gradient_cache` of a generator's images' features; its running statistics move in one of the two passes."""
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


class Weight(KeepsPrecision, ABC):
    """The factor of an extra loss; its state, if any, stays with the client.

    It changes in training mode with gradients enabled; in evaluation the factor is that which training would have had.

    Examples:
        >>> import torch
        >>> from fedgen.losses import Weight
        >>> class Half(Weight):
        ...     def forward(self, value, adversarial):
        ...         return torch.full_like(value, 0.5)
        >>> Half()(torch.tensor(4.0), None)
        tensor(0.5000)
    """

    exchanged = "personal"

    @abstractmethod
    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        """The factor, a scalar without gradient, of the extra loss and the adversarial one (None outside a game)."""


class FixedWeight(Weight):
    """The same factor at every step.

    Args:
        factor: at least 0.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FixedWeight
        >>> FixedWeight(0.5)(torch.tensor(4.0), adversarial=None)
        tensor(0.5000)
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        if not factor >= 0:
            raise ValueError(f"factor={factor}: the weight of a loss is at least 0")
        self.factor = factor

    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        return torch.full_like(value.detach(), self.factor)


class AdaptiveWeight(Weight):
    """|L_adv| / |L_extra|, so that the extra loss always weighs as much as the adversarial one.

    Eq. 10 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) takes both at the present step
    (`decay=0`). A Wasserstein game's loss has no fixed sign, and at the step where it crosses zero that ratio switches
    the extra loss off; an unbiased MMD^2 may cross zero too, and there the ratio explodes. So magnitudes are running
    means over the client's steps, and the adversarial one has a floor. Where the extra loss's magnitude is zero, so is
    the factor.

    Args:
        strength: a factor on the ratio, at least 0; the paper halves it for SAGAN.
        decay: of both running means, per step, in [0, 1); 0 uses the present step alone.
        floor: the least magnitude of the adversarial loss that counts, at least 0.

    Examples:
        >>> import torch
        >>> from fedgen.losses import AdaptiveWeight
        >>> weight = AdaptiveWeight(decay=0.0)
        >>> weight(torch.tensor(4.0), adversarial=torch.tensor(-2.0))  # |-2| / |4|
        tensor(0.5000)
    """

    def __init__(self, strength: float = 1.0, decay: float = 0.9, floor: float = 0.1) -> None:
        super().__init__()
        for name, value in (("strength", strength), ("floor", floor)):
            if not value >= 0:
                raise ValueError(f"{name}={value}: must be at least 0")
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: must lie in [0, 1)")
        self.strength, self.decay, self.floor = strength, decay, floor
        self.magnitudes: Tensor  # running means of |adversarial| and |value|, uncorrected
        self.mass: Tensor  # sum of the means' weights: 1 - decay^steps
        self.register_buffer("magnitudes", torch.zeros(2))
        self.register_buffer("mass", torch.zeros(()))

    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        if adversarial is None:
            raise ValueError("an AdaptiveWeight needs the adversarial loss beside the images; use a FixedWeight")
        sizes = torch.stack([adversarial.detach().to(self.mass), value.detach().to(self.mass)]).abs()
        magnitudes, mass = running_mean(self, (self.magnitudes, self.mass), sizes, self.decay)
        game, extra = (magnitudes / mass).unbind()
        ratio = self.strength * game.clamp(min=self.floor) / extra
        return torch.where(extra > 0, ratio.clamp(max=torch.finfo(ratio.dtype).max), 0).to(value.detach())


def running_mean(module: nn.Module, state: tuple[Tensor, Tensor], sizes: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """The uncorrected running mean with these sizes in it, and its mass 1 - decay^steps."""
    mean, mass = state if module.training and torch.is_grad_enabled() else (part.clone() for part in state)
    return mean.mul_(decay).add_(sizes, alpha=1 - decay), mass.mul_(decay).add_(1 - decay)


class EmbeddedLoss(nn.Module):
    """A weighted score of generated images in [-1, 1] against clients' real images, to be minimised.

    A `GAN` takes it among its `generator_losses` and sets the clients' training images when fitting starts; outside one
    call `set_references` once and then the loss itself on images.

    With several embeddings each score is divided by a running mean of its own magnitude before averaging, so that none
    outweighs the others by its scale. Scores in an embedding that a loss used prove little: they are marked as
    `optimised_on`.

    Args:
        loss: the score, e.g. `FastFIDLoss()`; each embedding gets a copy.
        embeddings: names, embeddings, or options of `load_embedding` with the key "name", each once.
        weight: factor of this loss beside the adversarial one: a number, or e.g. `AdaptiveWeight()`.
        client_weights: the clients' weights, shared by avg and all.
        separate: whether a GAN makes separate images for this loss, in a second backward pass, instead of using those
            that the critic sees.
        num_images: images of that second pass; as many as the critic sees by default.
        chunk: images made and embedded at once. In a second pass the gradient is cached (see `gradient_cache`) so that
            memory holds one chunk, the generator included; in a joint pass it bounds the embedding's memory, with
            `checkpointing`.
        checkpointing: whether to recompute the embedding's activations in the backward pass instead of keeping them.
        cache: folder that keeps the real images' features.

    Examples:
        >>> import torch
        >>> from fedgen.losses import EmbeddedLoss, MMD2Loss
        >>> loss = EmbeddedLoss(MMD2Loss(estimator="v"), embeddings=["pixels"])
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> _ = loss.set_references([images])
        >>> float(loss(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1)))
        0.0
    """

    exchanged = "personal"

    def __init__(
        self,
        loss: FeatureLoss,
        embeddings: Sequence[str | Mapping[str, Any] | Embedding] = ("inception-v3-compat",),
        weight: float | Weight = 1.0,
        client_weights: Weights = "examples",
        separate: bool = False,
        num_images: int | None = None,
        chunk: int | None = None,
        checkpointing: bool = False,
        cache: str | None = None,
    ) -> None:
        super().__init__()
        for name, number in (("num_images", num_images), ("chunk", chunk)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number}: must be at least 1")
        if num_images is not None and not separate:
            raise ValueError(f"num_images={num_images} is for a separate pass; give separate=True too")
        self.embeddings: Any = nn.ModuleList(load_embedding(embedding) for embedding in embeddings)
        names = [str(embedding.name) for embedding in self.embeddings]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a loss needs embeddings, each once, got {names}")
        self.losses: Any = nn.ModuleList(copy.deepcopy(loss) for _ in names)  # of FeatureLoss
        self.weight = weight if isinstance(weight, Weight) else FixedWeight(float(weight))
        # each embedding's share of the mean: one over the magnitude of its score
        self.balance = nn.ModuleList(_RunningMagnitude() for _ in names) if len(names) > 1 else None
        self.client_weights, self.separate, self.num_images = client_weights, separate, num_images
        self.chunk, self.checkpointing, self.cache = chunk, checkpointing, cache
        self.score, self.names = loss.score, names
        self._totals: dict[str, Tensor] = {}
        self._steps = 0
        self._seen: SeenRange | None = SeenRange(f"images of the {self.score} loss")

    def replace_losses(self, make: Callable[[FeatureLoss], FeatureLoss]) -> None:
        """Replaces each embedding's loss by what `make` returns for it; references are to be set again."""
        self.losses = nn.ModuleList(make(loss) for loss in self.losses)
        self.score = self.losses[0].score

    @property
    def has_references(self) -> bool:
        return all(loss.dim is not None for loss in self.losses)

    def set_references(self, clients: Sequence[Tensor | LazyInputs], device: torch.device | str | None = None) -> Self:
        """The loss itself, against the clients' images, as `embed` takes them; the embeddings move to the device."""
        counts = [len(part) for part in clients]
        for loss, features in self._embedded(join_inputs(clients), device, "the loss's references"):
            loss.set_references(list(features.split(counts)), self.client_weights)
        return self

    def set_public(self, images: Tensor, device: torch.device | str | None = None) -> Self:
        """The loss itself, after public images, on which `set_references` may then approximate references."""
        for loss, features in self._embedded(images, device, "public images"):
            loss.set_public(features)
        return self

    def _embedded(
        self, images: Tensor | LazyInputs, device: torch.device | str | None, what: str
    ) -> Iterator[tuple[FeatureLoss, Tensor]]:
        """Each loss with the images' features under its embedding."""
        cache = FeatureCache(self.cache) if self.cache else None
        for loss, embedding in zip(self.losses, self.embeddings):
            description = f"embedding {what} with {embedding.name}"
            yield loss, embed(embedding, images, device=device, description=description, cache=cache)

    def start_turn(self, client: int | None) -> None:
        """Begins a client's turn, for losses with aggregate "own"; None: the score is again that to all clients."""
        for loss in self.losses:
            loss.start_turn(client)

    def forward(self, images: Tensor, adversarial: Tensor | None = None) -> Tensor:
        """The weighted loss of images [m, C, H, W] in [-1, 1]; weights that adapt need this step's adversarial loss."""
        parts = images.split(self.chunk or len(images))
        return self.objective(torch.cat([self.encode(part) for part in parts]), adversarial)

    def backward_parts(self, generator: nn.Module, latents: Tensor, adversarial: Tensor | None) -> Iterator[Tensor]:
        """Scalars whose backward passes, each before the next is taken, give the gradient of `forward`.

        A generator whose images depend on each other (BatchNorm) sees chunks of the latents [m, ...] as batches.
        """
        if self.chunk is None:
            yield self(generator(latents), adversarial)
            return
        yield from cache_generator(
            lambda features: self.objective(features, adversarial), self.encode, generator, latents, self.chunk
        )

    def encode(self, images: Tensor) -> Tensor:
        """Features of all embeddings side by side [m, sum of D]; warns if the first images look like [0, 1]."""
        if self._seen is not None and images.ndim == 4:
            self._seen.see(images)
            self._seen.warn()
            self._seen = None  # once: it waits for the device
        keep = not (self.checkpointing and torch.is_grad_enabled() and images.requires_grad)
        features = [
            embedding(images) if keep else checkpoint(embedding, images, use_reentrant=False, preserve_rng_state=False)
            for embedding in self.embeddings
        ]
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)

    def objective(self, features: Tensor, adversarial: Tensor | None = None) -> Tensor:
        """The weighted loss of features [m, sum of D] as `encode` gives them."""
        dims = [loss.dim for loss in self.losses]
        if None in dims:
            raise ValueError("the loss has no references yet; call set_references([client's images, ...])")
        values = [loss(part) for loss, part in zip(self.losses, features.split(dims, dim=1))]
        if self.balance is None:
            value = values[0]
        else:
            value = torch.stack([v / magnitude(v).to(v) for v, magnitude in zip(values, self.balance)]).mean()
        factor = self.weight(value, adversarial)
        if self.training and torch.is_grad_enabled():
            self._count(values, factor)
        return factor * value

    def _count(self, values: Sequence[Tensor], factor: Tensor) -> None:
        for name, value in zip([*self.names, "weight"], [*values, factor]):
            key = f"{self.score}_loss/{name}"
            self._totals[key] = value.detach() + self._totals.get(key, 0)
        self._steps += 1

    def take_totals(self) -> tuple[dict[str, Tensor], int]:
        """Sums of each embedding's score and of the weight since the last call, and over how many steps of training."""
        totals, steps = self._totals, self._steps
        self._totals, self._steps = {}, 0
        return totals, steps


class _RunningMagnitude(KeepsPrecision):
    """The running mean of |value| over steps of training, without gradient."""

    mean: Tensor
    mass: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mass", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        size = value.detach().abs().to(self.mean)
        mean, mass = running_mean(self, (self.mean, self.mass), size, decay=0.9)
        return (mean / mass).clamp(min=torch.finfo(torch.float32).tiny)


class ImageLosses:
    """The sum of losses of the same images, from images at once or a chunk at a time.

    Args:
        losses: scores of images, or callables that turn images [m, C, H, W] in [-1, 1] into a scalar.

    Examples:
        >>> import torch
        >>> from fedgen.losses import ImageLosses
        >>> total = ImageLosses([lambda images: images.mean(), lambda images: images.square().mean()])
        >>> latents = torch.full((2, 1, 1, 1), 3.0)
        >>> [float(part) for part in total.backward_parts(torch.nn.Identity(), latents, None, note=print)]
        tensor(12.)
        [12.0]
    """

    def __init__(self, losses: Sequence[Callable[..., Any]]) -> None:
        self.losses = list(losses)
        self._widths: list[int] = []
        self._shape: tuple[int, ...] = ()

    def backward_parts(
        self, generator: nn.Module, latents: Tensor, chunk: int | None, note: Callable[[Tensor], None]
    ) -> Iterator[Tensor]:
        """Scalars as of `EmbeddedLoss.backward_parts` for the sum, which `note` receives once, without gradient."""

        def summed(values: Iterable[Tensor]) -> Tensor:
            total = torch.stack([value.float() for value in values]).sum()
            note(total.detach())
            return total

        if chunk is None or chunk >= len(latents):
            images = generator(latents)
            yield summed(loss(images) for loss in self.losses)
            return

        def objective(seen: Tensor) -> Tensor:
            parts = zip(self.losses, seen.split(self._widths, dim=1))
            return summed(
                loss.objective(part) if isinstance(loss, EmbeddedLoss) else loss(part.unflatten(1, self._shape))
                for loss, part in parts
            )

        yield from cache_generator(objective, self._encode, generator, latents, chunk)

    def _encode(self, images: Tensor) -> Tensor:
        """The inputs of all losses side by side [m, sum of D]: features, or the images themselves."""
        self._shape = images.shape[1:]
        seen = [loss.encode(images) if isinstance(loss, EmbeddedLoss) else images.flatten(1) for loss in self.losses]
        self._widths = [part.shape[1] for part in seen]
        return torch.cat(seen, dim=1)
