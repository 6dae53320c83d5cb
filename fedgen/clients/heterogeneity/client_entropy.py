"""Client entropy: how varied the images of one client are, in nats, by a model fitted to them alone.

Yuan et al. (2022, "What Do We Mean by Generalization in Federated Learning?", arXiv 2110.14216, App. E): a variational
autoencoder of two latent numbers is fitted to a client's images of one label, and H = -mean_x log p(x) is estimated on
the same images with K = 1000 importance samples (Burda et al. 2016, arXiv 1509.00519). The bound is one-sided: it lies
above the model's -log p(x), and so above the images' entropy but for what the model memorised.

The paper gives the latent, the posterior, the likelihood, the steps and K, but not widths, optimizer and learning rate:
those are chosen here, and values compare only under one choice of them. They also compare only between groups of equal
numbers of images: a few are memorised, at the cost of their logarithm above `grey_floor`, whatever they show.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedgen.clients import Client
from fedgen.clients.heterogeneity.entropy_options import DEFAULT, EntropyOptions
from fedgen.clients.heterogeneity.heterogeneity import Heterogeneity, HeterogeneityMeasure, label_table, random_owners
from fedgen.progress import track
from fedgen.seeds import generator, subset

CHUNK = 2**24  # pixels decoded at once, at most: 64 MB
TOGETHER = 2**23  # weights trained at once, at most: 32 MB, and as much for each of gradient and Adam's two averages
BLOCK = 50  # steps whose noise is drawn at once
LEAST = 5  # images of a label for a client to be measured on it


class GroupedVAE(nn.Module):
    """Autoencoders with p(z) = N(0, I), p(x | z) of independent Bernoulli pixels, q(z | x) = N(m, L L^T), one a group.

    Kingma and Welling (2014, arXiv 1312.6114) with the posterior's full covariance. Every weight has a leading axis of
    groups, so that one batched product serves all of them; Adam works on each number for itself, so that training
    together is training each alone.
    """

    _below: Tensor

    def __init__(self, means: Tensor, width: int, latent_dim: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        pixels, self.latent_dim = means.shape[1], latent_dim
        codes = latent_dim + latent_dim * (latent_dim + 1) // 2  # the mean, and L below and on the diagonal
        self.look, self.look_bias = _drawn(pixels, width, generators)
        self.encode, self.encode_bias = _drawn(width, codes, generators)
        self.unfold, self.unfold_bias = _drawn(latent_dim, width, generators)
        self.draw, self.draw_bias = _drawn(width, pixels, generators)
        self.draw_bias.data.copy_(torch.logit(means.clamp(0.01, 0.99)).unsqueeze(1))
        self.register_buffer("_below", torch.tril_indices(latent_dim, latent_dim))

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """m [G, n, d] and L [G, n, d, d], lower triangular with a positive diagonal, of images [G, n, D] in [0, 1]."""
        hidden = torch.tanh(torch.baddbmm(self.look_bias, images, self.look))
        codes = torch.baddbmm(self.encode_bias, hidden, self.encode)
        mean, lower = codes.split([self.latent_dim, codes.shape[2] - self.latent_dim], 2)
        full = lower.new_zeros(*lower.shape[:2], self.latent_dim, self.latent_dim)
        full[..., self._below[0], self._below[1]] = lower
        diagonal = full.diagonal(dim1=-2, dim2=-1)
        return mean, full.tril(-1) + torch.diag_embed(diagonal.exp())

    def hidden(self, latents: Tensor) -> Tensor:
        """The decoder's hidden layer [G, m, width] of latents [G, m, d]."""
        return torch.tanh(torch.baddbmm(self.unfold_bias, latents, self.unfold))

    def logits(self, latents: Tensor) -> Tensor:
        """Logits of every pixel [G, m, D]."""
        return torch.baddbmm(self.draw_bias, self.hidden(latents), self.draw)

    def negative_elbo(self, images: Tensor, noise: Tensor) -> Tensor:
        """-ELBO of each image in nats [G, n], with one latent an image and the divergence in closed form."""
        mean, lower = self.posterior(images)
        logits = self.logits(mean + (lower @ noise.unsqueeze(-1)).squeeze(-1))
        distortion = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(2)
        logs = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        divergence = (lower.square().sum((-2, -1)) + mean.square().sum(-1) - self.latent_dim) / 2 - logs
        return distortion + divergence

    def log_weights(self, images: Tensor, noise: Tensor) -> Tensor:
        """log p(x, z_k) / q(z_k | x) [G, n, k] with z_k = m + L noise_k: importance weights (Burda et al. 2016)."""
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


def _drawn(inputs: int, outputs: int, generators: Sequence[torch.Generator]) -> tuple[nn.Parameter, nn.Parameter]:
    """First weights [G, inputs, outputs] and biases [G, 1, outputs] of a layer, one group a generator."""
    values = [torch.rand(inputs + 1, outputs, generator=one) * 2 - 1 for one in generators]
    whole = torch.stack(values) / inputs**0.5
    return nn.Parameter(whole[:, :-1].contiguous()), nn.Parameter(whole[:, -1:].contiguous())


def log_mean_weights(model: GroupedVAE, images: Tensor, noise: Tensor) -> Tensor:
    """log (1 / K) sum_k of the importance weights, float64 [G, n]."""
    groups, count, samples, _ = noise.shape
    found = torch.full((groups, count), -math.inf, dtype=torch.float64, device=images.device)
    for part in noise.split(max(1, CHUNK // (groups * count * images.shape[2])), 2):
        weights = model.log_weights(images, part.to(images.device)).double()
        found = torch.logaddexp(found, weights.logsumexp(2))
    return found - math.log(samples)


def client_entropies(
    groups: Sequence[Tensor],
    options: EntropyOptions = DEFAULT,
    seed: int = 0,
    device: torch.device | str | None = None,
    names: Sequence[int] | None = None,
) -> Tensor:
    """H of each group of images in nats, float64 [G]: a model is fitted to each alone, all at once.

    A group's value depends on its images, the seed and its name, and on the other groups by rounding only. Grey pixels
    count as what they are in [0, 1], so that H is at least `grey_floor`; compare what lies above it.

    Args:
        groups: uint8 images [n_g, C, H, W] of each, of one shape; e.g. a client's of one label.
        options: of fitting and reading.
        seed: of first weights and noise.
        device: where to fit; where the images lie by default.
        names: numbers, one a group, that with the seed decide its first weights and noise; its place by default. Groups
            of one name are compared with less noise.

    Raises:
        ValueError: for no groups, an empty one, or other than uint8 images of one shape.
    """
    images = _check(groups)
    weights = 2 * options.width * images[0].shape[1]
    together = max(1, TOGETHER // weights)
    order = sorted(range(len(images)), key=lambda place: len(images[place]))  # of similar sizes, for little padding
    found = torch.empty(len(images), dtype=torch.float64)
    for start in range(0, len(order), together):
        part = order[start : start + together]
        own = [place if names is None else names[place] for place in part]
        padded = pad_sequence([images[place] for place in part], batch_first=True).to(device or images[0].device)
        group = _Group(padded, [len(images[place]) for place in part], own, options, seed)
        text = f"autoencoders {start + 1} to {start + len(part)} of {len(images)}"
        found[torch.tensor(part)] = group.entropies(group.fit(text)).cpu()
    return found


def grey_floor(groups: Sequence[Tensor]) -> Tensor:
    """The part of H that no model of independent pixels avoids, in nats, float64 [G]: 0 for black and white images."""
    levels = [part.double() for part in _check(groups)]
    return torch.stack([(torch.special.entr(one) + torch.special.entr(1 - one)).sum(1).mean() for one in levels])


@dataclass
class _Group:
    """Groups of images [G, n, D] that are fitted together, each padded beyond its count."""

    images: Tensor
    counts: Sequence[int]
    names: Sequence[int]
    options: EntropyOptions
    seed: int

    def fit(self, text: str) -> GroupedVAE:
        options, means = self.options, self.images.sum(1).cpu() / torch.tensor(self.counts).unsqueeze(1)
        model = GroupedVAE(means, options.width, options.latent_dim, self._generators("weights")).to(self.images.device)
        optimizer = torch.optim.Adam(model.parameters(), options.lr, fused=True)
        steps = track(self._batches(), text, total=options.steps, unit="steps")
        with torch.enable_grad():
            for images, noise, shares in steps:
                optimizer.zero_grad()
                # a sum over groups with separate weights, so that no gradient mixes groups
                (model.negative_elbo(images, noise) * shares).sum().backward()
                optimizer.step()
        return model

    @torch.no_grad()
    def entropies(self, model: GroupedVAE) -> Tensor:
        """-mean_x log (1 / K) sum_k of the importance weights, float64 [G]."""
        shape = self.options.samples, self.options.latent_dim
        draws = zip(self.counts, self._generators("reading"))
        noise = pad_sequence([torch.randn(count, *shape, generator=one) for count, one in draws], batch_first=True)
        found = log_mean_weights(model, self.images, noise)
        there = torch.arange(found.shape[1]) < torch.tensor(self.counts).unsqueeze(1)
        return -(found * there.to(found)).sum(1) / torch.tensor(self.counts).to(found)

    def _generators(self, what: str) -> list[torch.Generator]:
        return [generator(self.seed, "client entropy", what, name) for name in self.names]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each step images [G, B, D], noise [G, B, d], and each image's share in its group's mean [G, B]."""
        options, rows = self.options, [min(count, self.options.batch_size) for count in self.counts]
        shares = pad_sequence([torch.full((row,), 1 / row) for row in rows], batch_first=True).to(self.images.device)
        draws = self._generators("noise")
        every = torch.arange(len(rows), device=self.images.device).unsqueeze(1)
        for start in range(0, options.steps, BLOCK):
            block = min(BLOCK, options.steps - start)
            own = [torch.randn(row, block, options.latent_dim, generator=one) for row, one in zip(rows, draws)]
            noise = pad_sequence(own, batch_first=True).to(self.images.device)
            if max(self.counts) > options.batch_size:
                picks = [_choose(*one, block) for one in zip(self.counts, rows, draws)]
                chosen = pad_sequence(picks, batch_first=True).to(self.images.device)
            for step in range(block):
                images = self.images
                if max(self.counts) > options.batch_size:
                    images = images[every, chosen[:, :, step]]
                yield images, noise[:, :, step], shares


def _choose(count: int, rows: int, draws: torch.Generator, steps: int) -> Tensor:
    """Positions of images for each step, int64 [rows, steps]: all of them, or random ones of more images."""
    if count == rows:
        return torch.arange(rows).unsqueeze(1).expand(rows, steps)
    return torch.randint(count, (rows, steps), generator=draws)


def _check(groups: Sequence[Tensor]) -> list[Tensor]:
    """Float images [n_g, D] in [0, 1] of each group."""
    if not groups:
        raise ValueError("no groups of images; give those of one client at least")
    for number, part in enumerate(groups):
        if part.dtype != torch.uint8 or part.ndim != 4 or not len(part) or part.shape[1:] != groups[0].shape[1:]:
            raise ValueError(
                f"group {number} must be uint8 images [n, C, H, W], at least one and all of one shape, got {part.dtype}"
                f" {tuple(part.shape)}; points have no grey levels, and no client entropy"
            )
    return [part.flatten(1).float() / 255 for part in groups]


def with_entropy(
    found: Heterogeneity,
    clients: Sequence[Client],
    options: EntropyOptions = DEFAULT,
    max_clients: int = 50,
    max_images: int = 10,
    controls: int = 1,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Heterogeneity:
    """The measures with the clients' entropy above the grey floor, in nats."""
    data = clients[0].data
    owned = [clients[place].everything for place in found.clients]
    rows = torch.cat(owned)
    owners = torch.repeat_interleave(torch.arange(len(owned)), torch.tensor([len(own) for own in owned]))
    present, labels = data.labels[rows].unique(return_inverse=True)
    chosen = subset(len(owned), max_clients, seed, "clients of entropy").tolist()
    asked = choose_labels(label_table(labels, owners), chosen)
    control = "labels" if data.is_labelled else "iid"
    assignments = [owners, *random_owners(owners, labels if data.is_labelled else None, controls, seed)[control]]
    groups = [rows[(assigned == client) & (labels == asked[client])] for assigned in assignments for client in chosen]
    names = chosen * len(assignments)  # a client's random controls have its draws
    drawn = [subset(len(group), max_images, seed, "images of entropy", name) for group, name in zip(groups, names)]
    groups = [group[own] for group, own in zip(groups, drawn)]
    images = [data.inputs[group] for group in groups]
    floor = grey_floor(images)
    above = client_entropies(images, options, seed, device, names) - floor
    values = torch.full((len(assignments), len(owned)), torch.nan, dtype=torch.float64)
    values[:, chosen] = above.view(len(assignments), -1)
    counts = torch.zeros(len(owned), dtype=torch.int64)
    counts[chosen] = torch.tensor([len(group) for group in groups[: len(chosen)]])
    details = {
        "options": asdict(options),
        "label": [data.classes[present[asked[client]]] for client in chosen] if data.is_labelled else [],
        "grey_floor": floor[: len(chosen)].tolist(),
    }
    first, *rest = values.tolist()
    measure = HeterogeneityMeasure("entropy", first, counts.tolist(), {control: rest}, details)
    return replace(found, measures={**found.measures, "entropy": measure})


def choose_labels(table: Tensor, chosen: Sequence[int]) -> dict[int, int]:
    """The label on which each chosen client is measured: 0, 1, ... in turn, or its most frequent one."""
    labels = {}
    for turn, client in enumerate(chosen):
        label = turn % table.shape[1]
        labels[client] = label if table[client, label] >= LEAST else int(table[client].argmax())
    return labels
