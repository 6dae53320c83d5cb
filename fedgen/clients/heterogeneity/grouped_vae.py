"""Many small variational autoencoders trained at once: each group of images has its own, and learns nothing of others.

Kingma and Welling (2014, arXiv 1312.6114) with the posterior's full covariance. Every weight has a leading axis of
groups, so that one batched product serves all of them; Adam works on each number for itself, so that training together
is training each alone.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK = 2**24  # pixels decoded at once, at most: 64 MB


class GroupedVAE(nn.Module):
    """p(z) = N(0, I), p(x | z) of independent Bernoulli pixels, q(z | x) = N(m, L L^T).

    One hidden layer of tanh each way. Weights start uniform within 1 / sqrt(inputs); the decoder's output at the logits
    of the group's mean image.

    Args:
        means: the groups' mean images [G, D] in [0, 1].
        width: units of the hidden layers.
        latent_dim: d.
        generators: of the first weights, one a group.
    """

    look: Tensor
    look_bias: Tensor
    encode: Tensor
    encode_bias: Tensor
    unfold: Tensor
    unfold_bias: Tensor
    draw: Tensor
    draw_bias: Tensor

    def __init__(self, means: Tensor, width: int, latent_dim: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        pixels, self.latent_dim = means.shape[1], latent_dim
        codes = latent_dim + latent_dim * (latent_dim + 1) // 2  # the mean, and L below and on the diagonal
        shapes = {
            "look": (pixels, width),
            "encode": (width, codes),
            "unfold": (latent_dim, width),
            "draw": (width, pixels),
        }
        for name, (inputs, outputs) in shapes.items():
            values = [torch.rand(inputs + 1, outputs, generator=one) * 2 - 1 for one in generators]
            whole = torch.stack(values) / inputs**0.5
            self.register_parameter(name, nn.Parameter(whole[:, :-1].contiguous()))
            self.register_parameter(f"{name}_bias", nn.Parameter(whole[:, -1:].contiguous()))
        self.draw_bias.data.copy_(torch.logit(means.clamp(0.01, 0.99)).unsqueeze(1))
        rows, columns = torch.tril_indices(latent_dim, latent_dim)
        self.register_buffer("_rows", rows)
        self.register_buffer("_columns", columns)

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """m [G, n, d] and L [G, n, d, d], lower triangular with a positive diagonal, of images [G, n, D] in [0, 1]."""
        hidden = torch.tanh(torch.baddbmm(self.look_bias, images, self.look))
        codes = torch.baddbmm(self.encode_bias, hidden, self.encode)
        mean, lower = codes.split([self.latent_dim, codes.shape[2] - self.latent_dim], 2)
        full = lower.new_zeros(*lower.shape[:2], self.latent_dim, self.latent_dim)
        full[..., self._rows, self._columns] = lower
        diagonal = full.diagonal(dim1=-2, dim2=-1)
        return mean, full.tril(-1) + torch.diag_embed(diagonal.exp())

    def hidden(self, latents: Tensor) -> Tensor:
        """The decoder's hidden layer [G, m, width] of latents [G, m, d]."""
        return torch.tanh(torch.baddbmm(self.unfold_bias, latents, self.unfold))

    def logits(self, latents: Tensor) -> Tensor:
        """Logits of every pixel [G, m, D]."""
        return torch.baddbmm(self.draw_bias, self.hidden(latents), self.draw)

    def negative_elbo(self, images: Tensor, noise: Tensor) -> Tensor:
        """-ELBO of each image in nats [G, n], with one latent an image and the divergence in closed form.

        Args:
            images: [G, n, D] in [0, 1].
            noise: standard normal [G, n, d].
        """
        mean, lower = self.posterior(images)
        logits = self.logits(mean + (lower @ noise.unsqueeze(-1)).squeeze(-1))
        distortion = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(2)
        logs = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        divergence = (lower.square().sum((-2, -1)) + mean.square().sum(-1) - self.latent_dim) / 2 - logs
        return distortion + divergence

    def log_weights(self, images: Tensor, noise: Tensor) -> Tensor:
        """log p(x, z_k) / q(z_k | x) [G, n, k] with z_k = m + L noise_k: the importance weights of Burda et al. 2016.

        Args:
            images: [G, n, D] in [0, 1].
            noise: standard normal [G, n, k, d].
        """
        groups, count, samples, _ = noise.shape
        mean, lower = self.posterior(images)
        latents = mean.unsqueeze(2) + noise @ lower.transpose(-2, -1)
        hidden = self.hidden(latents.view(groups, -1, self.latent_dim))
        # sum over pixels of x l - softplus(l), the first part without pixels: x (h W + b) = h (W x) + b x
        fitting = hidden.view(groups, count, samples, -1) @ torch.bmm(images, self.draw.mT).unsqueeze(-1)
        fitting = fitting.squeeze(-1) + (images * self.draw_bias).sum(2, keepdim=True)
        logits = torch.baddbmm(self.draw_bias, hidden, self.draw)
        likelihood = fitting - F.softplus(logits).sum(2).view(groups, count, samples)
        # log N(z; 0, I) - log N(z; m, L L^T): the constants cancel
        logs = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        return likelihood + (noise.square().sum(-1) - latents.square().sum(-1)) / 2 + logs


def log_mean_weights(model: GroupedVAE, images: Tensor, noise: Tensor) -> Tensor:
    """log (1 / K) sum_k of the importance weights, float64 [G, n]: on average at most log p(x), and nearer for large K.

    Args:
        model: of the groups.
        images: [G, n, D] in [0, 1].
        noise: standard normal [G, n, K, d], on any device.
    """
    groups, count, samples, _ = noise.shape
    found = torch.full((groups, count), -math.inf, dtype=torch.float64, device=images.device)
    for part in noise.split(max(1, CHUNK // (groups * count * images.shape[2])), 2):
        weights = model.log_weights(images, part.to(images.device)).double()
        found = torch.logaddexp(found, weights.logsumexp(2))
    return found - math.log(samples)
