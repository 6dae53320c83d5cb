"""Autoencoders: a variational one that trains over clients, and the latent space of a frozen one for diffusion models.

Latent diffusion: Rombach et al. 2022 (arXiv 2112.10752).
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.extras import need
from fedgen.io.tensor_files import find_folder, hash_tensors
from fedgen.models.checkpoint_file import rebuild_model
from fedgen.models.ema import Frozen, InFull
from fedgen.models.networks.diffusers_networks import CONFIG, AutoencoderKL, network_around, plain_config, read_body
from fedgen.models.networks.network import arguments_of, build, describe, require_shape
from fedgen.models.optional_hooks import FederatedData, data_module_of
from fedgen.models.require import require
from fedgen.models.round_clock import RoundClock, RoundMeans
from fedgen.models.sampling import evaluating, require_batch_size

Reconstruction = Literal["l1", "l2"]


class LatentMoments(InFull):
    """Mean and mean square of latents: moving averages, whose means over clients are all clients' moments."""

    MOMENTUM = 0.01

    mean: Tensor
    square: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("square", torch.ones(()))

    @torch.no_grad()
    def follow(self, latents: Tensor) -> None:
        """Moves towards the moments of latents of any shape."""
        latents = latents.float()
        self.mean.lerp_(latents.mean(), self.MOMENTUM)
        self.square.lerp_(latents.square().mean(), self.MOMENTUM)

    @property
    def shift(self) -> float:
        """The latents' mean."""
        return float(self.mean)

    @property
    def scaling(self) -> float:
        """One over their deviation."""
        variance = float(self.square) - self.shift**2
        require(variance > 0, f"the latents' variance is {variance}: the autoencoder's training has not succeeded")
        return variance**-0.5


class VAE(RoundClock):
    """An autoencoder that is trained to give images back from latents near N(0, 1), and draws images of such latents.

    Kingma & Welling 2014 (arXiv 1312.6114) with a weight of the divergence (Higgins et al. 2017), which is small where
    a diffusion model is to learn the latents (Rombach et al. 2022, arXiv 2112.10752, appendix G: 1e-6).

    One `training_step` is one iteration of automatic optimisation by Adam on the mean error of a pixel plus `kl_weight`
    times the divergence of an image's posterior from N(0, 1) in nats a pixel; posteriors' draws come from torch's
    global generator. At a round's end the means over all clients of `loss`, `reconstruction` (the error of a pixel) and
    `kl` (nats an image) are logged; nothing is logged per iteration.

    `moments` follow the latents, so that a `LatentSpace` of this model gives them mean 0 and deviation 1.

    Args:
        network: with `encode(images)` giving posteriors that have `sample()`, `mode()` and `kl()`, `decode(latents)`,
            `image_shape` and `latent_shape`; usually `fedgen.models.networks.AutoencoderKL`.
        kl_weight: of the divergence; 1 with "l2" is a VAE whose pixels have a variance of 1/2.
        reconstruction: "l1", the mean absolute error of pixels in [-1, 1], or "l2", the mean squared one.
        lr: Adam's learning rate.

    Raises:
        ValueError: for a value out of range, or a network that does not fit the data (when `fit` starts).

    Examples:
        >>> import torch
        >>> from fedgen.models import VAE
        >>> from fedgen.models.networks import AutoencoderKL
        >>> model = VAE(AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1))
        >>> model.reconstruct(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 1, 8, 8])
    """

    def __init__(
        self, network: nn.Module, kl_weight: float = 1e-6, reconstruction: Reconstruction = "l1", lr: float = 1e-3
    ) -> None:
        settings = arguments_of(locals())
        super().__init__()
        require(kl_weight >= 0, f"kl_weight={kl_weight}: the divergence's weight is not negative")
        require(lr > 0, f"lr={lr}: the learning rate is positive")
        kinds = " or ".join(map(repr, get_args(Reconstruction)))
        require(reconstruction in get_args(Reconstruction), f"reconstruction={reconstruction!r}: choose {kinds}")
        self.network = build(network, "network")
        shapes = [getattr(self.network, name, None) for name in ("image_shape", "latent_shape")]
        require(
            all(shapes) and all(hasattr(self.network, name) for name in ("encode", "decode")),
            f"the network {type(self.network).__name__} needs encode, decode, image_shape and latent_shape; take"
            " AutoencoderKL",
        )
        self.image_shape, self.latent_shape = (tuple(shape) for shape in shapes if shape is not None)
        self.kl_weight, self.reconstruction, self.lr = kl_weight, reconstruction, lr
        self.moments = LatentMoments()
        # plain types: Lightning's own capture would store objects
        self.save_hyperparameters(settings | {"network": describe(self.network)})

    # ---- training ----

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.network.parameters(), lr=self.lr)

    def setup(self, stage: str) -> None:
        """Checks the network against the data.

        Raises:
            ValueError: if images have another shape.
        """
        if stage != "fit":
            return
        self.means = RoundMeans("loss", "reconstruction", "kl")  # without those of a round that was cut short
        if (shape := optional(data_module_of(self.trainer), FederatedData, "image_shape")) is not None:
            require_shape(torch.empty(1, *shape), self.image_shape, "the autoencoder")

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The loss of (images [N, C, H, W] in [-1, 1], ...); labels are not used."""
        images = batch[0]
        require_shape(images, self.image_shape, "the autoencoder")
        posterior = self.network.encode(images)
        latents = posterior.sample()
        reconstruction = self._errors(images, self.network.decode(latents)).mean()
        kl = posterior.kl().float().mean()
        loss = reconstruction + self.kl_weight * kl / images[0].numel()
        self.moments.follow(latents.detach())
        self.means.add({"loss": loss, "reconstruction": reconstruction, "kl": kl})
        return loss

    def _errors(self, images: Tensor, decoded: Tensor) -> Tensor:
        """Errors float32 [N, C, H, W] of pixels."""
        off = decoded.float() - images.float()
        return off.abs() if self.reconstruction == "l1" else off.square()

    def on_train_epoch_end(self) -> None:
        """Logs the round's means."""
        self.log_means()

    # ---- after training ----

    @torch.no_grad()
    def reconstruct(self, images: Tensor, batch_size: int = 250) -> Tensor:
        """Images float32 [N, C, H, W] in [-1, 1] of the modes of images' posteriors, on the module's device.

        Args:
            images: [N, C, H, W] in [-1, 1].
            batch_size: images at once, a bound on memory.

        Raises:
            ValueError: for images of another shape, or a batch size below 1.
        """
        require_shape(images, self.image_shape, "the autoencoder")
        require_batch_size(batch_size)
        like = next(self.network.parameters())
        with evaluating(self.network):
            parts = (self.network.encode(part.to(like)).mode() for part in images.split(batch_size))
            return torch.cat([self.network.decode(part).float() for part in parts]).clamp(-1, 1)

    def example_losses(
        self, images: Tensor, labels: Tensor | None = None, seed: int = 0, batch_size: int = 250
    ) -> Tensor:
        """The mean error of a pixel of each image [N, C, H, W] in [-1, 1] that is given back, float32 [N] on the CPU.

        Labels are not used, and nothing is drawn.
        """
        found = [self._errors(part.cpu(), self.reconstruct(part).cpu()) for part in images.split(batch_size)]
        return torch.cat(found).flatten(1).mean(1)

    @torch.no_grad()
    def sample(self, num_images: int, generator: torch.Generator | None = None, batch_size: int = 250) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1] of normal latents, independent, of all latents' moments.

        They are what a diffusion model of the latents has to improve on.

        Args:
            num_images: how many.
            generator: a CPU generator for the latents, in one go; the global one by default.
            batch_size: images made at once, a bound on memory; does not change them.

        Raises:
            ValueError: for fewer than one image, or a batch size below 1.
        """
        require(num_images >= 1, f"num_images={num_images}: draw at least one image")
        require_batch_size(batch_size)
        like = next(self.network.parameters())
        noise = torch.randn(num_images, *self.latent_shape, generator=generator)
        latents = noise / self.moments.scaling + self.moments.shift
        with evaluating(self.network):
            parts = [self.network.decode(part.to(like)).float() for part in latents.split(batch_size)]
        return torch.cat(parts).clamp(-1, 1)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that `diffusers.AutoencoderKL.from_pretrained(folder)` loads, with shift and scaling.

        Raises:
            TypeError: if the network is not an AutoencoderKL.
        """
        if not isinstance(self.network, AutoencoderKL):
            name = type(self.network).__name__
            raise TypeError(f"diffusers can hold an AutoencoderKL, not a {name}; save its state_dict instead")
        kind = need("diffusers", "diffusion", "a folder of diffusers").AutoencoderKL
        config = plain_config(self.network.body.config)  # its notes on defaults would undo the change
        saved = kind(**config | {"scaling_factor": self.moments.scaling, "shift_factor": self.moments.shift})
        saved.load_state_dict(self.network.body.state_dict())
        saved.save_pretrained(folder, safe_serialization=True)


Posterior = Literal["sample", "mode"]


class LatentSpace(Frozen):
    """A frozen autoencoder, always in eval mode and at least in float32, and what its latents are scaled by.

    Latents are z = (e - shift) * scaling of what the autoencoder encodes e, as diffusers has it. No parameter of it
    trains, and federated averaging neither averages nor sends it: clients of a deployment read their own, and are
    refused if its weights, shift or scaling are others. Checkpoints hold all three, so that a model of latents draws
    images without its files, and the same ones where a file has become another since.

    Args:
        autoencoder: one of
            - a folder with diffusers' AutoencoderKL, itself or below `vae`, or a name on the hub, in safetensors;
            - the checkpoint of a `VAE`, a .ckpt;
            - a `VAE`, a network such as `AutoencoderKL`, or any module with `encode(images)` and `decode(latents)`
              that give tensors or what diffusers gives; it is copied.
        scaling: what latents are multiplied by; by default the folder's, one over the VAE's latents' deviation, or 1.
        shift: what is subtracted first; by default likewise, or 0.
        posterior: in training, latents are a "sample" of each image's posterior, from torch's global generator, which
            under FedAvg is the client's in its turn; or the posterior's "mode", without a draw.
        chunk: images decoded at once, a bound on memory.

    Raises:
        FileNotFoundError: if there is no such folder or checkpoint.
        ValueError: for a value out of range, or files that are damaged or of another kind.

    Examples:
        >>> import torch
        >>> from fedgen.models import LatentSpace
        >>> from fedgen.models.networks import AutoencoderKL
        >>> space = LatentSpace(AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1))
        >>> latents = space.encode(torch.zeros(3, 1, 8, 8))
        >>> latents.shape, space.decode(latents).shape
        (torch.Size([3, 2, 4, 4]), torch.Size([3, 1, 8, 8]))
    """

    autoencoder: Any  # which torch would have give modules or tensors
    shift_and_scaling: Tensor

    def __init__(
        self,
        autoencoder: nn.Module | str,
        scaling: float | None = None,
        shift: float | None = None,
        posterior: Posterior = "sample",
        chunk: int = 64,
    ) -> None:
        super().__init__()
        kinds = get_args(Posterior)
        require(posterior in kinds, f"posterior={posterior!r}: choose {' or '.join(map(repr, kinds))}")
        require(chunk >= 1, f"chunk={chunk}: decode at least one image at once")
        found, own = _found(autoencoder)
        factors = [own[1] if shift is None else shift, own[0] if scaling is None else scaling]
        # a buffer, as weights of another file without its scaling would decode to wrong images without a word
        self.register_buffer("shift_and_scaling", torch.tensor(factors, dtype=torch.float32))
        require(self.scaling > 0, f"scaling={factors[1]}: latents are multiplied by a positive number")
        self.posterior, self.chunk = posterior, chunk
        self.autoencoder = found.float().requires_grad_(False)
        self._fingerprint: str | None = None
        self.eval()

    @property
    def shift(self) -> float:
        """The number that is subtracted from what the autoencoder encodes, as float32 has it."""
        return float(self.shift_and_scaling[0])

    @property
    def scaling(self) -> float:
        """The number that it is multiplied by thereafter."""
        return float(self.shift_and_scaling[1])

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments as plain types."""
        given = {"scaling": self.scaling, "shift": self.shift, "posterior": self.posterior, "chunk": self.chunk}
        return {"autoencoder": describe(self.autoencoder), **given}

    def encode(self, images: Tensor, draw: bool | None = None) -> Tensor:
        """Latents float32 [N, c, h, w] of images [N, C, H, W] in [-1, 1], without gradient.

        Args:
            images: on the autoencoder's device.
            draw: whether they are drawn from posteriors; as `posterior` says by default.
        """
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            drawn = self.posterior == "sample" if draw is None else draw
            encoded = _encoded(self.autoencoder.encode(images.float()), drawn)
            shift, scaling = self.shift_and_scaling  # not their numbers, for which a device would be waited
            return (encoded - shift) * scaling

    def decode(self, latents: Tensor) -> Tensor:
        """Images float32 [N, C, H, W] in [-1, 1] of latents [N, c, h, w], without gradient."""
        with torch.no_grad(), torch.autocast(latents.device.type, enabled=False):
            raw = latents.float() / self.scaling + self.shift
            return torch.cat([_decoded(self.autoencoder.decode(part)) for part in raw.split(self.chunk)]).clamp(-1, 1)

    def image_shape_of(self, latent_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of images whose latents have a shape; one image of zeros is decoded.

        Raises:
            ValueError: if no image's latents have it.
        """
        like = next(self.autoencoder.parameters(), torch.empty(0))
        try:
            shape = tuple(self.decode(torch.zeros(1, *latent_shape, device=like.device)).shape[1:])
            found = tuple(self.encode(torch.zeros(1, *shape, device=like.device), draw=False).shape[1:])
        except RuntimeError as error:
            raise ValueError(_unfit(latent_shape, f"it does not decode them ({str(error).splitlines()[0]})")) from error
        require(found == tuple(latent_shape), _unfit(latent_shape, f"those of images {list(shape)} are {list(found)}"))
        return shape

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of the weights, shift and scaling."""
        if self._fingerprint is None:
            text = f"{type(self.autoencoder).__qualname__} {self.scaling} {self.shift}"
            self._fingerprint = hash_tensors(self.autoencoder.state_dict().items(), text)
        return self._fingerprint

    def _load_from_state_dict(self, *args: Any) -> None:
        self._fingerprint = None
        super()._load_from_state_dict(*args)


def made_space(given: Any) -> LatentSpace:
    """The latent space itself, the one that a checkpoint describes, or that of an autoencoder or its place."""
    found = build(given, "autoencoder", nn.Module, "autoencoder")
    return found if isinstance(found, LatentSpace) else LatentSpace(found)


def read_autoencoder(name: str | Path) -> AutoencoderKL:
    """The autoencoder of a folder of diffusers or a name on the hub, from safetensors alone; no code of it is run."""
    folder = find_folder(name, "autoencoder")
    folder = folder / "vae" if (folder / "vae").is_dir() else folder
    body = read_body(folder, "AutoencoderKL", f"{name} is no diffusers folder of an autoencoder", "fedgen reads")
    found: AutoencoderKL = network_around(AutoencoderKL, body, folder / CONFIG)
    return found


def _found(given: Any) -> tuple[nn.Module, tuple[float, float]]:
    """Return a frozen autoencoder of one's own, and its scaling and shift."""
    if isinstance(given, Mapping):
        given = build(given, "autoencoder", nn.Module, "autoencoder")
    elif isinstance(given, str | Path):
        given = rebuild_model(VAE, given) if str(given).endswith(".ckpt") else read_autoencoder(given)
    else:
        require(
            isinstance(given, VAE) or all(callable(getattr(given, name, None)) for name in ("encode", "decode")),
            f"autoencoder={type(given).__name__}: give a folder of diffusers' AutoencoderKL, a VAE or its checkpoint,"
            " or a module with encode and decode",
        )
        if type(given).__module__.startswith("diffusers.") and type(given).__name__ == "AutoencoderKL":
            given = network_around(AutoencoderKL, given, "autoencoder")
        given = copy.deepcopy(given)
    if isinstance(given, VAE):
        return given.network, (given.moments.scaling, given.moments.shift)
    return given, (given.scaling, given.shift) if isinstance(given, AutoencoderKL) else (1.0, 0.0)


def _encoded(found: Any, draw: bool) -> Tensor:
    """Latents of a tensor, of an output with `latents`, or drawn from or the mode of a posterior, its `latent_dist`."""
    if isinstance(found, Tensor):
        return found
    if isinstance(latents := getattr(found, "latents", None), Tensor):  # outputs of diffusers without a posterior
        return latents
    posterior = getattr(found, "latent_dist", found)  # diffusers' outputs have it; the kit's networks give it bare
    drawn: Tensor = posterior.sample() if draw else posterior.mode()
    return drawn


def _decoded(found: Any) -> Tensor:
    """Images that an autoencoder decodes: a tensor, or its output's `sample`."""
    images: Tensor = found if isinstance(found, Tensor) else found.sample
    return images.float()


def _unfit(latent_shape: tuple[int, ...], why: str) -> str:
    return (
        f"the network was built for latents {list(latent_shape)} (channels, height, width), which are none of this"
        f" autoencoder's: {why}; set its image_size and channels to those of the latents"
    )
