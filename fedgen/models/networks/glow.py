"""The network of Glow (Kingma & Dhariwal 2018, arXiv 1807.03039): an invertible map between images and latents.

Built from normflows' multi-scale flow of Glow blocks: actnorm, invertible 1 x 1 convolution (LU), affine coupling.
"""

import math
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.extras import need
from fedgen.models.networks.network import Network
from fedgen.statistics import Gaussian, pool, summarize

POINTS = 2000  # at least, that actnorms start from


class GlowNetwork(Network):
    """Images [N, C, H, W] in [-1, 1] from latents [N, latent_dim] (standard normal), and their likelihood.

    Images have 2^bits grey levels each. The flow itself maps points, one in each level's bin: level l of a pixel lies
    at (l + u) / 2^bits - 1/2 with u in [0, 1).

    A scale folds each 2 x 2 pixels into channels, passes them through `depth` Glow blocks and sets half of the channels
    aside as latents, but for the last scale. As in the paper, except that the prior is a standard normal at every
    scale: there it has learned means and deviations, which depend on the rest of the latents at all but one scale.

    Autocast is switched off inside, in all directions: half precision rounds points to about the width of a bin of 8
    bits, and sums of log-determinants with them.

    Args:
        image_size: height and width, a multiple of 2^levels.
        channels: of the image.
        levels: scales.
        depth: blocks of each scale.
        width: channels inside each coupling's network.
        bits: of a grey level; 8 for all images, fewer for those with fewer levels.

    Raises:
        ModuleNotFoundError: without normflows, naming the extra that brings it.
        ValueError: for sizes that do not fit each other.
    """

    initialised: Tensor

    def __init__(
        self, image_size: int = 8, channels: int = 1, levels: int = 2, depth: int = 6, width: int = 64, bits: int = 8
    ) -> None:
        super().__init__(image_size=image_size, channels=channels, levels=levels, depth=depth, width=width, bits=bits)
        if levels < 1 or image_size % 2**levels:
            raise ValueError(f"image_size={image_size} must be a multiple of 2^levels, and levels={levels} at least 1")
        if min(channels, depth, width) < 1:
            raise ValueError(f"channels, depth and width must be at least 1, got {channels}, {depth}, {width}")
        if not 1 <= bits <= 8:
            raise ValueError(f"bits={bits}: a grey level has 1 to 8")
        self.image_shape = (channels, image_size, image_size)
        self.latent_dim, self.bits, self.patch = math.prod(self.image_shape), bits, 2**levels
        self.flow = _multiscale(self.image_shape, levels, depth, width)
        self._norms = _fix_constants(self.flow)
        self.register_buffer("initialised", torch.zeros((), dtype=torch.bool))  # of every client the server's

    def forward(self, latents: Tensor) -> Tensor:
        """Images [N, C, H, W] in [-1, 1], each pixel one of the 2^bits levels; the gradient is that of the points.

        Args:
            latents: [N, latent_dim], a standard normal times a temperature.
        """
        shapes = [base.shape for base in self.flow.q0]
        parts = latents.split([math.prod(shape) for shape in shapes], dim=1)
        with _exactly(latents):
            points, _ = self.flow.forward_and_log_det([part.view(-1, *shape) for part, shape in zip(parts, shapes)])
        top = 2**self.bits - 1
        levels = ((points.detach() + 0.5) * 2**self.bits).floor().clamp(0, top)
        smooth = 2 * points
        return smooth + (2 * levels / top - 1 - smooth.detach())

    def points(self, images: Tensor) -> Tensor:
        """Points [N, C, H, W] in [-1/2, 1/2) of images in [-1, 1], each at random in its level's bin.

        The noise comes from torch's global generator, on the images' device.
        """
        levels = self._levels(images)
        return (levels + torch.rand_like(levels)) / 2**self.bits - 0.5

    def _levels(self, images: Tensor) -> Tensor:
        top = 2**self.bits - 1
        return ((images + 1) * (top / 2)).round().clamp(0, top)

    def bits_per_dim(self, points: Tensor) -> Tensor:
        """Minus the base-2 logarithm of the points' density in units of a bin, over C H W: [N].

        With points drawn uniformly in the bins its mean is an upper bound on the bits that the image's levels cost.
        """
        with _exactly(points):
            return -self.flow.log_prob(points, None) / (self.latent_dim * math.log(2)) + self.bits

    # ---- before training ----

    @torch.no_grad()
    def initialise(self, points: Tensor) -> None:
        """Sets every actnorm so that what it gives has mean 0 and deviation 1 in each channel over these points.

        Args:
            points: [N, C, h, w]; h and w may be any multiple of `patch`.
        """
        for norm in self._norms:
            norm.data_dep_init_done.fill_(False)
        flags = [norm.data_dep_init_done for norm in self._norms]
        with _exactly(points):
            self.flow.inverse_and_log_det(points)
        for norm, flag in zip(self._norms, flags):  # normflows puts new tensors in their place
            norm.data_dep_init_done = flag.fill_(True)
        self.initialised.fill_(True)

    def patches(self, images: Tensor) -> Tensor:
        """Pieces [n, C * patch * patch] of images [N, C, H, W] in [-1, 1], as points in the middle of their bins."""
        middles = (self._levels(images) + 0.5) / 2**self.bits - 0.5
        side = self.patch
        pieces = middles.unfold(2, side, side).unfold(3, side, side)  # [N, C, H / side, W / side, side, side]
        return pieces.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)

    def initialise_from(self, patches: Gaussian) -> None:
        """`initialise` from the mean and covariance of `patches` alone, with the same result as from the images.

        Couplings start as the identity times a constant. A new flow therefore is affine in each piece of 2^levels x
        2^levels pixels, and means and deviations of its channels follow from the pieces' mean and covariance. They are
        taken from 2 D points that have both: mean +- each axis of the covariance, sqrt(D) deviations long; again and
        again, as actnorms divide by n - 1.
        """
        noise = 1 / (12 * 4**self.bits)  # variance of a place in a bin
        size = patches.dim
        values, axes = torch.linalg.eigh(patches.covariance(0) + noise * torch.eye(size, dtype=torch.float64))
        steps = (axes * (values * size).sqrt()).T
        points = (patches.mean + torch.cat([steps, -steps])).repeat(-(-POINTS // (2 * size)), 1)
        own = next(self.parameters())
        self.initialise(points.to(own).view(-1, self.image_shape[0], self.patch, self.patch))


def _exactly(given: Tensor) -> AbstractContextManager[Any]:
    """Computes in the weights' precision what is computed of a tensor inside."""
    return torch.autocast(given.device.type, enabled=False)


def _multiscale(image_shape: tuple[int, int, int], levels: int, depth: int, width: int) -> Any:
    """normflows' multi-scale flow; its lists begin with the coarsest scale."""
    flows = require_normflows()
    channels, size, _ = image_shape
    bases, blocks, merges = [], [], []
    for i in range(levels):
        own = channels * 2 ** (levels + 1 - i)  # of the blocks of this scale
        blocks.append([*(_block(flows, own, width) for _ in range(depth)), flows.flows.Squeeze()])
        if i:
            merges.append(flows.flows.Merge())
            own //= 2
        side = size // 2 ** (levels - i)
        bases.append(flows.distributions.DiagGaussian((own, side, side), trainable=False))
    return flows.MultiscaleFlow(bases, blocks, merges, class_cond=False)


def require_normflows() -> Any:
    """The package; ModuleNotFoundError without it, naming the extra that brings it."""
    return need("normflows", "flows", "Glow")


def _block(flows: Any, channels: int, width: int) -> nn.Module:
    with warnings.catch_warnings():
        # normflows factorises its random rotation by a call that torch has renamed; the result is the same
        warnings.filterwarnings("ignore", r"torch\.lu is deprecated", UserWarning)
        return flows.flows.GlowBlock(channels, width, scale_map="sigmoid_inv")


def _fix_constants(flow: nn.Module) -> list[Any]:
    """The flow's actnorms; turns its constants, which normflows keeps as floating buffers, into what they are.

    Federated averaging takes floating buffers for running statistics and averages them. Permutations, signs and the
    prior become frozen parameters, which are saved and neither sent nor averaged; the actnorms' flags booleans, of
    which every client has the server's. They are set: until `initialise` an actnorm is the identity, and the first
    batch of whoever comes first does not decide.
    """
    for module in flow.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name == "data_dep_init_done":
                setattr(module, name, torch.ones((), dtype=torch.bool))
            else:
                del module._buffers[name]
                module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    return [module for module in flow.modules() if hasattr(module, "data_dep_init_done")]


def pooled_patches(network: GlowNetwork, clients: Iterable[Tensor]) -> Gaussian:
    """Mean and covariance of all clients' patches; each client sends those of its own.

    Args:
        network: whose patches.
        clients: images [n_i, C, H, W] in [-1, 1], one tensor a client.
    """
    return pool(summarize(network.patches(images)) for images in clients)
