"""Autoencoders with codebooks: averages of codes, codes placed by the first batch, discriminators that start late.

From packages by name, or written anew after the sources named in each case, with their hooks and names of state.
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vector_quantize_pytorch import ResidualVQ, VectorQuantize

from tests.foreign.cases import Case
from tests.foreign.flows import ActNorm
from tests.foreign.optimisation import Batch


def encoder(dim: int = 4) -> nn.Module:
    """Images [N, 1, 8, 8] to [N, dim, 4, 4]."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, dim, 2, 2))


def decoder(dim: int = 4) -> nn.Module:
    """[N, dim, 4, 4] to images [N, 1, 8, 8]."""
    return nn.Sequential(nn.ConvTranspose2d(dim, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 1, 3, 1, 1))


class PackagedVQVAE(L.LightningModule):
    """An autoencoder around vector-quantize-pytorch: k-means on the first batch, averages, dead codes replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()
        self.vq = VectorQuantize(
            dim=4, codebook_size=8, decay=0.8, kmeans_init=True, threshold_ema_dead_code=2, accept_image_fmap=True
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        quantized, _, commit_loss = self.vq(self.encoder(batch[0]))
        return F.mse_loss(self.decoder(quantized), batch[0]) + commit_loss.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class PackagedRVQ(PackagedVQVAE):
    """The same with residual quantisers, as SoundStream has them, one of which may be left out of an iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.vq = ResidualVQ(
            dim=4, codebook_size=6, num_quantizers=2, kmeans_init=True, quantize_dropout=True, accept_image_fmap=True
        )


class VectorQuantizerEMA(nn.Module):
    """van den Oord et al. 2017, appendix, as zalandoresearch/pytorch-vq-vae has it: `_ema_cluster_size` is a buffer,
    and new parameters take the places of `_ema_w` and of the codes at each step."""

    def __init__(self, num_embeddings: int, embedding_dim: int, commitment_cost: float, decay: float) -> None:
        super().__init__()
        self._embedding_dim, self._num_embeddings = embedding_dim, num_embeddings
        self._embedding = nn.Embedding(num_embeddings, embedding_dim)
        self._embedding.weight.data.normal_()
        self._commitment_cost, self._decay, self._epsilon = commitment_cost, decay, 1e-5
        self.register_buffer("_ema_cluster_size", torch.zeros(num_embeddings))
        self._ema_w = nn.Parameter(torch.randn(num_embeddings, embedding_dim))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        flat_input = inputs.view(-1, self._embedding_dim)
        indices = torch.cdist(flat_input, self._embedding.weight).argmin(1)
        encodings = F.one_hot(indices, self._num_embeddings).float()
        quantized = (encodings @ self._embedding.weight).view(inputs.shape)
        if self.training:
            size = self._ema_cluster_size * self._decay + (1 - self._decay) * encodings.sum(0)
            n = size.data.sum()
            self._ema_cluster_size = (size + self._epsilon) / (n + self._num_embeddings * self._epsilon) * n
            dw = encodings.t() @ flat_input
            self._ema_w = nn.Parameter(self._ema_w * self._decay + (1 - self._decay) * dw)
            self._embedding.weight = nn.Parameter(self._ema_w / self._ema_cluster_size.unsqueeze(1))
        loss = self._commitment_cost * F.mse_loss(quantized.detach(), inputs)
        return loss, (inputs + (quantized - inputs).detach()).permute(0, 3, 1, 2).contiguous()


class ZalandoVQVAE(L.LightningModule):
    """The model of that notebook."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder, self._decoder = encoder(), decoder()
        self._vq_vae = VectorQuantizerEMA(6, 4, 0.25, 0.9)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        vq_loss, quantized = self._vq_vae(self._encoder(batch[0]))
        return F.mse_loss(self._decoder(quantized), batch[0]) + vq_loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class GumbelVQ(L.LightningModule):
    """taming's quantiser by Gumbel softmax, whose temperature falls with `global_step`."""

    def __init__(self, n_embed: int = 8, dim: int = 4) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(n_embed), decoder(dim)
        self.embed, self.temperature, self.kl_weight = nn.Embedding(n_embed, dim), 1.0, 5e-4

    def temperature_scheduling(self) -> None:
        self.temperature = max(0.2, 1.0 - 0.1 * self.global_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.temperature_scheduling()
        logits = self.encoder(batch[0])
        soft_one_hot = F.gumbel_softmax(logits, tau=self.temperature, dim=1)
        z_q = torch.einsum("bnhw,nd->bdhw", soft_one_hot, self.embed.weight)
        qy = F.softmax(logits, dim=1)
        diff = self.kl_weight * torch.sum(qy * torch.log(qy * logits.shape[1] + 1e-10), dim=1).mean()
        return F.mse_loss(self.decoder(z_q), batch[0]) + diff

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class NLayerDiscriminator(nn.Module):
    """A PatchGAN with taming's ActNorm."""

    def __init__(self, ndf: int = 6) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Conv2d(1, ndf, 4, 2, 1), ActNorm(ndf), nn.Conv2d(ndf, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.leaky_relu(self.norm(F.leaky_relu(self.enter(x), 0.2))[0], 0.2))


class VQGAN(L.LightningModule):
    """Esser et al. 2021 without perceptual weights: the discriminator counts from `disc_start` on, with a weight from
    the gradients at the last layer."""

    def __init__(self, disc_start: int = 4, codebook_weight: float = 1.0) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder, self.decoder, self.discriminator = encoder(), decoder(), NLayerDiscriminator()
        self.quant_conv, self.post_quant_conv = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.embedding = nn.Embedding(8, 4)
        self.embedding.weight.data.uniform_(-1.0 / 8, 1.0 / 8)
        self.discriminator_iter_start, self.codebook_weight = disc_start, codebook_weight

    def quantize(self, z: Tensor, beta: float = 0.25) -> tuple[Tensor, Tensor]:
        z = z.permute(0, 2, 3, 1).contiguous()
        indices = torch.cdist(z.view(-1, 4), self.embedding.weight).argmin(1)
        z_q = self.embedding(indices).view(z.shape)
        loss = torch.mean((z_q.detach() - z) ** 2) + beta * torch.mean((z_q - z.detach()) ** 2)
        return (z + (z_q - z).detach()).permute(0, 3, 1, 2).contiguous(), loss

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quant, diff = self.quantize(self.quant_conv(self.encoder(x)))
        return self.decoder(self.post_quant_conv(quant)), diff

    def adopt_weight(self, weight: float) -> float:
        return 0.0 if self.global_step < self.discriminator_iter_start else weight

    def calculate_adaptive_weight(self, nll_loss: Tensor, g_loss: Tensor) -> Tensor:
        last_layer = self.decoder[-1].weight
        nll_grads = torch.autograd.grad(nll_loss, last_layer, retain_graph=True)[0]
        g_grads = torch.autograd.grad(g_loss, last_layer, retain_graph=True)[0]
        return torch.clamp(torch.norm(nll_grads) / (torch.norm(g_grads) + 1e-4), 0.0, 1e4).detach()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        opt_ae, opt_disc = self.optimizers()
        x, (reconstructions, qloss) = batch[0], self(batch[0])
        nll_loss = (x - reconstructions).abs().mean()
        g_loss = -self.discriminator(reconstructions).mean()
        d_weight = self.calculate_adaptive_weight(nll_loss, g_loss) * self.adopt_weight(1.0)
        aeloss = nll_loss + d_weight * g_loss + self.codebook_weight * qloss.mean()
        opt_ae.zero_grad()
        self.manual_backward(aeloss)
        opt_ae.step()
        logits_real, logits_fake = self.discriminator(x), self.discriminator(reconstructions.detach())
        hinge = 0.5 * (F.relu(1.0 - logits_real).mean() + F.relu(1.0 + logits_fake).mean())
        opt_disc.zero_grad()
        self.manual_backward(self.adopt_weight(1.0) * hinge)
        opt_disc.step()

    def configure_optimizers(self) -> Any:
        parts = self.encoder, self.decoder, self.embedding, self.quant_conv, self.post_quant_conv
        opt_ae = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.02, momentum=0.5)
        return [opt_ae, torch.optim.SGD(self.discriminator.parameters(), lr=0.001, momentum=0.5)], []


CASES = [
    Case(
        "VQ-VAE",
        "vector-quantize-pytorch, VectorQuantize",
        "averaged codes, k-means flag (bool), dead codes replaced",
        PackagedVQVAE,
        moves=("vq._codebook.initted", "vq._codebook.embed", "vq._codebook.cluster_size"),
    ),
    Case(
        "Residual VQ",
        "vector-quantize-pytorch, ResidualVQ",
        "averaged codes, flags",
        PackagedRVQ,
        moves=("vq.layers.*._codebook.initted", "vq.layers.*._codebook.embed"),
    ),
    Case(
        "VQ-VAE with EMA",
        "zalandoresearch/pytorch-vq-vae",
        "parameters and a buffer that are replaced at each step",
        ZalandoVQVAE,
        moves=("_vq_vae._ema_w", "_vq_vae._ema_cluster_size", "_vq_vae._embedding.weight"),
    ),
    Case("Gumbel VQ", "CompVis/taming-transformers, taming/models/vqgan.py", "temperature by global_step", GumbelVQ),
    Case(
        "VQGAN without perceptual weights",
        "CompVis/taming-transformers, taming/modules/losses/vqperceptual.py",
        "ActNorm's flag (uint8), start by global_step",
        VQGAN,
        moves=("discriminator.norm.initialized", "discriminator.enter.weight"),
    ),
]
