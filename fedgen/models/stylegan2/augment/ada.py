"""The controller of StyleGAN2-ADA: as much augmentation as the discriminator's overfitting asks for.

"Training Generative Adversarial Networks with Limited Data" (Karras et al. 2020, arXiv 2006.06676), section 3.1.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fedgen.losses.feature_loss import KeepsPrecision
from fedgen.models.networks.network import build, describe
from fedgen.models.require import require
from fedgen.models.stylegan2.augment.augment import Augment


class AdaptiveAugment(KeepsPrecision):
    """An augmentation whose p follows r = mean sign(D(augmented real)), the share of certainty about real images.

    The discriminator's logits of augmented real images go to `observe`; every few iterations `update` compares their
    r with the target and moves p by a fixed step, up where the discriminator is too sure. Without a target p is fixed,
    without an augmentation images stay as they are; r is measured all the same.

    Under `FedAvgStrategy` a client's turn starts from the server's p, moves it by its own logits, and the server takes
    the weighted mean: one discriminator is trained, so one p belongs to it, and it moves as the clients' discriminators
    overfit on average. An update that a turn's end cuts in two goes on with the clients' mean signs and counts, that is
    their joint r. All three are floating buffers, which is all that the rule takes. `kimg` counts one client's images.
    `personal: ["*augment.p", "*signs", "*count"]` keeps a p with each client instead.

    Args:
        augment: an `Augment`, the name of a published set of transforms ("bgc"), or None for none.
        target: r at which p stays; None keeps p as it is.
        kimg: thousands of real images in which p moves by 1, if r stays on one side; 100 suits fine-tuning.
        p: where it starts.

    Raises:
        ValueError: for an unknown name or a value out of range.
    """

    signs: Tensor
    count: Tensor

    def __init__(
        self, augment: Augment | str | None = "bgc", target: float | None = 0.6, kimg: float = 500, p: float = 0.0
    ) -> None:
        super().__init__()
        require(target is None or -1 <= target <= 1, f"target must lie in [-1, 1], as means of signs do, got {target}")
        require(kimg > 0, f"kimg must be above 0, got {kimg}")
        require(math.isfinite(p) and p >= 0, f"p must be a finite number of at least 0, got {p}")
        if isinstance(augment, str):
            augment = Augment.of_pipe(augment)
        self.augment: Augment | None = build(augment, "augment", Augment, "augmentation")
        self.target, self.kimg = target, kimg
        self.settings: dict[str, Any] = {
            "augment": None if self.augment is None else describe(self.augment),
            "target": target,
            "kimg": kimg,
            "p": p,
        }
        if self.augment is not None:
            self.augment.p.fill_(p)
        self.register_buffer("signs", torch.zeros(()))  # sum of the signs observed since the last update
        self.register_buffer("count", torch.zeros(()))  # of those

    @property
    def p(self) -> Tensor:
        """The probability, a scalar; 0 without an augmentation."""
        return self.count.new_zeros(()) if self.augment is None else self.augment.p

    def forward(self, images: Tensor) -> Tensor:
        """The images [N, C, H, W] augmented, in training and evaluation mode alike."""
        return images if self.augment is None else self.augment(images)

    @torch.no_grad()
    def observe(self, logits: Tensor) -> None:
        """Counts the discriminator's logits, of any shape, of augmented real images."""
        self.signs += logits.detach().sign().float().sum()
        self.count += logits.numel()

    @torch.no_grad()
    def update(self, images: int) -> Tensor:
        """r of what was observed since the last update, a scalar, NaN if nothing was; p moves by its sign.

        p := max(p + sign(r - target) * images / (1000 kimg), 0). There is no upper limit; above 1 it acts as 1.

        Args:
            images: real images trained on since the last update: batch times iterations, whoever observed them.
        """
        r = self.signs / self.count
        if self.augment is not None and self.target is not None:
            # nothing to go by: p stays
            step = (r - self.target).sign().nan_to_num(nan=0.0) * (images / (1000 * self.kimg))
            self.augment.p.copy_((self.augment.p + step).clamp(min=0))
        self.signs.zero_()
        self.count.zero_()
        return r
