"""The latent space of a frozen autoencoder, in which a diffusion model trains and draws (Rombach et al. 2022)."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from fedgen.io.hashing import hash_tensors
from fedgen.io.hub_folders import find_folder
from fedgen.models.autoencoders.vae import VAE
from fedgen.models.checkpoint_file import rebuild_model
from fedgen.models.ema import in_full
from fedgen.models.networks.autoencoder_kl import AutoencoderKL
from fedgen.models.networks.diffusers_folder import CONFIG, read_body
from fedgen.models.networks.network import build, describe
from fedgen.models.require import require

Posterior = Literal["sample", "mode"]


class LatentSpace(nn.Module):
    """A frozen autoencoder, always in eval mode and at least in float32, and what its latents are scaled by.

    Latents are z = (e - shift) * scaling of what the autoencoder encodes e, as diffusers has it. No parameter of it
    trains, and federated averaging neither averages nor sends it: clients of a deployment read their own, and are
    refused if its weights, shift or scaling are others. Checkpoints hold all three, so that a model of latents draws
    images without its files, and the same ones where a file has become another since.

    Args:
        autoencoder: one of
            - a folder with diffusers' AutoencoderKL, itself or below `vae`, or a name on the hub; weights are read from
              safetensors alone;
            - the checkpoint of a `VAE`, a .ckpt;
            - a `VAE`, a network such as `AutoencoderKL`, or any module with `encode(images)` and `decode(latents)`
              that give tensors or what diffusers gives; it is copied.
        scaling: what latents are multiplied by; by default what the folder says, one over the deviation of the VAE's
            latents, or 1.
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

    exchanged = False
    """FedAvg neither copies nor averages what lies below."""

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
            encoded = _encoded(
                self.autoencoder.encode(images.float()), self.posterior == "sample" if draw is None else draw
            )
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

    def train(self, mode: bool = True) -> Self:
        """Stays in eval mode, whatever the parent's mode."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follows a parent to a device, but not to half precision."""
        return super()._apply(in_full(fn), recurse)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._fingerprint = None
        super()._load_from_state_dict(*args)


def made_space(given: Any) -> LatentSpace:
    """The latent space itself, the one that a checkpoint describes, or that of an autoencoder or its place.

    Raises:
        ValueError: see `LatentSpace`.
    """
    found = build(given, "autoencoder", nn.Module, "autoencoder")
    return found if isinstance(found, LatentSpace) else LatentSpace(found)


def read_autoencoder(name: str | Path) -> AutoencoderKL:
    """The autoencoder of a folder of diffusers, or of a name on the hub.

    Weights are read from safetensors alone, and no code of the folder is run.

    Args:
        name: a folder, as AutoencoderKL.save_pretrained leaves it, or a pipeline's with `vae` below.

    Raises:
        FileNotFoundError: if there is no such folder, or it lacks config.json or weights.
        ValueError: if its weights are pickles, not all that it has, or damaged, or it holds another kind of model.
    """
    folder = find_folder(name, "autoencoder")
    folder = folder / "vae" if (folder / "vae").is_dir() else folder
    body = read_body(folder, "AutoencoderKL", f"{name} is no diffusers folder of an autoencoder", "fedgen reads")
    return _around(body, str(folder / CONFIG))


def _around(body: Any, source: str) -> AutoencoderKL:
    """The kit's network with the weights of diffusers' AutoencoderKL."""
    try:
        network = AutoencoderKL.around(body.config)
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{source}: fedgen has no such autoencoder ({error})") from error
    network.body.load_state_dict(body.state_dict())
    return network


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
            given = _around(given, "autoencoder")
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
