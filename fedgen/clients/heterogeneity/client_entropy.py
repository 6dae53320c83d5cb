"""Client entropy: how varied the images of one client are, in nats, by a model fitted to them alone.

Yuan et al. (2022, "What Do We Mean by Generalization in Federated Learning?", arXiv 2110.14216, App. E): a variational
autoencoder of two latent numbers is fitted to a client's images of one label, and H = -mean_x log p(x) is estimated on
the same images with K = 1000 importance samples (Burda et al. 2016, arXiv 1509.00519). The bound is one-sided, so the
estimate is from above: of the model's -log p(x), and that of the images' entropy, up to what was learnt by heart.

The paper gives the latent, the posterior, the likelihood, the steps and K; widths, optimizer and learning rate it does
not: those here are this file's, and values compare only under one choice of them. They also compare only between groups
of as many images: few are learnt by heart, for their logarithm above `grey_floor`, whatever they show.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedgen.clients.heterogeneity.entropy_options import DEFAULT, EntropyOptions
from fedgen.clients.heterogeneity.grouped_vae import GroupedVAE, log_mean_weights
from fedgen.progress import track
from fedgen.seeds import generator

TOGETHER = 2**23  # weights trained at once, at most: 32 MB, and as much for each of gradient and Adam's two averages
BLOCK = 50  # steps whose noise is drawn at once


def client_entropies(
    groups: Sequence[Tensor],
    options: EntropyOptions = DEFAULT,
    seed: int = 0,
    device: torch.device | str | None = None,
    names: Sequence[int] | None = None,
) -> Tensor:
    """H of each group of images in nats, float64 [G]: a model is fitted to each alone, all at once.

    A group's value depends on its images, the seed and its name, and on the other groups by rounding only. Grey pixels
    count as what they are in [0, 1], so that H is at least `grey_floor`, and smaller differences are what tells.

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
    order = sorted(range(len(images)), key=lambda place: len(images[place]))  # alike in size, so that little is padded
    found = torch.empty(len(images), dtype=torch.float64)
    for start in range(0, len(order), together):
        part = order[start : start + together]
        own = [place if names is None else names[place] for place in part]
        group = _Group([images[place] for place in part], own, options, seed, device)
        text = f"autoencoders {start + 1} to {start + len(part)} of {len(images)}"
        found[torch.tensor(part)] = group.entropies(group.fit(text)).cpu()
    return found


def grey_floor(groups: Sequence[Tensor]) -> Tensor:
    """The part of H that no model of independent pixels avoids, in nats, float64 [G]: 0 for black and white images.

    -mean_x sum over pixels of x log x + (1 - x) log (1 - x), x in [0, 1].
    """
    found = []
    for part in _check(groups):
        level = part.double()
        found.append((torch.special.entr(level) + torch.special.entr(1 - level)).sum(1).mean())
    return torch.stack(found)


class _Group:
    """Groups of images that are fitted together.

    Args:
        parts: float images [n_g, D] in [0, 1] of each.
        names: of the groups, for their draws.
        options: of fitting and reading.
        seed: of first weights and noise.
        device: where to fit.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        names: Sequence[int],
        options: EntropyOptions,
        seed: int,
        device: torch.device | str | None,
    ) -> None:
        self.options, self._seed, self._names = options, seed, names
        self.device = parts[0].device if device is None else torch.device(device)
        self.counts = [len(part) for part in parts]
        self.images = nn.utils.rnn.pad_sequence(list(parts), batch_first=True).to(self.device)

    def fit(self, text: str) -> GroupedVAE:
        """The groups' models, trained."""
        options, means = self.options, self.images.sum(1).cpu() / torch.tensor(self.counts).unsqueeze(1)
        model = GroupedVAE(means, options.width, options.latent_dim, self._generators("weights")).to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), options.lr, fused=True)
        steps = track(self._batches(), text, total=options.steps, unit="steps")
        with torch.enable_grad():
            for images, noise, shares in steps:
                optimizer.zero_grad()
                # a sum over groups, each of which has its own weights: nobody's gradient has another's in it
                (model.negative_elbo(images, noise) * shares).sum().backward()
                optimizer.step()
        return model

    @torch.no_grad()
    def entropies(self, model: GroupedVAE) -> Tensor:
        """-mean_x log (1 / K) sum_k of the importance weights, float64 [G]."""
        shape = self.options.samples, self.options.latent_dim
        draws = zip(self.counts, self._generators("reading"))
        noise = _padded([torch.randn(count, *shape, generator=one) for count, one in draws])
        found = log_mean_weights(model, self.images, noise)
        there = torch.arange(found.shape[1]) < torch.tensor(self.counts).unsqueeze(1)
        return -(found * there.to(found)).sum(1) / torch.tensor(self.counts).to(found)

    def _generators(self, what: str) -> list[torch.Generator]:
        return [generator(self._seed, "client entropy", what, name) for name in self._names]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each step images [G, B, D], noise [G, B, d], and each image's share in its group's mean [G, B]."""
        options, rows = self.options, [min(count, self.options.batch_size) for count in self.counts]
        shares = nn.utils.rnn.pad_sequence([torch.full((row,), 1 / row) for row in rows], batch_first=True)
        shares = shares.to(self.device)
        draws = self._generators("noise")
        every = torch.arange(len(rows), device=self.device).unsqueeze(1)
        for start in range(0, options.steps, BLOCK):
            block = min(BLOCK, options.steps - start)
            noise = _padded(
                [torch.randn(row, block, options.latent_dim, generator=one) for row, one in zip(rows, draws)]
            )
            noise = noise.to(self.device)
            if max(self.counts) > options.batch_size:
                chosen = _padded([_choose(*one, block) for one in zip(self.counts, rows, draws)]).to(self.device)
            for step in range(block):
                images = (
                    self.images if max(self.counts) <= options.batch_size else self.images[every, chosen[:, :, step]]
                )
                yield images, noise[:, :, step], shares


def _choose(count: int, rows: int, draws: torch.Generator, steps: int) -> Tensor:
    """Positions of images for some steps, int64 [rows, steps]: all of them, or of more images some at random."""
    if count == rows:
        return torch.arange(rows).unsqueeze(1).expand(rows, steps)
    return torch.randint(count, (rows, steps), generator=draws)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


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
