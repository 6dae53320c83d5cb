"""Flow matching (Lipman et al. 2023, arXiv 2210.02747) as a Lightning module."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any, Literal, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedgen.models.diffusion.denoiser import Ask, Denoiser, full_precision, made, require_times
from fedgen.models.diffusion.diffusion_process import Predict, predictor
from fedgen.models.diffusion.flow_ode import (
    TIMESTEPS,
    FlowSampler,
    LogDensity,
    draw_probes,
    flow_field,
    follow,
    in_parts,
    log_density,
)
from fedgen.models.diffusion.lora import LoRA
from fedgen.models.optional_hooks import Drawn
from fedgen.models.require import require
from fedgen.models.sampling import evaluating
from fedgen.seeds import generator

Coupling = Literal["independent", "optimal-transport"]
Times = Literal["uniform", "logit-normal"]


@dataclass(frozen=True)
class FlowPath:
    """Straight paths x_t = t x_1 + (1 - (1 - sigma_min) t) x_0 from noise x_0 to an image x_1 (Eq. 20 to 23)."""

    sigma_min: float = 0.0
    coupling: Coupling = "independent"
    times: Times = "uniform"

    def __post_init__(self) -> None:
        require(0 <= self.sigma_min < 1, f"sigma_min={self.sigma_min}: the noise left at t = 1 lies in [0, 1)")
        for name, kinds in (("coupling", Coupling), ("times", Times)):
            given, known = getattr(self, name), get_args(kinds)
            require(given in known, f"{name}={given!r}: choose {' or '.join(map(repr, known))}")

    def draw_times(self, count: int, device: torch.device) -> Tensor:
        """Times float32 [count] from torch's global generator."""
        # "bf16-true" changes the default type, and would leave 256 times
        draw = torch.rand if self.times == "uniform" else torch.randn
        drawn = draw(count, device=device, dtype=torch.float32)
        return drawn if self.times == "uniform" else drawn.sigmoid()

    def at(self, times: Tensor, images: Tensor, noise: Tensor) -> Tensor:
        """Noisy images [N, ...] at times [N] (Eq. 22)."""
        t = times.view(-1, *[1] * (images.ndim - 1))
        return t * images + (1 - (1 - self.sigma_min) * t) * noise

    def velocity(self, images: Tensor, noise: Tensor) -> Tensor:
        """The time derivatives [N, ...] of `at`, which a network learns (Eq. 23); they are the same at all times."""
        return images - (1 - self.sigma_min) * noise


def couple(images: Tensor, noise: Tensor, labels: Tensor | None = None) -> Tensor:
    """The noise [N, ...] of each image so that squared distances sum to the least (Tong et al. 2024, section 3.2)."""
    # within each label: dealt over labels, the noise of an image would not be N(0, 1) given its label
    places = torch.arange(len(images))
    one_label = torch.zeros_like(places) if labels is None else labels.cpu()
    alike = images.flatten(1).double().cpu() @ noise.flatten(1).double().cpu().T  # least distance is most likeness
    for label in one_label.unique():
        own = (one_label == label).nonzero()[:, 0]
        _, chosen = linear_sum_assignment(alike[own][:, own].numpy(), maximize=True)
        places[own] = own[torch.from_numpy(chosen)]
    return noise[places.to(noise.device)]


def dequantised(images: Tensor, bits: int, noise: Tensor) -> Tensor:
    """Points 2 (l + u) / 2^bits - 1 [N, ...] in [-1, 1) of images in [-1, 1], of grey level l and noise u in [0, 1)."""
    top = 2**bits - 1
    levels = ((images + 1) * (top / 2)).round().clamp(0, top)
    return 2 * (levels + noise) / 2**bits - 1


MOST_EXACT = 32  # dimensions whose divergence is exact unless probes are asked for
PROBES = 8


class FlowMatching(Denoiser):
    """A network that learns the velocity of straight paths from noise to images, and draws images by following it.

    One `training_step` is one iteration of automatic optimisation by Adam on the mean squared error of Eq. 23, at times
    and noise drawn from torch's global generator. At a round's end its mean over all clients is logged as `loss`.
    Everything else is `DDPM`'s. With a network over points, `image_shape` (D,), it is a density for the score "ll":
    inputs are then [N, D] of any range, which are not cut to [-1, 1] where they are drawn.

    Args:
        network: velocities [N, C, H, W] of (noisy images, 1000 t float32 [N]), and of labels int64 [N] if it has
            `num_classes`; usually `fedgen.models.networks.UNet`. Another module needs an attribute `image_shape`.
        coupling: of a batch's noise and images: "independent", or "optimal-transport" (Tong et al. 2024, arXiv
            2302.00482) within each client's batch, and within each label of it if there are labels.
        sigma_min: deviation of the noise that is left at t = 1.
        times: "uniform" or "logit-normal"; see `FlowPath`.
        dequantise: bits of a grey level, inside of which training images get uniform noise, for likelihoods of images.
        lr: Adam's learning rate.
        warmup: iterations over which it rises linearly from 0, counted by each client for itself.
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
        ema_warmup: whether that average forgets faster at first, for runs that are short against it (see `EMA`).
        flips: whether training images are mirrored at random; not for digits or letters.
        label_dropout: how often a training label is replaced by "any class", for guidance; used if there are classes.
        sampler: how images are drawn; 25 steps of Heun's method by default.
        lora: adapters on the network; they alone are then trained, sent and averaged.
        compile: whether training steps run through torch.compile.
        gradient_checkpointing: whether training computes activations twice to keep fewer of them.
        autoencoder: a frozen one, or what `LatentSpace` makes one of, in whose latents the model trains and draws.

    Raises:
        ValueError: for a value out of range, or a network that does not fit the data (when `fit` starts).

    Examples:
        >>> import torch
        >>> from fedgen import FlowMatching
        >>> from fedgen.models.networks import UNet
        >>> model = FlowMatching(UNet(image_size=8, channels=1, widths=[4], layers=1, attention=[]))
        >>> model.sample(2, torch.Generator().manual_seed(0), steps=2).shape
        torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self,
        network: nn.Module,
        coupling: Coupling = "independent",
        sigma_min: float = 0.0,
        times: Times = "uniform",
        dequantise: int | None = None,
        lr: float = 2e-4,
        warmup: int = 0,
        ema_decay: float | None = 0.9999,
        ema_warmup: bool = True,
        flips: bool = False,
        label_dropout: float = 0.1,
        sampler: FlowSampler | None = None,
        lora: LoRA | None = None,
        compile: bool = False,
        gradient_checkpointing: bool = False,
        autoencoder: nn.Module | str | None = None,
    ) -> None:
        shared = lr, warmup, ema_decay, ema_warmup, flips, label_dropout, lora, compile, gradient_checkpointing
        super().__init__(network, *shared, autoencoder)
        _require_bits(dequantise)
        require(
            dequantise is None or self.latent_space is None,
            f"dequantise={dequantise} spreads grey levels, and latents have none; leave one of the two out",
        )
        self.path, self.dequantise = FlowPath(sigma_min, coupling, times), dequantise
        self._start_with(made(sampler, FlowSampler, "solver"), asdict(self.path) | {"dequantise": dequantise})

    # ---- training ----

    def _drawn(self, images: Tensor, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        if self.dequantise is not None:
            images = dequantised(images, self.dequantise, torch.rand_like(images))
        times = self.path.draw_times(len(images), images.device)
        noise = torch.randn_like(images)
        if self.path.coupling == "optimal-transport":
            labels = None if self.label_frequencies is None else self.label_frequencies.labels_of(batch)
            noise = couple(images, noise, labels)
        return {"images": images, "times": times, "noise": noise}

    def _loss(self, batch: Sequence[Tensor], drawn: Drawn) -> Tensor:
        """The loss of Lipman et al. 2023, Eq. 23."""
        images, noise, times = drawn["images"], drawn["noise"], drawn["times"]
        predicted = self._predicted(self.path.at(times, images, noise), TIMESTEPS * times, batch, drawn)
        return nn.functional.mse_loss(predicted, full_precision(self.path.velocity(images, noise)))

    # ---- drawing ----

    def _check_sampler(self, sampler: FlowSampler) -> None:
        sampler.require_tolerances(torch.float32)  # of the images, whatever the weights are
        super()._check_sampler(sampler)

    def _told(self, sampler: FlowSampler) -> dict[str, Any]:
        if sampler.solver == "dopri5":
            return {"solver": sampler.solver, "rtol": sampler.rtol, "atol": sampler.atol}
        found = {"solver": sampler.solver, "steps": sampler.num_steps, "shift": sampler.shift}
        return found | {"denoise": sampler.denoise} if sampler.solver == "heun" else found

    def _draw(self, predict: Predict, latents: Tensor, sampler: FlowSampler, batch_size: int, generator: Any) -> Tensor:
        return self._bounded(follow(predict, latents, sampler, batch_size))

    # ---- losses and densities of examples ----

    def example_losses(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        seed: int = 0,
        times: int | Sequence[float] = 10,
        batch_size: int = 250,
        average: bool = True,
        start: int = 0,
    ) -> Tensor:
        """The mean squared error of the velocity along paths to each image, float32 [N] on the CPU.

        Example i's times and noise depend on (seed, i) alone, so two sets are compared at common random numbers.

        Args:
            images: [N, C, H, W] in [-1, 1].
            labels: int64 [N] for a conditional model; the loss for "any class" by default.
            seed: of the draws.
            times: how many an example, each uniform in one of as many equal parts of [0, 1]; or which.
            batch_size: images that the network gets at once, a bound on memory.
            average: whether to measure the moving average, if there is one.
            start: the place of the first image, of a set that is asked about in parts.

        Raises:
            ValueError: for images or labels that do not fit, or times outside [0, 1].
        """
        require_times("times", times, lambda time: 0 <= time <= 1, "in [0, 1]")

        def errors(ask: Ask, part: Tensor, at: Tensor, noise: Tensor) -> Tensor:
            return ask(self.path.at(at, part, noise), TIMESTEPS * at) - self.path.velocity(part, noise)

        def spread(count: int, draws: torch.Generator) -> Tensor:
            return (torch.arange(count) + torch.rand(count, generator=draws)) / count

        return self._losses_of_examples(images, labels, seed, times, spread, errors, batch_size, average, start)

    def likelihood(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        probes: int | None = None,
        seed: int = 0,
        batch_size: int = 250,
        sampler: FlowSampler | None = None,
        start: int = 0,
    ) -> LogDensity:
        """Natural log-densities of images by the flow's ODE, and their standard errors over probes, float64 [N] each.

        The error is that of the estimated divergence. The solver's own comes besides; its tolerances bound the error of
        each step, not their sum. To judge it, ask a copy of the module in float64, `deepcopy(model).double()`, at
        tolerances ten times smaller. All is computed in the dtype of the network's weights, in float32 at least.

        Args:
            images: [N, C, H, W] or points [N, D], also images as rows [N, C H W].
            labels: int64 [N] for a conditional model; the density of "any class" by default.
            probes: random directions by which the divergence is estimated, from 2; 0 for an exact one, by a derivative
                for each dimension. By default exact up to 32 dimensions, and 8 probes beyond.
            seed: of the probes; example i's depend on (seed, i) alone.
            batch_size: images that the network gets at once, a bound on memory.
            sampler: the solver, "dopri5" with tolerances of 1e-5 by default.
            start: the place of the first image, of a set that is asked about in parts.

        Raises:
            ValueError: for images or labels that do not fit, one probe, which has no error, tolerances that the dtype's
                rounding exceeds, or a model of latents, whose density is not the images'.
        """
        require(
            self.latent_space is None,
            "this model has densities of an autoencoder's latents, not of images; ask one that was trained on images",
        )
        points = images.reshape(len(images), *self.image_shape) if images.ndim == 2 else images
        network = self._asked(points, labels)
        dim = int(torch.Size(self.image_shape).numel())
        number = probes if probes is not None else 0 if dim <= MOST_EXACT else PROBES
        require(number == 0 or number >= 2, f"probes={number}: give 0 for the exact divergence, or at least 2")
        solver = sampler or FlowSampler("dopri5")
        dtype = full_precision(next(network.parameters())).dtype
        solver.require_tolerances(dtype)
        predict = predictor(network, labels, 1.0, None)

        def densities(part: slice) -> Tensor:
            own = points[part].flatten(1).to(self.device, dtype)
            drawn = draw_probes(len(own), number, dim, seed, start + part.start) if number else None
            field = flow_field(predict, self.image_shape, part.start)
            return torch.stack(log_density(field, own, solver, None if drawn is None else drawn.to(own)), dim=1)

        with evaluating(network), torch.no_grad():
            found = in_parts(points, batch_size, densities, "likelihood")
        return LogDensity(*found.unbind(1))

    def log_prob(self, points: Tensor, labels: Tensor | None = None) -> Tensor:
        """Natural log-densities float64 [N], as the score "ll" asks for them; see `likelihood`."""
        return self.likelihood(points, labels).value

    def bits_per_dim(self, images: Tensor, labels: Tensor | None = None, bits: int = 8, **options: Any) -> Tensor:
        """Bits per dimension float64 [N] of images [N, C, H, W] in [-1, 1], each with one draw of dequantisation noise.

        In bits of the images' grey levels; an upper bound on average. A model that was not trained with `dequantise`
        has seen levels alone, and may put little density between them.

        Args:
            images: of 2^bits levels.
            labels: see `likelihood`.
            bits: of a grey level.
            options: of `likelihood`.

        Raises:
            ValueError: as `likelihood`, or for other than 1 to 8 bits.
        """
        _require_bits(bits)
        seed, start = options.get("seed", 0), options.get("start", 0)
        draws = [generator(seed, "dequantisation", start + place) for place in range(len(images))]
        noise = torch.stack([torch.rand(images.shape[1:], generator=one) for one in draws]).to(images.device)
        found = self.likelihood(dequantised(full_precision(images), bits, noise), labels, **options).value
        return -found / (images[0].numel() * log(2)) + bits - 1


def _require_bits(bits: int | None) -> None:
    require(bits is None or 1 <= bits <= 8, f"bits={bits}: a grey level has 1 to 8")
